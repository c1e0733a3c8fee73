"""The dense forms never wait for the device and report bad values as flags; test_agreement.py compares verdicts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from helpers.toys import as_batch, drafted_batch, random_chain, random_drafted, verify_rows
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation.logits_process import (
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from treespec.engine.stats import SpeculationStats
from treespec.engine.target_probs import TargetProbs
from treespec.errors import InvalidTreeError, LogitsError, VocabularyMismatchError
from treespec.hf.generation.processors import TreeProcessors
from treespec.protocols import History
from treespec.testing import MIXED, FixedShape, ToyDrafter, distribution_pairs
from treespec.tree import POINT_MASS, ROOT_PARENT, TokenTree, TreeBatch
from treespec.verification import RULES, ArgmaxSource, TargetWalk, resolve, verify, verify_dense
from treespec.verification.dense.forms import decode, has_dense_form, pack, pack_greedy
from treespec.verification.dispatch import verify_batch, verify_greedy

TREE_RULES = ("target_walk", "recursive", "traversal")
CHAIN_RULES = ("token", "block")
HOST_READS = {
    "_local_scalar_dense", "nonzero", "nonzero_numpy", "masked_select", "is_nonzero", "item", "equal", "unique",
    "_unique2", "unique_consecutive", "repeat_interleave", "allclose",
}  # fmt: skip


def test_greedy_agrees_with_the_argmax_walk() -> None:
    rng = np.random.default_rng(0)
    trees, target_probs = as_batch([random_drafted(rng, 5) for _ in range(500)])
    scores = target_probs.log()  # -inf where the distribution is zero, as processors leave it.
    expected = [TargetWalk().verify(t, scores[b].__getitem__, ArgmaxSource()) for b, t in enumerate(trees.trees)]
    assert decode(pack_greedy(trees, scores), trees) == expected
    assert max(verdict.num_accepted for verdict in expected) >= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_may_differ(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    trees, target_probs = as_batch([random_drafted(rng, 4) for _ in range(300)])
    assert trees.draft_probs is not None
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    for distributions_dtype in (torch.float32, torch.float64):
        cast = dataclasses.replace(trees, draft_probs=trees.draft_probs.to(distributions_dtype))
        for name in TREE_RULES:
            args = (RULES[name], cast, target_probs.to(dtype), coins, draws)
            assert verify_dense(*args) == verify_rows(*args)


class NoHostReads(TorchDispatchMode):
    """Fails where an operator would wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        assert name not in HOST_READS, f"{name} waits for the device"
        has_bool_index = name.startswith("index") and any(
            isinstance(item, torch.Tensor) and item.dtype == torch.bool
            for arg in args
            if isinstance(arg, (list, tuple))
            for item in arg
        )
        assert not has_bool_index, f"{name} by a bool mask waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if has_dense_form(rule)])
def test_never_waits_for_the_device(name: str) -> None:
    rng = np.random.default_rng(2)
    shape = FixedShape.kary(1, 1) if name in CHAIN_RULES else FixedShape.kary(2, 2)
    _, trees, target_probs = drafted_batch(
        ToyDrafter(MIXED, shape, distribution_pairs(3, False)["generic"][1]), *targets()
    )
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    fresh = dataclasses.replace(trees)  # Nothing derived is cached yet.
    with NoHostReads():
        packed = pack(RULES[name], fresh, target_probs, coins, draws)
    assert decode(packed, fresh) == verify_rows(RULES[name], trees, target_probs, coins, draws)


def test_greedy_never_waits_for_the_device() -> None:
    trees, target_probs = as_batch([random_drafted(np.random.default_rng(3), 3)])
    fresh = dataclasses.replace(trees)
    with NoHostReads():
        packed = pack_greedy(fresh, target_probs)
    assert len(decode(packed, fresh)) == 1


TOP_P, PENALTY = TopPLogitsWarper(0.95), RepetitionPenaltyLogitsProcessor(1.2)


