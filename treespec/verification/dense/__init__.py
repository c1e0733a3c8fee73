"""The lossless rules over whole batches: every distribution at once, and one host copy per step.

Each form computes what its rule's `verify` computes, in the same order, so that the two agree coin for coin. The
probability with which a node is accepted, given that everything visited before it was rejected, depends on no coin: one
pass over the nodes finds them all, then all coins are compared at once.
"""
