"""The lossless rules over whole batches: every distribution at once on its device, coins and paths on the host.

Each form agrees with its rule's `verify` coin for coin. The probability with which a node is accepted, given that
everything visited before it was rejected, depends on no coin: one pass finds them all.
"""
