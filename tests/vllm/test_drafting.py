"""One drafter for requests that join, leave, pause and come back: it drafts as one that has always known them."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from treespec import BestFirst, Merge, SuffixLookup, SuffixStore, TokenRecycling, TreeBatch, Verdict
from treespec.drafters.registry import DRAFTERS
from treespec.errors import ConfigError
from treespec.protocols import Scores, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree.history import History
from treespec.vllm.drafting import COLD_DRAFTS, EAGER_STEPS, Drafting, ServedRow, make_drafter
from treespec.vllm.drafts import depth_first
from treespec.vllm.options import Options

VOCAB = 6


class Server:
    """Requests of random texts; a step verifies what was drafted for some of them against random tokens."""

    def __init__(self, drafter: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.drafting = Drafting(Options(7, drafter, 8), VOCAB)
        self.texts: dict[str, list[int]] = {}
        self.drafts: dict[str, TreeBatch] = {}
        self.number = 0

    def step(self) -> tuple[list[ServedRow], TreeBatch]:
        for _ in range(int(self.rng.integers(0, 3))):
            self.number += 1
            self.texts[f"r{self.number}"] = self.rng.integers(0, VOCAB, int(self.rng.integers(1, 30))).tolist()
        for request in list(self.texts):
            if self.rng.random() < 0.1:
                del self.texts[request]
        active = [request for request in self.texts if self.rng.random() < 0.8]
        self.rng.shuffle(active)
        rows, trees = [], []
        for number, request in enumerate(active):
            tree = self.drafts.get(request, TreeBatch(torch.tensor([[self.texts[request][-1]]]), torch.tensor([[-1]])))
            if tree.trees[0].token(0) != self.texts[request][-1]:
                tree = TreeBatch(torch.tensor([[self.texts[request][-1]]]), torch.tensor([[-1]]))
            leaf = int(self.rng.integers(0, tree.trees[0].num_nodes))
            path = tree.trees[0].path_to(leaf)
            emitted = [*(tree.trees[0].token(node) for node in path[1:]), int(self.rng.integers(0, VOCAB))]
            self.texts[request] += emitted
            text = self.texts[request]
            room = int(self.rng.integers(1, 12))
            verdict = Verdict(path, emitted[-1], False)
            rows.append(ServedRow(request, number, verdict, emitted, lambda text=text: list(text), len(text), room))
            trees.append(tree.trees[0])
        if not rows:
            return self.step()
        batch = TreeBatch.from_trees(trees)
        sizes = batch.num_nodes.tolist()
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        logits = torch.from_numpy(self.rng.normal(size=(sum(sizes), VOCAB)))
        self.drafting.update(rows, batch, logits, starts)
        proposed = self.drafting.propose(rows)
        for row in rows:
            single = proposed.trees[row.tree_row]
            self.drafts[row.request] = TreeBatch.from_trees([single])
        return rows, proposed


@pytest.mark.parametrize("drafter", ["recycling", "suffix", "merge"])
def test_trees_are_those_of_the_requests_and_fit_them(drafter: str) -> None:
    server = Server(drafter, 0)
    for _ in range(40):
        rows, trees = server.step()
        assert trees.is_valid
        for row, tree in zip(rows, trees.trees, strict=True):
            assert tree.token(0) == server.texts[row.request][-1]
            assert max(tree.depths) < row.room
            assert all(parent <= node for node, parent in enumerate(tree.parent_list))
        assert server.drafting.requests == [] or set(server.drafting.requests) <= {row.request for row in rows} | set(
            server.texts
        )


def test_suffix_lookup_knows_each_text_as_if_from_the_start() -> None:
    server = Server("suffix", 1)
    assert isinstance(server.drafting.drafter, SuffixLookup)
    server.drafting.drafter.store = None
    for _ in range(30):
        rows, trees = server.step()
        for row, tree in zip(rows, trees.trees, strict=True):
            if max(r.room for r in rows) < 2:
                continue
            fresh = SuffixLookup()
            ids = torch.tensor([server.texts[row.request]])
            fresh.start(session(ids))
            expected = fresh.propose(max(r.room for r in rows) - 1)
            expected = depth_first(expected.limit_depth([row.room - 1]))
            assert tree.token_list == expected.trees[0].token_list
            assert tree.parent_list == expected.trees[0].parent_list


def session(ids: torch.Tensor) -> Session:
    history = History(ids, torch.ones_like(ids, dtype=torch.bool))
    return Session(history, True, NoProcessors(), torch.Generator(), torch.device("cpu"), VOCAB, [0], BestFirst(8))


def test_the_store_gets_what_requests_that_left_have_written() -> None:
    server = Server("suffix", 2)
    for _ in range(60):
        server.step()
    drafter: Any = server.drafting.drafter
    assert drafter.store.num_tokens > 100
    assert len(drafter.store._recorded) <= 1 + server.number
    assert len(drafter._rows) == len(server.drafting.requests)


def test_running_texts_are_not_in_the_store() -> None:
    drafter = SuffixLookup(store=SuffixStore())
    ids = torch.tensor([[1, 2, 3]])
    drafter.start(session(ids))
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


@pytest.mark.parametrize(("name", "kind"), [("recycling", TokenRecycling), ("suffix", SuffixLookup), ("merge", Merge)])
def test_drafters_by_name(name: str, kind: type) -> None:
    assert type(make_drafter(Options(drafter=name))) is kind


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
