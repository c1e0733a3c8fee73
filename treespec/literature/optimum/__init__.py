"""The most that any lossless rule can accept.

Per node, with drafted siblings T: `alpha* = 1 + min over token sets H of [P(H) - Pr(all siblings in H)]`, the value of
an optimal transport problem (Sun et al. 2023, SpecTr; Hu et al. 2025, Towards Optimal Multi-draft Speculative
Decoding). For siblings drawn from one distribution, with or without replacement, the best H is a prefix of the tokens
sorted by P/q ascending, so a scan finds it at full vocabulary size. For whole trees there is an upper bound.
"""

from treespec.literature.optimum.nodes import (
    Bounded,
    optimum_iid,
    optimum_mixed,
    optimum_selected,
    optimum_without_replacement,
)
from treespec.literature.optimum.trees import path_bound, shape_inclusion, tree_bound

__all__ = [
    "Bounded",
    "optimum_iid",
    "optimum_mixed",
    "optimum_selected",
    "optimum_without_replacement",
    "path_bound",
    "shape_inclusion",
    "tree_bound",
]
