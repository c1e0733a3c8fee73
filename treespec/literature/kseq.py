"""K-SEQ: i.i.d. siblings are verified one after another against the same tightened ratio.

Sun et al. 2023 (SpecTr, algorithm 2). It accepts at least 1 - 1/e of the optimum per node, at O(V) per visited node.
"""

from dataclasses import dataclass
from typing import Any

from treespec.checks import check_count
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import IID, Verdict
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import likelihood_ratio, walk_down


@dataclass(frozen=True)
class KSeq(BaseRule):
    """Accept each of k siblings with probability `min(1, P[x] / (r q[x]))`, r in [1, k].

    With `beta = sum(min(q, P / r))`, all are rejected with probability `(1 - beta)^k`; then draw from
    `res(P - min(q, P / r) (1 - (1 - beta)^k) / beta)`. Every r with `1 - (1 - beta)^k <= r beta` gives the target's
    distribution, and the least one accepts most. Bisection keeps the upper end, so that a coarse one costs acceptance
    only: 20 halvings less than k / 10^6 of it.

    For i.i.d. siblings whose number was fixed before their first draw. On a chain it is token verification.
    Raises `ConfigError`: `num_bisections` is negative or not an int.
    """

    num_bisections: int = 20

    name = "k_seq"
    is_lossless = True
    requirements = Requirements(frozenset({IID}), needs_fixed_width=True)

    def __post_init__(self) -> None:
        check_count("num_bisections", self.num_bisections, least=0)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_down(tree, target_probs, rng, self._verify_children)

    def _verify_children(
        self, tree: VerifiableTree, node: int, probs: Any, rng: RandomSource
    ) -> tuple[int | None, Any]:
        children = tree.children(node)
        draft_probs = tree.draft_probs_of(children[0])
        ratio = tightening(probs, draft_probs, len(children), self.num_bisections)
        tightened = probs / ratio
        for child in children:
            if rng.flip(child, min(likelihood_ratio(tightened, tree.draft_probs_of(child), tree.token(child)), 1)):
                return child, probs
        overlap = _overlap(tightened, draft_probs)
        beta = overlap.sum()
        if not beta > 0:
            return None, probs
        rest = (probs - overlap * ((1 - (1 - beta) ** len(children)) / beta)).clip(min=0)
        # In exact arithmetic a rejection leaves mass; where rounding leaves none, the distribution before it stands.
        return None, rest if rest.sum() > 0 else probs


def _overlap(tightened: Any, draft_probs: Any) -> Any:
    """`min(q, P / r)`, an array [V], on torch, numpy and rational arrays alike."""
    return draft_probs - (draft_probs - tightened).clip(min=0)


def tightening(probs: Any, draft_probs: Any, num_siblings: int, num_bisections: int) -> Any:
    """The least r in [1, k] with `1 - (1 - beta)^k <= r beta`, rounded up: a scalar of the arrays' arithmetic."""
    low = probs.sum() / probs.sum()
    high = num_siblings * low
    for _ in range(num_bisections if num_siblings > 1 else 0):
        middle = (low + high) / 2
        beta = _overlap(probs / middle, draft_probs).sum()
        if 1 - (1 - beta) ** num_siblings <= middle * beta:
            high = middle
        else:
            low = middle
    return high
