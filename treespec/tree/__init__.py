"""Token trees, batches of them, and verdicts: the types that every other module uses.

Node 0 is the root: the last committed token, whose key/value rows are not cached yet. Parents come before children;
siblings are in *verification order*.
"""

from treespec.tree.arrays import (
    IID,
    MIXED,
    PADDING_PARENT,
    POINT_MASS,
    ROOT_PARENT,
    SELECTED,
    WITHOUT_REPLACEMENT,
    ancestor_mask,
    pad_rows,
)
from treespec.tree.batch import TreeBatch
from treespec.tree.host_tree import HostTree
from treespec.tree.paths import Path, Verdict, parents_of_paths, parse_paths
from treespec.tree.token_tree import TokenTree

__all__ = [
    "IID",
    "MIXED",
    "PADDING_PARENT",
    "POINT_MASS",
    "ROOT_PARENT",
    "SELECTED",
    "WITHOUT_REPLACEMENT",
    "HostTree",
    "Path",
    "TokenTree",
    "TreeBatch",
    "Verdict",
    "ancestor_mask",
    "pad_rows",
    "parents_of_paths",
    "parse_paths",
]
