"""Verification of a batch in the form that suits the device: walks on a CPU, dense laws and one copy elsewhere."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from treespec.errors import InvalidTreeError, LogitsError
from treespec.laws import TargetLaws
from treespec.protocols import VerificationRule
from treespec.threads import one_thread
from treespec.tree import TreeBatch, Verdict
from treespec.verification import ArgmaxChooser, GivenChooser
from treespec.verification.dense import decode, has_dense_form, pack_greedy, verify_dense

DENSE_ON_CPU = 1 << 12
"""Laws of at most so many numbers per row are computed densely on a CPU too: there the walk's own steps cost more."""


def judge(rule: VerificationRule, trees: TreeBatch, laws: TargetLaws, coins: Tensor, draws: Tensor) -> list[Verdict]:
    """Verify every tree of a batch with the fast form of `rule` that suits the device.

    On a CPU each row is walked and only the nodes that the rule visits get a law; on an accelerator all laws are dense
    and one copy brings every verdict to the host.

    Args:
        coins, draws: float [B, N], uniforms in [0, 1) indexed by the node judged and the node drawn from.
    """
    is_greedy_walk = not laws.is_sampling and rule.name == "target_walk"
    is_cheap = trees.max_nodes * laws.logits.shape[-1] <= DENSE_ON_CPU and has_dense_form(rule)
    if trees.device.type != "cpu" or is_cheap:
        if is_greedy_walk:
            return decode(pack_greedy(trees, laws.dense_scores()), trees)
        return verify_dense(rule, trees, laws.dense(), coins, draws)
    with one_thread(trees.device):
        _check_drafted(trees)
        verdicts = []
        for row, tree in enumerate(trees.trees):
            law = partial(laws.scores if is_greedy_walk else laws.law, row)
            chooser = ArgmaxChooser() if is_greedy_walk else GivenChooser(coins[row], draws[row])
            verdicts.append(rule.walk(tree, law, chooser))
        return verdicts


def _check_drafted(trees: TreeBatch) -> None:
    """Raise LogitsError or InvalidTreeError unless the drafted trees can be verified."""
    if bool(trees.is_valid):
        return
    if trees.laws is not None and bool(trees.laws.isnan().any()):
        raise LogitsError("the drafter's laws hold NaN: check the draft model's weights and the logits processors")
    raise InvalidTreeError(
        "the drafter proposed an invalid tree: a child before its parent, a law that does not sum to one, or a "
        "drawn token that its proposal law gives probability zero"
    )
