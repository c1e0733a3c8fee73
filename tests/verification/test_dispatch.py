"""`verify` with all that a caller can get wrong, and the one thread that a rule's walk has on a CPU."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from helpers.small_trees import DISTRIBUTIONS, IID, MIXED, SELECTED, WITHOUT_REPLACEMENT
from helpers.toys import verify_rows
from torch import Tensor

import treespec
from treespec.engine.target_probs import TargetProbs
from treespec.errors import (
    ConfigError,
    InvalidTreeError,
    LogitsError,
    RuleMismatchError,
    TreespecError,
    VocabularyMismatchError,
)
from treespec.protocols import History, Scores
from treespec.sampling import NoProcessors
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import RULES, verify
from treespec.verification.dispatch import one_thread, verify_batch


def uniform(*shape: int) -> Tensor:
    return torch.full(shape, 1 / shape[-1])


def test_one_tree_and_a_batch_agree_with_the_walk() -> None:
    coins, draws = torch.tensor([[0.1, 0.9, 0.2]]), torch.tensor([[0.4, 0.5, 0.6]])
    for name in ("target_walk", "recursive", "traversal"):
        for trees in (SELECTED, IID, MIXED, WITHOUT_REPLACEMENT):
            expected = verify_rows(RULES[name], trees, uniform(1, 3, 3), coins, draws)
            assert verify(trees, uniform(1, 3, 3), name, coins=coins, draws=draws) == expected
            single = verify(trees.trees[0], uniform(3, 3), name, coins=coins[0], draws=draws[0])
            assert [single] == expected

    for trees, name in ((SELECTED, "target_walk"), (IID, "traversal")):  # "auto" is the default.
        expected = verify_rows(RULES[name], trees, uniform(1, 3, 3), coins, draws)
        assert verify(trees, uniform(1, 3, 3), coins=coins, draws=draws) == expected


def test_what_is_left_out_is_drawn_from_the_generator() -> None:
    tree = TokenTree.from_paths([(0,), (0, 0)], [0, 1, 1])
    drawn = [[verify(tree, uniform(3, 3), generator=g).next_token for _ in range(20)] for g in generators(1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        first = [verify(tree, uniform(3, 3)) for _ in range(20)]
        torch.manual_seed(5)
        assert [verify(tree, uniform(3, 3)) for _ in range(20)] == first


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_coins_and_draws_do_not_share_noise() -> None:
    """Left out, both are drawn: a rule whose coins equal its draws would never emit some tokens."""
    tree, generator = TokenTree.chain([0, 1], DISTRIBUTIONS[:1]), torch.Generator().manual_seed(0)
    emitted = {verify(tree, torch.tensor([[0.4, 0.2, 0.4]] * 2), "token", generator=generator) for _ in range(60)}
    accepted = {verdict.next_token for verdict in emitted if verdict.is_bonus}
    assert accepted == {0, 1, 2}


NAN_PROBS = torch.tensor([[float("nan"), 0.5, 0.5]] + [[1.0, 0.0, 0.0]] * 2)
HALF = torch.full((3,), 0.5)


@pytest.mark.parametrize(
    ("target_probs", "options", "error", "message"),
    [
        (uniform(2, 3), {}, InvalidTreeError, r"one distribution per node, \[3, 'V'\]|\[1, 3, 'V'\]"),
        (uniform(1, 3, 3), {}, InvalidTreeError, "one distribution per node"),
        (uniform(3, 4), {}, VocabularyMismatchError, "cover 3 tokens, target_probs 4"),
        (uniform(3, 3).half(), {}, ConfigError, "float32 or float64"),
        (NAN_PROBS, {}, LogitsError, "row 0, node 0"),
        (uniform(3, 3) * 2, {}, LogitsError, "sum is 2"),
        (torch.tensor([[1.5, -0.5, 0.0]] * 3), {}, LogitsError, "least is -0.5"),
        (torch.tensor([[torch.inf, 0.0, 0.0]] * 3), {}, LogitsError, "sum is inf"),
        (torch.zeros(3, 3), {}, LogitsError, "sum is 0"),
        (torch.tensor([[0.4, 0.3, 0.3]] * 2 + [[1.0, -1.0, 0.0]]), {}, LogitsError, "not logits"),
        (uniform(3, 3), {"coins": torch.rand(4)}, ConfigError, "coins must be one float per node"),
        (uniform(3, 3), {"draws": torch.rand(2)}, ConfigError, "draws must be one float per node"),
        (uniform(3, 3), {"coins": torch.zeros(3, dtype=torch.int64)}, ConfigError, "coins must be one float per node"),
        (uniform(3, 3), {"coins": HALF + 0.5}, ConfigError, r"coins must lie in \[0, 1\)"),
        (uniform(3, 3), {"draws": -HALF}, ConfigError, r"draws must lie in \[0, 1\)"),
        (uniform(3, 3), {"draws": HALF * torch.nan}, ConfigError, r"draws must lie in \[0, 1\)"),
        (uniform(3, 3), {"rule": "sequoia"}, ConfigError, "no verification rule is called 'sequoia'"),
        (uniform(3, 3), {"rule": "token"}, RuleMismatchError, "several children"),
        (
            uniform(3, 3),
            {"generator": np.random.default_rng(0)},
            ConfigError,
            "generator must be a torch.Generator, got",
        ),
        ([[0.5, 0.5], [1.0]], {}, ConfigError, "target_probs must be an array of numbers"),
        (None, {}, ConfigError, "target_probs must be an array of numbers"),
        (0.5, {}, InvalidTreeError, "one distribution per node"),
        (uniform(3, 3), {"coins": ["x"] * 3}, ConfigError, "coins must be an array of numbers"),
        (uniform(3, 3), {"draws": 0.5}, ConfigError, "draws must be one float per node"),
    ],
)
def test_wrong_input(target_probs: Tensor, options: dict, error: type[TreespecError], message: str) -> None:
    with pytest.raises(error, match=message):
        verify(IID.trees[0], target_probs, **options)


@pytest.mark.parametrize(
    ("tree", "message"),
    [([0, 1, 2], "TokenTree or a TreeBatch, got list"), (None, "got NoneType")],
)
def test_wrong_trees(tree, message: str) -> None:
    with pytest.raises(InvalidTreeError, match=message):
        verify(tree, uniform(3, 3))
    with pytest.raises(InvalidTreeError, match="one distribution per node"):
        verify(IID, 0.5)


@pytest.mark.parametrize("trees", [IID, IID.trees[0]], ids=["batch", "tree"])
@pytest.mark.parametrize(
    "form",
    [Tensor.tolist, Tensor.numpy, lambda values: values.clone().requires_grad_(), lambda values: list(values.numpy())],
    ids=["lists", "numpy", "requires_grad", "list of arrays"],
)
def test_arrays_lists_and_gradients_are_read(trees: TreeBatch | TokenTree, form) -> None:
    lead = (1,) if isinstance(trees, TreeBatch) else ()
    for coins, draws in torch.rand(20, 2, *lead, 3, dtype=torch.float64, generator=generators(0)[0]):
        for name in ("recursive", "traversal", "k_seq"):
            target_probs = uniform(*lead, 3, 3).double()
            expected = verify(trees, target_probs, name, coins=coins, draws=draws)
            assert verify(trees, form(target_probs), name, coins=form(coins), draws=form(draws)) == expected


def test_tokens_without_a_target_distribution_raise() -> None:
    tree = TokenTree.from_paths([(0,), (1,)], [7, 1, 3])
    with pytest.raises(VocabularyMismatchError, match="outside the target's vocabulary of 3"):
        verify(tree, uniform(3, 3))
    verify(tree, uniform(3, 4))  # The root's token is committed: it needs no distribution.


def test_invalid_batches_raise() -> None:
    for name, value in (("parents", [[-1, 0, 2]]), ("draft_index", [[-1, 0, 5]])):
        with pytest.raises(InvalidTreeError, match="the batch holds an invalid tree"):
            verify(dataclasses.replace(IID, **{name: torch.tensor(value)}), uniform(1, 3, 3))


VOCAB_SIZE = 50_000
"""Too large for the dense rules of a CPU."""


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watching:
    """The target walk, which notes how many threads there are."""

    def __init__(self, error: Exception | None = None) -> None:
        self.name, self.is_lossless, self.error, self.seen = "watching", True, error, 0

    def reason_against(self, trees):
        """None: it verifies every tree."""

    def verify(self, tree, target_probs, rng):
        self.seen = torch.get_num_threads()
        if self.error is not None:
            raise self.error
        return RULES["target_walk"].verify(tree, target_probs, rng)


def verified(rule):
    trees = treespec.TreeBatch(torch.tensor([[1, 2]]), torch.tensor([[-1, 0]]))
    history = History(torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    probs = TargetProbs(trees, Scores(torch.zeros(1, 2, VOCAB_SIZE)), history, NoProcessors(), [0], is_sampling=True)
    return verify_batch(rule, trees, probs, torch.full((1, 2), 0.5), torch.full((1, 2), 0.5))


@pytest.mark.parametrize("error", [None, ValueError("no")])
def test_a_walk_has_one_thread(two_threads, error):
    """The others come back, after an error too."""
    rule = Watching(error)
    with pytest.raises(ValueError, match="no") if error else nullcontext():
        assert len(verified(rule)) == 1
    assert rule.seen == 1
    assert torch.get_num_threads() == 2


def test_accelerators_are_left_alone(two_threads):
    with one_thread(torch.device("meta")):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("name", RULES)
def test_padding_is_not_read(name: str) -> None:
    """By any rule: NaN, which stands for no distribution, and what raises where it is read."""
    root = TokenTree(torch.tensor([0]), torch.tensor([-1]))
    chain = TokenTree.chain([0, 1, 2], DISTRIBUTIONS)
    batches = (TreeBatch.from_trees([tree, root]) for tree in (IID.trees[0], SELECTED.trees[0], chain))
    trees = next(trees for trees in batches if RULES[name].reason_against(trees) is None)
    target_probs, chance = uniform(2, 3, 3), torch.full((2, 3), 0.5)
    expected = verify(trees, target_probs, name, coins=chance, draws=chance)
    for padding in (torch.nan, torch.inf, -1.0):
        target_probs[1, 1:] = padding
        assert verify(trees, target_probs, name, coins=chance, draws=chance) == expected
    assert expected[1] == Verdict((0,), 1, is_bonus=True)
