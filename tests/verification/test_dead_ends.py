"""Nodes without a target distribution: below them the tree is cut off, by every rule, in every form, losslessly."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import as_batch, random_chain, random_drafted, random_pairs
from torch import Tensor

from treespec.errors import LogitsError
from treespec.protocols import VerificationRule
from treespec.testing import TOY_SCHEMES, Case, ConditionalProbs, assert_lossless, supported_cases
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import RULES, ArgmaxSource, GivenUniforms, TargetWalk, verify
from treespec.verification.dead_ends import verify_cut
from treespec.verification.dense.forms import has_dense_form, verify_dense, verify_scores

END = 0
"""After this token the text has ended; plain decoding repeats it as padding."""
LOSSLESS = [name for name, rule in RULES.items() if rule.is_lossless]


@dataclass
class Cut:
    """A rule whose target has no distribution after texts that have ended or that it never emits itself."""

    rule: VerificationRule
    target: ConditionalProbs
    num_dead: int = 0

    def verify(self, tree: Any, target_probs: Callable[[int], Any], rng: Any) -> Verdict:
        is_alive = [self._is_reached(context) for context in tree.contexts]
        self.num_dead += is_alive.count(False)

        def living(node: int) -> Any:
            assert is_alive[node], "a distribution that there is not is asked for"
            return target_probs(node)

        return verify_cut(self.rule, tree, living, is_alive.__getitem__, rng)

    def _is_reached(self, context: tuple[int, ...]) -> bool:
        return END not in context and all(self.target(context[:i])[token] > 0 for i, token in enumerate(context))


def ending(target: ConditionalProbs) -> ConditionalProbs:
    """The same until the text ends; then padding."""
    padding = np.array([1 + 0 * prob if token == END else 0 * prob for token, prob in enumerate(target(()))])
    return lambda context: padding if END in context else target(context)


CASES = [
    Case(scheme, shape, edge)
    for scheme in TOY_SCHEMES
    for shape in ("chain", "2x2", "unbalanced")
    for edge in ("generic", "zeros")
    if shape == "chain" or edge == "zeros"
]


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless(name: str) -> None:
    num_cases = 0
    for _, drafter, target in supported_cases(RULES[name], False, CASES):
        cut = Cut(RULES[name], target)
        assert_lossless(cut, drafter, ending(target))
        num_cases += cut.num_dead > 0
    assert num_cases >= 2


def with_dead_ends(
    rng: np.random.Generator, kind: Callable, name: str | None = None
) -> tuple[TreeBatch, Tensor, Tensor]:
    """A batch, its distributions with NaN or zeros after some nodes but the roots, and which nodes these are not."""
    toys = [kind(rng, 4) for _ in range(40)]
    toys = [toy for toy in toys if name is None or supports(name, toy[0].to_token_tree())]
    trees, target_probs = as_batch(toys)
    has_probs = torch.ones(trees.tokens.shape, dtype=torch.bool)
    for row, (tree, _) in enumerate(toys):
        dead = {context: context != () and rng.random() < 0.3 for context in tree.contexts}  # Duplicates are alike.
        has_probs[row, : tree.num_nodes] = torch.tensor([not dead[context] for context in tree.contexts])
    target_probs[~has_probs] = float(rng.choice([np.nan, 0.0]))
    return trees, target_probs, has_probs


CHAIN_RULES = ("token", "block")


@pytest.mark.parametrize("name", RULES)
def test_every_form_cuts_alike(name: str) -> None:
    rng = np.random.default_rng(0)
    kind = random_chain if name in CHAIN_RULES else random_pairs if "transport" in name else random_drafted
    for _ in range(5):
        trees, target_probs, has_probs = with_dead_ends(rng, kind, name)
        coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
        found = verify(trees, target_probs, name, coins=coins, draws=draws)
        walked = [
            verify_cut(RULES[name], tree, probs.__getitem__, alive.tolist().__getitem__, GivenUniforms(*chance))
            for tree, probs, alive, *chance in zip(trees.trees, target_probs, has_probs, coins, draws, strict=True)
        ]
        assert found == walked
        if has_dense_form(RULES[name]):
            assert verify_dense(RULES[name], trees, target_probs, coins, draws) == walked
        assert all(alive[list(v.path)].all() for v, alive in zip(found, has_probs, strict=True))


def supports(name: str, tree: TokenTree) -> bool:
    return RULES[name].reason_against(TreeBatch.from_trees([tree])) is None


def test_greedy_forms_cut_alike() -> None:
    trees, target_probs, has_probs = with_dead_ends(np.random.default_rng(1), random_drafted)
    scores = torch.where(has_probs.unsqueeze(-1), target_probs.log(), -torch.inf)
    walked = [
        verify_cut(TargetWalk(), tree, rows.__getitem__, alive.tolist().__getitem__, ArgmaxSource())
        for tree, rows, alive in zip(trees.trees, scores, has_probs, strict=True)
    ]
    assert verify_scores(trees, scores) == walked
    assert max(verdict.num_accepted for verdict in walked) >= 2


CHAINS = TokenTree.chain([2, 1, 1], torch.full((2, 3), 1 / 3)), TokenTree.chain([2, 1, 1])


def chain_for(name: str) -> TokenTree:
    """Drawn tokens where the rule takes them, else selected ones."""
    return next(chain for chain in CHAINS if supports(name, chain))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("nothing", [0.0, torch.nan])
def test_an_accepted_dead_end_is_the_next_token_and_a_root_must_have_a_distribution(name: str, nothing: float) -> None:
    sure = torch.eye(3)[1]
    target_probs = torch.stack([sure, torch.full((3,), nothing), sure])
    options = {"coins": torch.full((3,), 0.5), "draws": torch.full((3,), 0.5)}
    chain = chain_for(name)
    assert verify(chain, target_probs, name, **options) == Verdict((0,), 1, is_bonus=False)
    alive = torch.stack([sure, sure, torch.full((3,), nothing)])
    assert verify(chain, alive, name, **options) == Verdict((0, 1), 1, is_bonus=False)
    with pytest.raises(LogitsError):
        verify(chain, torch.stack([torch.full((3,), nothing), sure, sure]), name)
