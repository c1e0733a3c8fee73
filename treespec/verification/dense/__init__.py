"""The lossless rules over whole batches: every distribution at once, and one host copy per step.

Each form agrees with its rule's `verify` coin for coin. The probability with which a node is accepted, given that
everything visited before it was rejected, depends on no coin: one pass finds them all.
"""
