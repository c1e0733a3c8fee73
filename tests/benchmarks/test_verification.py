"""The verification benchmark at test size: its expectations against enumeration, its report on a tiny model."""

import argparse
import json
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama
from torch import Tensor

from benchmarks.common import recorded
from benchmarks.common.acceptance import (
    TREES,
    Context,
    Kind,
    accepted_by_rule,
    binary_paths,
    grow,
    inner_contexts,
    rank_paths,
    sampled_bound,
    target_paths,
)
from benchmarks.common.estimates import quotient
from benchmarks.common.prompts import Prompt
from benchmarks.common.recorded import RecordedDistributions, without_layers
from benchmarks.verification import __main__ as verification
from benchmarks.verification.report import DEFAULT, DETERMINISTIC, factors, report
from treespec.hf import TreeScorer
from treespec.lab.store import Store
from treespec.literature.optimum import shape_inclusion, tree_bound
from treespec.testing import enumerate_traces
from treespec.tree import IID, WITHOUT_REPLACEMENT
from treespec.verification import RULES


class ToyDistributions:
    """A target whose scores are normal in every context, and a draft whose scores are those plus normal noise."""

    def __init__(self, seed: int, vocab_size: int = 5, noise: float = 0.8) -> None:
        self._seed, self._size, self._noise = seed, vocab_size, noise
        self._pairs: dict[Context, Tensor] = {}

    def target(self, contexts: Sequence[Context]) -> list[Tensor]:
        return [self._pair(context)[0] for context in contexts]

    def draft(self, contexts: Sequence[Context]) -> list[Tensor]:
        return [self._pair(context)[1] for context in contexts]

    def _pair(self, context: Context) -> Tensor:
        if context not in self._pairs:
            seed = hash((self._seed, *context)) % 2**63  # Hashes of integers are the same in every process.
            normal = torch.randn(2, self._size, generator=torch.Generator().manual_seed(seed))
            target = 1.5 * normal[0]
            self._pairs[context] = torch.stack([target, target + self._noise * normal[1]]).softmax(-1)
        return self._pairs[context]


@pytest.mark.parametrize("kind", TREES)
def test_mean_accepted_equals_plain_enumeration(kind):
    distributions = ToyDistributions(seed=1)
    tree = grow(TREES[kind], 6, distributions, [0, 1], seed=2)[1]
    paths = [tuple(tree.token(i) for i in tree.path_to(node)) for node in range(tree.num_nodes)]
    assert {paths[node] for node in inner_contexts(tree)} == set(inner_contexts(tree).values())
    target_distributions = [distribution.double() for distribution in distributions.target(paths)]
    found = accepted_by_rule(tree, distributions)
    assert {"target_walk", "recursive", "traversal"} <= set(found)
    for name, accepted in found.items():
        traces = enumerate_traces(
            lambda rng, name=name: RULES[name].verify(tree, target_distributions.__getitem__, rng)
        )
        assert accepted == pytest.approx(sum(float(w) * v.num_accepted for w, v in traces), abs=1e-5), name


def test_shapes():
    assert binary_paths(8) == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0)]
    assert rank_paths(5) == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    for size in verification.SIZES:
        for name, kind in TREES.items():
            num_nodes = grow(kind, size, ToyDistributions(0, vocab_size=40), [0], seed=0)[0].num_nodes
            assert num_nodes == size or (name == "stochastic beam" and size - 2 < num_nodes < size)


@pytest.mark.parametrize("siblings", [IID, WITHOUT_REPLACEMENT])
def test_sampled_bound_has_the_mean_of_the_whole_tree_bound(siblings):
    probs, size = ToyDistributions(3, vocab_size=6, noise=2.0), 6
    kind = Kind(lambda n: None, siblings=siblings)  # pyright: ignore
    samples = [sampled_bound(kind, size, probs, path) for path in target_paths(probs, [0] * 2000, 3, seed=0)]
    inclusion = shape_inclusion(
        [-1, 0, 0, 1, 1, 2], lambda path: probs.draft([(0, *path)])[0].numpy(), siblings == WITHOUT_REPLACEMENT
    )
    exact = tree_bound(lambda path: probs.target([(0, *path)])[0].numpy(), inclusion, 2)
    assert exact < 1.9
    assert np.mean(samples) == pytest.approx(exact, abs=4 * np.std(samples) / 2000**0.5)