@pytest.mark.parametrize(
    ("name", "last", "is_sampling", "num_copies"),
    [
        ("auto", TOP_P, True, 1),
        ("auto", TOP_P, False, 1),
        ("recursive", TOP_P, True, 1),
        ("block", TOP_P, True, 2),  # Asks first whether the trees are chains.
        ("auto", PENALTY, True, 2),  # Looks at the path, so the trees are read before.
    ],
)
def test_a_whole_step_waits_once(
    name: str, last: LogitsProcessor, is_sampling: bool, num_copies: int, monkeypatch
) -> None:
    """Choice of the rule, processors, distributions and verdicts: nothing waits but the copies, of which there is
    one."""
    rng = np.random.default_rng(6)
    kind = random_chain if name == "block" else random_drafted
    trees, target_probs = as_batch([kind(rng, 4) for _ in range(30)])
    logits = target_probs.nan_to_num(0.25).log().float().clamp(min=-50)
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    history = History(torch.zeros(30, 1, dtype=torch.int64), torch.ones(30, 1, dtype=torch.bool))
    warpers = TreeProcessors([TemperatureLogitsWarper(0.8), last], num_rows=30)
    probs = TargetProbs(dataclasses.replace(trees), logits, history, warpers, list(range(30)), is_sampling)
    copies: list[torch.Size] = []
    read = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> list:
        copies.append(tensor.shape)
        return read(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    with NoHostReads():
        rule = resolve(name, is_sampling, probs.trees)
        verdicts = (
            verify_batch(rule, probs.trees, probs, coins, draws) if is_sampling else verify_greedy(probs.trees, probs)
        )
    assert len(copies) == num_copies
    monkeypatch.undo()
    if is_sampling:
        rule = RULES["traversal" if name == "auto" else name]
        assert verdicts == verify_rows(rule, trees, probs.dense(), coins, draws)
    assert max(verdict.num_accepted for verdict in verdicts) >= 2


@pytest.mark.parametrize("is_greedy", [False, True])
def test_the_trees_come_with_the_verdicts(is_greedy: bool, monkeypatch) -> None:
    """What the engine and its statistics ask for after verification is on the host already, and is the same."""
    rng = np.random.default_rng(4)
    trees, target_probs = as_batch([random_drafted(rng, 4) for _ in range(30)])
    expected, fresh = trees.trees, dataclasses.replace(trees)
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    if is_greedy:
        verdicts = decode(pack_greedy(fresh, target_probs), fresh)
    else:
        verdicts = verify_dense(RULES["traversal"], fresh, target_probs, coins, draws)
    emitted = [[0] * len(verdict.path) for verdict in verdicts]
    counted, stats = SpeculationStats(), SpeculationStats()
    counted.record(expected, verdicts, emitted)
    for name in ("tolist", "item", "cpu", "numpy", "__int__", "__bool__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: pytest.fail(f"{name} waits for the device"))
    stats.record(fresh.trees, verdicts, emitted)
    for tree, verdict, other in zip(fresh.trees, verdicts, expected, strict=True):
        assert [tree.token(node) for node in verdict.path] == [other.token(node) for node in verdict.path]
        assert (tree.token_list, tree.parent_list) == (other.token_list, other.parent_list)
    assert stats == counted


def test_the_watch_sees_host_reads() -> None:
    values = torch.ones(3)
    for read in (
        lambda: float(values[0]),
        lambda: values[values > 0],
        lambda: values.nonzero(),
        lambda: bool(values.all()),
    ):
        with NoHostReads(), pytest.raises(AssertionError, match="waits"):
            read()


def targets() -> tuple:
    return (distribution_pairs(3, False)["generic"][0],)


def two_rows() -> tuple[TreeBatch, torch.Tensor]:
    probs = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    pair = TokenTree(
        torch.tensor([0, 1, 2]), torch.tensor([ROOT_PARENT, 0, 0]), probs, torch.tensor([POINT_MASS, 0, 0])
    )
    single = TokenTree(torch.tensor([0]), torch.tensor([ROOT_PARENT]))
    target_probs = torch.full((2, 3, 3), 1 / 3, dtype=torch.float64)
    target_probs[1, 1:] = torch.nan  # Padding is never read.
    return TreeBatch.from_trees([pair, single]), target_probs


def spoilt(trees: TreeBatch, **changes: list) -> TreeBatch:
    return dataclasses.replace(trees, **{name: torch.tensor(value) for name, value in changes.items()})


@pytest.mark.parametrize("name", TREE_RULES)
@pytest.mark.parametrize(
    "changes",
    [
        {"parents": [[-1, 2, 0], [-1, -2, -2]]},
        {"parents": [[-1, -1, 0], [-1, -2, -2]]},
        {"parents": [[-1, 7, 0], [-1, -2, -2]]},
        {"parents": [[0, 0, 0], [-1, -2, -2]]},
        {"parents": [[-1, 0, 0], [-1, -2, 0]]},
        {"parents": [[-1, 0, -3], [-1, -2, -2]]},
        {"tokens": [[0, 1, 3], [0, 0, 0]]},
        {"tokens": [[0, 1, -1], [0, 0, 0]]},
        {"draft_index": [[-1, 0, 1], [-1, -1, -1]]},
        {"draft_index": [[-1, 0, -2], [-1, -1, -1]]},
        {"draft_probs": [[0.5, 0.3, 0.1]]},
        {"draft_probs": [[0.5, 0.6, -0.1]]},
        {"draft_probs": [[0.5, 0.0, 0.5]]},
        {"is_without_replacement": [[False, True, True], [False, False, False]], "tokens": [[0, 1, 1], [0, 0, 0]]},
    ],
)
def test_invalid_trees_raise_from_the_copy(name: str, changes: dict) -> None:
    trees, target_probs = two_rows()
    target_probs, uniforms = target_probs.nan_to_num(1 / 3), torch.full((2, 3), 0.5)
    assert len(verify_dense(RULES[name], trees, target_probs, uniforms, uniforms)) == 2
    with pytest.raises(InvalidTreeError):
        verify_dense(RULES[name], spoilt(trees, **changes), target_probs, uniforms, uniforms)


def test_nan_of_the_draft_raises_from_the_copy() -> None:
    trees, target_probs = two_rows()
    trees, uniforms = spoilt(trees, draft_probs=[[0.5, float("nan"), 0.5]]), torch.full((2, 3), 0.5)
    with pytest.raises(LogitsError, match="drafter's distributions hold NaN"):
        verify_dense(RULES["traversal"], trees, target_probs, uniforms, uniforms)


@pytest.mark.parametrize("name", TREE_RULES)
@pytest.mark.parametrize(
    "probs", [[torch.nan, 0.5, 0.5], [torch.inf, 0, 0], [0.5, 0.5, 0.5], [1.5, -0.5, 0], [0, 0, 0]]
)
def test_invalid_distributions_raise_from_the_copy(name: str, probs: list[float]) -> None:
    trees, target_probs = two_rows()
    uniforms = torch.full((2, 3), 0.5)
    for row, node in ((0, 0), (0, 2), (1, 0)):
        spoilt_probs = target_probs.clone()
        spoilt_probs[row, node] = torch.tensor(probs, dtype=torch.float64)
        with pytest.raises(LogitsError):
            verify_dense(RULES[name], trees, spoilt_probs, uniforms, uniforms)


@pytest.mark.parametrize("score", [torch.nan, torch.inf, -torch.inf])
def test_invalid_greedy_scores_raise_from_the_copy(score: float) -> None:
    trees, target_probs = two_rows()
    scores = target_probs.nan_to_num(torch.nan)
    scores[0, 1] = score
    with pytest.raises(LogitsError):
        decode(pack_greedy(trees, scores), trees)


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
        verify(spoilt(trees, tokens=[[0, 1, 3], [0, 0, 0]]), target_probs, Renamed())
