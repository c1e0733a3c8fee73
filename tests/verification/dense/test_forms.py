"""The dense forms read the device once or twice and see bad values; test_agreement.py compares verdicts."""

import dataclasses
import gc
import weakref
from itertools import product

import numpy as np
import pytest
import torch
from helpers.accelerator.device import DeviceTensor, PretendAccelerator
from helpers.small_trees import DISTRIBUTIONS, WRONG_VALUES, pair_tree
from helpers.toys import as_batch, random_chain, random_drafted, verify_rows
from transformers.generation.logits_process import (
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from treespec import sampling
from treespec.engine.target_probs import TargetProbs
from treespec.errors import InvalidTreeError, LogitsError, VocabularyMismatchError
from treespec.hf.generation.processors import TreeProcessors
from treespec.protocols import History, Scores
from treespec.sampling import find_tokens
from treespec.tree import TokenTree, TreeBatch
from treespec.verification import RULES, TargetWalk, resolve, verify
from treespec.verification.dense import forms
from treespec.verification.dense.forms import has_dense_form, verify_dense, verify_scores
from treespec.verification.dispatch import verify_batch, verify_greedy

TREE_RULES = ("target_walk", "recursive", "traversal")


def test_dtypes_may_differ() -> None:
    rng = np.random.default_rng(1)
    trees, target_probs = as_batch([random_drafted(rng, 4) for _ in range(100)])
    assert trees.draft_probs is not None
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    for dtype, draft_dtype in product((torch.float32, torch.float64), repeat=2):
        cast = dataclasses.replace(trees, draft_probs=trees.draft_probs.to(draft_dtype))
        for name in TREE_RULES:
            args = (RULES[name], cast, target_probs.to(dtype), coins, draws)
            assert verify_dense(*args) == verify_rows(*args)


@pytest.mark.parametrize("name", ["recursive", "traversal"])
def test_siblings_drawn_without_those_of_their_own_distribution(name: str) -> None:
    """Two drafters' siblings below one node: what the first drew is not taken from the second's distribution."""
    index, flags = torch.tensor([-1, 0, 0, 1, 1]), torch.tensor([False, True, True, True, True])
    parents = torch.tensor([-1, 0, 0, 0, 0])
    trees = TreeBatch.from_trees([TokenTree(torch.tensor([9, 0, 1, 0, 2]), parents, DISTRIBUTIONS, index, flags)] * 300)
    rng = np.random.default_rng(0)
    target_probs = torch.from_numpy(rng.dirichlet(np.ones(3), (300, 5)))
    coins, draws = (torch.from_numpy(rng.random((300, 5))) for _ in range(2))
    walked = verify_rows(RULES[name], trees, target_probs, coins, draws)
    assert verify_dense(RULES[name], trees, target_probs, coins, draws) == walked
    assert {verdict.path[-1] for verdict in walked} >= {1, 4}


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if has_dense_form(rule)])
def test_nothing_is_kept(name: str) -> None:
    """A cycle of references would hold a step's distributions on the device until the garbage collector runs."""
    rng = np.random.default_rng(2)
    trees, target_probs = as_batch([(random_chain if name in ("token", "block") else random_drafted)(rng, 4)])
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    kept = [weakref.ref(trees.trees[0]), weakref.ref(target_probs)]
    gc.disable()
    try:
        verify_dense(RULES[name], trees, target_probs, coins, draws)
        del trees, target_probs
        assert [reference() for reference in kept] == [None, None]
    finally:
        gc.enable()


TOP_P, PENALTY = TopPLogitsWarper(0.95), RepetitionPenaltyLogitsProcessor(1.2)


@pytest.mark.parametrize(
    ("name", "last", "is_sampling", "num_reads"),
    [
        ("target_walk", TOP_P, False, 1),
        ("auto", TOP_P, True, 2),
        ("recursive", PENALTY, True, 2),
        ("block", TOP_P, True, 2),
    ],
)
def test_reads_of_a_whole_step(
    name: str, last: LogitsProcessor, is_sampling: bool, num_reads: int, monkeypatch
) -> None:
    """Choice of the rule, processors, distributions and verdicts."""
    rng = np.random.default_rng(6)
    kind = random_chain if name == "block" else random_drafted
    trees, target_probs = as_batch([kind(rng, 4) for _ in range(30)])
    logits = target_probs.nan_to_num(0.25).log().float().clamp(min=-50)
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    history = History(torch.zeros(30, 1, dtype=torch.int64), torch.ones(30, 1, dtype=torch.bool))
    warpers = TreeProcessors([TemperatureLogitsWarper(0.8), last], num_rows=30)
    probs = TargetProbs(dataclasses.replace(trees), Scores(logits), history, warpers, list(range(30)), is_sampling)
    reads: list[int] = []
    for module in (forms, sampling):
        monkeypatch.setattr(module, "download", lambda *tensors: reads.append(len(tensors)) or list(tensors))
    rule = resolve(name, is_sampling, probs.trees)
    if is_sampling:
        found = verify_batch(rule, probs.trees, probs, coins, draws)
        rule = RULES["traversal" if name == "auto" else name]
        assert found == verify_rows(rule, trees, probs.dense(), coins, draws)
    else:
        found = verify_greedy(probs.trees, probs)
    assert len(reads) == num_reads
    assert max(verdict.num_accepted for verdict in found) >= 2


