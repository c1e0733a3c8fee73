"""Block verification: a whole chain is verified at once, which accepts as much as any lossless rule can on chains.

Sun et al. 2025 (Block Verification Accelerates Speculative Decoding, algorithm 2).
"""

from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import likelihood_ratio, residual_weights


@dataclass(frozen=True)
class BlockVerification(BaseRule):
    """With `b_0 = 1, b_i = min(1, b_{i-1} P[x_i] / q[x_i])`, keep the *last* i whose coin is below h_i, else 0.

    `h_i = S_i / (S_i + (1 - b_i))` with `S_i = sum((b_i P - q)+)` one token further; at the end of the chain h = b.
    Then draw from `res((b_i P - q)+)`, or from the target at the end of the chain. For chains, selected or sampled.
    """

    name = "block"
    is_lossless = True
    requirements = Requirements(is_chain_only=True)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        masses = _prefix_masses(tree, target_probs)
        chain = tuple(masses)
        for num_kept in range(len(chain), 1, -1):
            path = chain[:num_kept]
            node = chain[num_kept - 1]
            accept_prob, weights = _ending(node, masses[node], tree, target_probs)
            if accept_prob != 0 and rng.flip(node, accept_prob):
                return Verdict(path, rng.pick(node, weights), is_bonus=not tree.children(node))
        _, weights = _ending(0, 1, tree, target_probs)
        return Verdict((0,), rng.pick(0, weights), is_bonus=not tree.children(0))


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


def _ending(node: int, mass: Any, tree: VerifiableTree, target_probs: NodeProbs) -> tuple[Any, Any]:
    """h_i, and the weights [V] of the token after a path that ends at `node`."""
    probs = target_probs(node)
    children = tree.children(node)
    if not children:
        return mass, probs
    (child,) = children
    rest = residual_weights(mass * probs, tree.draft_probs_of(child), tree.token(child))
    total = rest.sum()
    # In exact arithmetic a rejection at the root leaves mass; where rounding leaves none, the target itself stands.
    return (0, probs) if total == 0 else (total / (total + (1 - mass)), rest)
