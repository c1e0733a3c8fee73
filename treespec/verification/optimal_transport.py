"""Optimal transport per node: no rule accepts more at one node (Sun et al. 2023, section 4; Khisti et al. 2025).

See `transport` for what it admits and costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.requirements import BaseRule
from treespec.verification.transport import TRANSPORT_REQUIREMENTS, transport_siblings
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class OptimalTransport(BaseRule):
    """From the root down: at each node accept one of the siblings by the best transport, descend, start again."""

    name = "optimal_transport"
    is_lossless = True
    requirements = TRANSPORT_REQUIREMENTS

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_down(tree, target_probs, rng, _judge)


def _judge(tree: VerifiableTree, node: int, distribution: Any, rng: RandomSource) -> tuple[int | None, Any]:
    children = tree.children(node)
    probs, rest = transport_siblings(tree, children, distribution)
    for child, prob in zip(children, probs, strict=True):
        if rng.flip(child, prob):
            return child, distribution
    # In exact arithmetic a rejection leaves mass; where rounding leaves none, the distribution before it stands.
    return None, rest if rest.sum() > 0 else distribution
