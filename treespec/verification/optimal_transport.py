"""Optimal transport per node: no rule accepts more at one node (Sun et al. 2023, section 4; Khisti et al. 2025).

See `transport` for what it admits and costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import TreeBatch, Verdict
from treespec.verification.admission import check_admission
from treespec.verification.transport import TRANSPORT_ADMISSION, transport_siblings


@dataclass(frozen=True)
class OptimalTransport:
    """From the root down: at each node accept one of the siblings by the best transport, descend, start again."""

    name = "optimal_transport"
    is_lossless = True
    admission = TRANSPORT_ADMISSION

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree; asks for the target law of accepted nodes only."""
        path = [0]
        while True:
            node = path[-1]
            law, children = target_law(node), tree.children(node)
            if not children:
                return Verdict(tuple(path), chooser.pick(node, law), is_bonus=True)
            probs, rest = transport_siblings(tree, children, law)
            child = next((c for c, prob in zip(children, probs, strict=True) if chooser.flip(c, prob)), None)
            if child is None:
                # In exact arithmetic a rejection leaves mass; where rounding leaves none, the law before it stands.
                return Verdict(tuple(path), chooser.pick(node, rest if rest.sum() > 0 else law), is_bonus=False)
            path.append(child)
