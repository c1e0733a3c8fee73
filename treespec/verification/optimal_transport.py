"""Optimal transport per node: no rule accepts more at one node (Sun et al. 2023, section 4; Khisti et al. 2025).

See `transport` for what it admits and costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.admission import AdmittingRule
from treespec.verification.transport import TRANSPORT_ADMISSION, transport_siblings
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class OptimalTransport(AdmittingRule):
    """From the root down: at each node accept one of the siblings by the best transport, descend, start again."""

    name = "optimal_transport"
    is_lossless = True
    admission = TRANSPORT_ADMISSION

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        return walk_down(tree, target_law, chooser, _judge)


def _judge(tree: VerifiableTree, node: int, law: Any, chooser: Chooser) -> tuple[int | None, Any]:
    children = tree.children(node)
    probs, rest = transport_siblings(tree, children, law)
    for child, prob in zip(children, probs, strict=True):
        if chooser.flip(child, prob):
            return child, law
    # In exact arithmetic a rejection leaves mass; where rounding leaves none, the law before it stands.
    return None, rest if rest.sum() > 0 else law
