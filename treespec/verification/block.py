"""Block verification: a whole chain is judged at once, which accepts as much as any lossless rule can on chains.

Sun et al. 2025 (Block Verification Accelerates Speculative Decoding, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.requirements import BaseRule, Requirements
from treespec.verification.steps import likelihood_ratio, residual_weights


@dataclass(frozen=True)
class BlockVerification(BaseRule):
    """With `b_0 = 1, b_i = min(1, b_{i-1} P[x_i] / q[x_i])`, keep the *last* i whose coin is below h_i, else 0.

    `h_i = S_i / (S_i + (1 - b_i))` with `S_i = sum((b_i P - q)+)` one token further; at the end of the chain h = b.
    Then draw from `res((b_i P - q)+)`, or from the target at the end of the chain. Admits chains of any family.
    """

    name = "block"
    is_lossless = True
    requirements = Requirements(is_chain_only=True)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        masses = _prefix_masses(tree, target_probs)
        chain = tuple(masses)
        for num_kept in range(len(chain), 0, -1):
            path = chain[:num_kept]
            node = path[-1]
            verdict = _judge(node, masses[node], path, tree, target_probs, rng)
            if verdict is not None:
                return verdict
        raise AssertionError("the root is always accepted")


def _prefix_masses(tree: VerifiableTree, target_probs: NodeProbs) -> dict[int, Any]:
    """b_i by node, down to the first node of mass zero: nothing from there on can be accepted."""
    masses: dict[int, Any] = {0: 1}
    node, children = 0, tree.children(0)
    while children:
        (child,) = children
        ratio = likelihood_ratio(masses[node] * target_probs(node), tree.draft_probs_of(child), tree.token(child))
        mass = min(ratio, 1)
        if mass == 0:
            break
        masses[child] = mass
        node, children = child, tree.children(child)
    return masses


def _judge(
    node: int, mass: Any, path: tuple[int, ...], tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource
) -> Verdict | None:
    is_root = node == 0
    children = tree.children(node)
    if not children:
        is_kept = is_root or rng.flip(node, mass)
        return Verdict(path, rng.pick(node, target_probs(node)), is_bonus=True) if is_kept else None
    (child,) = children
    probs = target_probs(node)
    rest = residual_weights(mass * probs, tree.draft_probs_of(child), tree.token(child))
    total = rest.sum()
    if total == 0:
        return Verdict(path, rng.pick(node, probs), is_bonus=False) if is_root else None
    if is_root or rng.flip(node, total / (total + (1 - mass))):
        return Verdict(path, rng.pick(node, rest), is_bonus=False)
    return None
