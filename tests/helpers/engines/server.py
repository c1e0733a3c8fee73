"""Requests that come, pause and leave, as a server's drafter sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from helpers import zoo

from treespec import TokenTree, Verdict
from treespec.policies import as_policy
from treespec.protocols import Session
from treespec.sampling import NoProcessors
from treespec.tree import TreeBatch
from treespec.tree.history import History
from treespec.vllm.drafting import EAGER_STEPS, Drafting, ServedRow
from treespec.vllm.options import Options

VOCAB, BLOCK, NUM_BLOCKS = zoo.VOCAB_SIZE, 4, 2000
NUM_NODES = 8


class Server:
    """A request's pages are written as its tokens are computed; a share `skipped` of the steps drafts nothing."""

    def __init__(self, reader: Any, options: Options, seed: int, skipped: float = 0.0, states_of: Any = None) -> None:
        self.reader, self.skipped, self.states_of = reader, skipped, states_of
        self.rng, self.texts, self.tables = np.random.default_rng(seed), {}, {}
        if states_of is not None:
            reader.make_pages(NUM_BLOCKS, BLOCK)
        self.drafting = Drafting(options, VOCAB, reader=reader)
        self.blocks = list(range(NUM_BLOCKS))
        self.rng.shuffle(self.blocks)

    def step(self) -> tuple[list[ServedRow], TreeBatch]:
        """The requests of one step, and what is drafted for them; trees without values where nothing is."""
        for _ in range(int(self.rng.integers(0, 3))):
            name = f"r{len(self.tables)}"
            self.texts[name] = self.rng.integers(0, VOCAB, int(self.rng.integers(1, 60))).tolist()
            self.tables[name] = [self.blocks.pop() for _ in range(40)]
        for name in [name for name in self.texts if self.rng.random() < 0.1]:
            self.blocks += self.tables[name]
            del self.texts[name]
        active = [name for name in self.texts if self.rng.random() < 0.8]
        if not active:
            return self.step()
        self.rng.shuffle(active)
        tables = np.array([self.tables[name] for name in active])
        rows = [self._emit(number, name, tables) for number, name in enumerate(active)]
        trees = TreeBatch(torch.zeros(len(rows), 3, dtype=torch.int64), torch.tensor([[-1, 0, 1]] * len(rows)))
        logits = torch.zeros(3 * len(rows), VOCAB)
        if self.rng.random() < self.skipped:  # As after many plain steps.
            self.drafting._num_plain = EAGER_STEPS
            assert self.drafting.is_resting
            return rows, trees
        unread = self.drafting.num_unread(rows)
        self.drafting.update(rows, trees, logits, list(range(0, 3 * len(rows), 3)))
        left = self.drafting.num_unread(rows)  # A draft model has read what it drafted rightly.
        assert unread == left if self.states_of is not None else unread >= left
        return rows, self.drafting.propose(rows, tables) if self.rng.random() < 0.7 else trees

    def _emit(self, number: int, name: str, tables: np.ndarray) -> ServedRow:
        emitted = self.rng.integers(0, VOCAB, int(self.rng.integers(1, 4))).tolist()
        text = self.texts[name] = self.texts[name] + emitted
        if self.states_of is not None:
            known = np.arange(len(text) - 1)
            written = self.states_of(text[:-1]), tables[[number] * len(known)], known
            self.reader.pages.write(len(known), lambda: written)
        verdict = Verdict(tuple(range(len(emitted))), emitted[-1], False)
        return ServedRow(name, number, verdict, emitted, lambda: list(text), len(text), 50)


def alone(drafter: Any, text: list[int], **prompt: Any) -> TreeBatch:
    """The draft of the transformers engine's drafter for one text; `prompt`: of its session."""
    ids = torch.tensor([text])
    history, policy = History(ids, torch.ones_like(ids, dtype=torch.bool)), as_policy(NUM_NODES)
    device, generator = torch.device("cpu"), torch.Generator()
    drafter.start(Session(history, False, NoProcessors(), generator, device, VOCAB, [0], policy, **prompt))
    return drafter.propose(49)


def paths_of(tree: TokenTree) -> list[tuple[int, ...]]:
    """The nodes of a tree by their tokens."""
    return sorted(tuple(tree.token(node) for node in tree.path_to(leaf)) for leaf in range(tree.num_nodes))


def num_like_alone(server: Server, num_steps: int, expected: Any) -> int:
    """How many trees were drafted in so many steps, all of them what `expected` drafts for their text alone."""
    number = 0
    for _ in range(num_steps):
        rows, trees = server.step()
        for row, tree in zip(rows, trees.trees, strict=True):
            if trees.values is not None:
                assert paths_of(tree) == paths_of(expected(server.texts[row.request]).trees[0])
                number += 1
    return number
