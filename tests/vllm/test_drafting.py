"""One drafter for requests that join, leave, pause and come back: it drafts as one that has always known them."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.engines.server import Server, alone, num_like_alone

from treespec import Merge, SuffixLookup, SuffixStore, TokenRecycling, TreeBatch, Verdict
from treespec.drafters.registry import DRAFTERS
from treespec.errors import ConfigError
from treespec.protocols import Scores, VerifiedStep
from treespec.vllm.drafting import COLD_DRAFTS, EAGER_STEPS, Drafting, ServedRow, make_drafter
from treespec.vllm.options import Options

VOCAB = 6


@pytest.mark.parametrize(("name", "kind"), [("recycling", TokenRecycling), ("suffix", SuffixLookup), ("merge", Merge)])
def test_trees_are_those_of_the_requests_and_fit_them(name: str, kind: type) -> None:
    server = Server(Options(7, name, 8), 0, vocab=VOCAB)
    assert type(server.drafting.drafter) is kind
    for _ in range(15):
        rows, trees = server.step()
        for row, tree in zip(rows, trees.trees, strict=True) if trees is not None else ():
            assert tree.token(0) == server.texts[row.request][-1]
            assert max(tree.depths) < row.room
            assert all(parent <= node for node, parent in enumerate(tree.parent_list))
        assert trees is None or trees.is_valid
        assert set(server.drafting.requests) <= {row.request for row in rows}


def test_suffix_lookup_knows_each_text_as_if_from_the_start_and_stores_those_that_left() -> None:
    server = Server(Options(7, "suffix", 8), 1, vocab=VOCAB)
    drafter: Any = server.drafting.drafter
    drafter.store, store = None, drafter.store
    assert num_like_alone(server, 15, lambda text, depth: alone(SuffixLookup(), text, depth)) > 20
    drafter.store = store
    for _ in range(15):
        server.step()
    assert store.num_tokens > 50
    assert len(store._recorded) <= 1 + len(server.tables)
    assert len(drafter._rows) == len(server.drafting.requests)


def test_running_texts_are_not_in_the_store() -> None:
    drafter = SuffixLookup(store=SuffixStore())
    alone(drafter, [1, 2, 3])
    drafter._rows[0].append([4, 5])
    drafter.add_rows(0)
    assert drafter.store is not None
    assert drafter.store.text.tokens.tolist() == [-1]
    drafter.select_rows([])
    drafter.add_rows(0)
    assert drafter.store.text.tokens.tolist()[-3:] == [4, 5, -1]


def plain_step(drafting: Drafting, texts: dict[str, list[int]], rng: np.random.Generator) -> list[ServedRow]:
    """A step without drafts that every request of `texts` emits a token in."""
    rows = []
    for number, (request, text) in enumerate(texts.items()):
        token = int(rng.integers(0, VOCAB))
        text.append(token)
        rows.append(ServedRow(request, number, Verdict((0,), token, False), [token], partial(list, text), len(text), 9))
    return rows


def learn(drafting: Drafting, rows: list[ServedRow]) -> None:
    roots = torch.zeros(len(rows), 1, dtype=torch.int64)
    drafting.update(rows, TreeBatch(roots, roots - 1), torch.zeros(len(rows), VOCAB), list(range(len(rows))))


def test_steps_that_were_passed_over_are_read_at_the_next_draft() -> None:
    rng, drafting = np.random.default_rng(0), Drafting(Options(7, "suffix", 8), VOCAB)
    texts = {name: rng.integers(0, VOCAB, 12).tolist() for name in ("a", "b", "c")}
    for _ in range(EAGER_STEPS):
        rows = plain_step(drafting, texts, rng)
        assert not drafting.is_resting
        learn(drafting, rows)
    for step in range(20):
        if step == 7:
            del texts["b"]
            texts["d"] = rng.integers(0, VOCAB, 5).tolist()
        plain_step(drafting, texts, rng)
        assert drafting.is_resting
    rows = plain_step(drafting, texts, rng)
    learn(drafting, rows)
    assert isinstance(drafting.drafter, SuffixLookup)
    found = dict(zip(drafting.requests, drafting.drafter._rows, strict=True))
    assert {name: row.tokens.tolist()[1:] for name, row in found.items()} == texts
    assert [drafting._history.tokens(row).tolist() for row in range(3)] == [texts[name] for name in drafting.requests]
    drafting.propose(rows)
    plain_step(drafting, texts, rng)
    assert not drafting.is_resting  # The outcome of a draft is always learned.


@pytest.mark.parametrize("name", ["helpers.engines.drafters:Bigram", "registered"])
def test_drafters_of_the_users_own_see_every_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS._parts, "registered", "helpers.engines.drafters:Bigram")
    rng, drafting = np.random.default_rng(0), Drafting(Options(7, name, 8), VOCAB)
    for _ in range(3 * EAGER_STEPS):
        plain_step(drafting, {"a": [1, 2]}, rng)
        assert not drafting.is_resting
        drafting._num_plain += 1


def test_the_control_learns_nothing_from_the_first_drafts_which_load_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting, found = Drafting(Options(), VOCAB), []
    monkeypatch.setattr(drafting.control, "learn", lambda _, *times: found.append(times))
    step = VerifiedStep(TreeBatch(torch.tensor([[0]]), torch.tensor([[-1]])), [], Scores(torch.zeros(0)), [])
    for number in range(COLD_DRAFTS + 1):
        drafting.report(step, 0.0, 10.0 + number)
        drafting.report(step, 1.0 + number, 20.0)
    assert found == [*((0.0, 10.0 + number) for number in range(COLD_DRAFTS + 1)), (1.0 + COLD_DRAFTS, 20.0)]


def test_warm_starts_by_name() -> None:
    drafter = make_drafter(Options(drafter="recycling", warm_start="SmolLM2-135M-Instruct"))
    assert isinstance(drafter, TokenRecycling)
    assert len(drafter.table) == 49152


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere:Drafter", "cannot be imported"),
        ("treespec:Nothing", "cannot be imported"),
        ("treespec:__version__", "by its class or a function"),
        ("builtins:object", "add_rows"),
    ],
)
def test_other_drafters_must_serve(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_drafter(Options(drafter=path))
