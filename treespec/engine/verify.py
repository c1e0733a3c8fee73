"""Verification of a batch in the form that suits the device: walks on a CPU, dense distributions and one copy
elsewhere."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from treespec.engine.target_probs import TargetProbs
from treespec.engine.threads import one_thread
from treespec.errors import InvalidTreeError, LogitsError
from treespec.protocols import VerificationRule
from treespec.tree import TreeBatch, Verdict
from treespec.verification import ArgmaxSource, GivenUniforms
from treespec.verification.dense import decode, has_dense_form, pack_greedy, verify_dense

DENSE_ON_CPU = 1 << 12
"""Distributions of at most so many numbers per row are computed densely on a CPU too: there the walk's own steps cost
more."""


def verify_trees(
    rule: VerificationRule, trees: TreeBatch, distributions: TargetProbs, coins: Tensor, draws: Tensor
) -> list[Verdict]:
    """Verify every tree of a batch with the fast form of `rule` that suits the device.

    On a CPU each row is walked and only the nodes that the rule visits get a distribution; on an accelerator all
    distributions are dense and one copy brings every verdict to the host.

    Args:
        coins, draws: float [B, N], uniforms in [0, 1) indexed by the node judged and the node drawn from.
    """
    is_greedy_walk = not distributions.is_sampling and rule.name == "target_walk"
    is_cheap = trees.max_nodes * distributions.logits.shape[-1] <= DENSE_ON_CPU and has_dense_form(rule)
    if trees.device.type != "cpu" or is_cheap:
        if is_greedy_walk:
            return decode(pack_greedy(trees, distributions.dense_scores()), trees)
        return verify_dense(rule, trees, distributions.dense(), coins, draws)
    with one_thread(trees.device):
        _check_drafted(trees)
        verdicts = []
        for row, tree in enumerate(trees.trees):
            distribution = partial(distributions.scores if is_greedy_walk else distributions.probs, row)
            rng = ArgmaxSource() if is_greedy_walk else GivenUniforms(coins[row], draws[row])
            verdicts.append(rule.verify(tree, distribution, rng))
        return verdicts


def _check_drafted(trees: TreeBatch) -> None:
    """Raise LogitsError or InvalidTreeError unless the drafted trees can be verified."""
    if bool(trees.is_valid):
        return
    if trees.draft_probs is not None and bool(trees.draft_probs.isnan().any()):
        raise LogitsError(
            "the drafter's distributions hold NaN: check the draft model's weights and the logits processors"
        )
    raise InvalidTreeError(
        "the drafter proposed an invalid tree: a child before its parent, a distribution that does not sum to "
        "one, or a "
        "drawn token that its draft distribution gives probability zero"
    )
