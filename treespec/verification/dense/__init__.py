"""The lossless rules over whole batches, for accelerators: every distribution at once, and one host copy per step.

Each form computes what its `walk` computes, in the same order, so that the two agree coin for coin. The probability
with which a node is accepted, given that everything judged before it was rejected, depends on no coin: one pass over
the nodes finds them all, then all coins are compared at once.

Axis letters: B rows, N nodes, V vocabulary.
"""

from treespec.verification.dense.entry import verify_dense
from treespec.verification.dense.forms import has_dense_form
from treespec.verification.dense.packing import decode, pack, pack_greedy
from treespec.verification.dense.scans import Scan, scan_rejection, scan_traversal

__all__ = [
    "Scan",
    "decode",
    "has_dense_form",
    "pack",
    "pack_greedy",
    "scan_rejection",
    "scan_traversal",
    "verify_dense",
]