@torch.no_grad()
def test_recorded_distributions_are_those_of_plain_passes(monkeypatch):
    """Texts of several lengths, one of which is asked for more, and a scorer that starts again in between."""
    monkeypatch.setattr(recorded, "MANY_PENDING", 3)
    model, ids = tiny_llama(), prompt()[0]
    texts = [ids, ids[:-4]]
    distributions = RecordedDistributions(TreeScorer(model), TreeScorer(noisy_copy(model)), texts, 0.6)
    for contexts in ([(0, 5, 6, 7), (0,), (1, 5), (0, 5, 8)], [(1,), (1, 5, 9), (0, 5, 6, 7)], [(1, 5, 9, 2)]):
        for context, distribution in zip(contexts, distributions.target(contexts), strict=True):
            path = torch.tensor(context[1:], dtype=torch.int64)
            logits = model(torch.cat([texts[context[0]], path])[None]).logits[0, -1]
            assert torch.allclose(distribution, (logits / 0.6).softmax(-1), atol=1e-5)
    assert not torch.allclose(distributions.draft([(0,)])[0], distributions.target([(0,)])[0], atol=1e-3)


def test_finished_contexts_are_not_measured_again(tmp_path):
    path = tmp_path / "s" / "store.jsonl"
    assert Store(path).get("a", lambda: {"x": (1,)}) == {"x": [1]}
    again = Store(path)
    assert again.get("a", lambda: pytest.fail("measured again")) == {"x": [1]}
    again.get("b", lambda: 2)
    path.write_text(path.read_text()[:-3])  # It was stopped while it wrote.
    cut = Store(path)
    assert [cut.get(key, lambda: 3) for key in "ab"] == [{"x": [1]}, 3]
    assert Store(path).get("b", lambda: pytest.fail("measured again")) == 3


def test_ratios_are_paired_and_whole_texts_are_drawn():
    above, below = np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0])
    assert quotient(above, below, [0, 1, 2]) == (2.0, 2.0, 2.0)
    ratio, low, high = quotient(above, below[::-1], [0, 1, 2])
    assert low < ratio < high
    assert quotient(above, below[::-1], [5, 5, 5]) == (2.0, 2.0, 2.0), "one text alone says nothing of the spread"


def test_halves_choose_for_each_other():
    """Two rules, each the best on one half only: with hindsight either half would take its own."""
    best, worst = [3.0, 1.0, 3.0, 1.0], [1.0, 3.0, 1.0, 3.0]
    part = {
        f"n=8, {DETERMINISTIC}": {"target_walk": [1.0] * 4},
        f"n=8, {DEFAULT[0]}": {"traversal": best, "recursive": worst, "threshold": [9.0] * 4},
    }
    found = factors(part, [0, 1, 2, 3])
    assert found[8, "best"].accepted[0] == 1.0
    assert set(found[8, "best"].choices) == {(DEFAULT[0], "traversal"), (DEFAULT[0], "recursive")}
    assert found[8, "default"].accepted[0] == 2.0
    assert found[8, "best"].num_choices == 2


@pytest.mark.slow
def test_whole_run_on_a_tiny_model(monkeypatch, tmp_path):
    model = tiny_llama(vocab_size=97, num_layers=3)
    encoded = {"input_ids": prompt(2, vocab_size=97), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}
    monkeypatch.setattr(verification, "without_layers", lambda model: without_layers(model, (1,)))
    monkeypatch.setattr(recorded, "encode", lambda *_: encoded)
    monkeypatch.setattr(verification, "prompts", lambda: [Prompt("one", ""), Prompt("two", "")])
    monkeypatch.setattr(verification, "SIZES", (4, 8))
    tokenizer = SimpleNamespace(eos_token_id=0)
    args = argparse.Namespace(contexts=4, draws=1, bound_paths=2, new_tokens=6, seed=0)
    results = verification.measure(args, Store(None), model, tokenizer, tmp_path)  # pyright: ignore[reportArgumentType]
    about, trees = results["T=1.0"]["contexts"], results["T=1.0"]["cells"]
    assert trees["n=8, chain"]["block"] == pytest.approx(trees["n=8, chain"]["traversal"], abs=1e-5)
    assert set(factors(trees, about["text"])) == {(4, "best"), (4, "default"), (8, "best"), (8, "default")}
    assert about["text"] == [0, 0, 1, 1]
    assert 0 < min(about["overlap"]) <= max(about["overlap"]) <= 1
    run = vars(args) | {"seconds": 1, "load_average": 0.0, "load_average_after": 0.0}
    text = report(json.loads(json.dumps(run | {"results": results})))
    for name in RULES:
        assert name in text
    assert "factor, accepted draft tokens" in text