@pytest.mark.parametrize("way", ["ahead", "later", "again"])
@pytest.mark.parametrize("name", TREE_RULES)
def test_a_device_verifies_as_the_cpu_does(name: str, way: str, monkeypatch) -> None:
    """Next tokens come with the verdicts, or by one more read: of large batches, and where one has no mass."""
    if way == "later":
        monkeypatch.setattr(forms, "DRAWN_AHEAD", 0)
    if way == "again":
        monkeypatch.setattr(forms, "find_tokens", lambda *args: [2 * find_tokens(*args)[0], find_tokens(*args)[1] * 0])
    rng = np.random.default_rng(11)
    for number in range(8):
        trees, target_probs = as_batch([random_drafted(rng, 2 + number % 4) for _ in range(20)])
        target_probs = target_probs.nan_to_num(0.0)
        coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
        expected = verify_rows(RULES[name], trees, target_probs, coins, draws)
        assert trees.draft_probs is not None
        with PretendAccelerator() as device:
            there = dataclasses.replace(trees, draft_probs=DeviceTensor(trees.draft_probs))
            found = verify_dense(RULES[name], there, DeviceTensor(target_probs), coins, draws)
            num_reads = sum(device.reads.values())
        assert found == expected
        if name != "target_walk":  # It checks the draft's distributions apart.
            assert num_reads == (1 if way == "ahead" else 2)


def two_rows() -> tuple[TreeBatch, torch.Tensor]:
    target_probs = torch.full((2, 3, 3), 1 / 3, dtype=torch.float64)
    target_probs[1, 1:] = torch.nan  # Padding is never read.
    return TreeBatch.from_trees([pair_tree([0, 0]), TokenTree.chain([0])]), target_probs


def spoilt(trees: TreeBatch, **changes: list) -> TreeBatch:
    """The batch with another first row, or with other rows."""
    arrays = {
        name: value if isinstance(value[0], list) else [value, getattr(trees, name)[1].tolist()]
        for name, value in changes.items()
    }
    return dataclasses.replace(trees, **{name: torch.tensor(value) for name, value in arrays.items()})


UNIFORMS = torch.full((2, 3), 0.5)


@pytest.mark.parametrize("name", TREE_RULES)
def test_invalid_trees_raise(name: str) -> None:
    trees, target_probs = two_rows()
    trees = dataclasses.replace(trees, is_without_replacement=torch.zeros(2, 3, dtype=torch.bool))
    target_probs = target_probs.nan_to_num(1 / 3)
    assert len(verify_dense(RULES[name], trees, target_probs, UNIFORMS, UNIFORMS)) == 2
    wrong = [changes for changes, _ in WRONG_VALUES if "nan" not in str(changes)]
    for changes in (*wrong, {"parents": [[-1, 0, 0], [-1, -2, 0]]}):
        with pytest.raises(InvalidTreeError):
            verify_dense(RULES[name], spoilt(trees, **changes), target_probs, UNIFORMS, UNIFORMS)
    with pytest.raises(LogitsError, match="drafter's distributions hold NaN"):
        verify_dense(
            RULES["traversal"], spoilt(trees, draft_probs=[[0.5, float("nan"), 0.5]]), target_probs, UNIFORMS, UNIFORMS
        )


NONE = ([torch.nan, 0.5, 0.5], [0, 0, 0])
"""These mean that there is no distribution, which only a root must have."""
WRONG = ([torch.inf, 0, 0], [0.5, 0.5, 0.5], [1.5, -0.5, 0], [1, -1, 0])


@pytest.mark.parametrize("name", TREE_RULES)
def test_invalid_distributions_raise(name: str) -> None:
    trees, target_probs = two_rows()
    for probs, (row, node) in (*product(WRONG, ((0, 0), (0, 2), (1, 0))), *product(NONE, ((0, 0), (1, 0)))):
        spoilt_probs = target_probs.clone()
        spoilt_probs[row, node] = torch.tensor(probs, dtype=torch.float64)
        with pytest.raises(LogitsError):
            verify_dense(RULES[name], trees, spoilt_probs, UNIFORMS, UNIFORMS)
    for score in (torch.nan, torch.inf, -torch.inf):  # Greedy decoding's.
        target_probs[1, 0] = score
        with pytest.raises(LogitsError):
            verify_scores(trees, target_probs)


def test_a_rule_without_a_dense_form_is_verified_tree_by_tree() -> None:
    class Renamed(TargetWalk):
        pass

    trees, target_probs = two_rows()
    uniforms = torch.full((2, 3), 0.4)
    assert not has_dense_form(Renamed())
    dense = verify_dense(TargetWalk(), trees, target_probs, uniforms, uniforms)
    assert verify(trees, target_probs, Renamed(), coins=uniforms, draws=uniforms) == dense
    with pytest.raises(LogitsError):
        verify(trees, target_probs * 2, Renamed())
    with pytest.raises(VocabularyMismatchError):
        verify(spoilt(trees, tokens=[0, 1, 3]), target_probs, Renamed())
