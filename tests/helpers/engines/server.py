"""Requests that come, pause and leave, as a server's drafter sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import zoo
from jaxtyping import Float
from torch import Tensor, nn

from treespec import TokenTree, Verdict
from treespec.policies import as_policy
from treespec.protocols import Session
from treespec.sampling import NoProcessors
from treespec.tree import TreeBatch
from treespec.tree.history import History
from treespec.vllm.drafting import EAGER_STEPS, Drafting, ServedRow
from treespec.vllm.options import Options

VOCAB, BLOCK, NUM_BLOCKS = zoo.VOCAB_SIZE, 4, 2000
NUM_NODES, SIZE = 8, 16


class Server:
    """Requests of random texts; a step verifies what was drafted for some of them against random tokens.

    A request's pages are written as its tokens are computed; a share `skipped` of the steps drafts nothing.
    """

    def __init__(
        self, options: Options, seed: int, reader: Any = None, skipped: float = 0.0, states_of: Any = None,
        vocab: int = VOCAB,
    ) -> None:  # fmt: skip
        self.reader, self.skipped, self.states_of, self.vocab = reader, skipped, states_of, vocab
        self.rng, self.texts, self.tables = np.random.default_rng(seed), dict[str, list[int]](), {}
        self.drafts: dict[str, TokenTree] = {}
        if states_of is not None:
            reader.make_pages(NUM_BLOCKS, BLOCK)
        self.drafting = Drafting(options, vocab, reader=reader)
        self.blocks = self.rng.permutation(NUM_BLOCKS).tolist()

    def step(self) -> tuple[list[ServedRow], TreeBatch | None]:
        """The requests of one step, and what is drafted for them, None where nothing is."""
        for _ in range(int(self.rng.integers(0, 3))):
            name = f"r{len(self.tables)}"
            self.texts[name] = self._tokens(int(self.rng.integers(1, 60)))
            self.tables[name] = [self.blocks.pop() for _ in range(40)]
        for name in [name for name in self.texts if self.rng.random() < 0.1]:
            self.blocks += self.tables[name]
            del self.texts[name]
        active = [name for name in self.texts if self.rng.random() < 0.8]
        if not active:
            return self.step()
        self.rng.shuffle(active)
        tables = np.array([self.tables[name] for name in active])
        verified = TreeBatch.from_trees([self._verified(name) for name in active])
        rows = list(map(self._emit, range(len(active)), active, verified.trees))
        if self.states_of is not None:
            for number, name in enumerate(active):
                self._write(self.texts[name][:-1], tables[number])
        if self.rng.random() < self.skipped:  # As after many plain steps.
            self.drafting._num_plain = EAGER_STEPS
            assert self.drafting.is_resting
            return rows, None
        unread, sizes = self.drafting.num_unread(rows), verified.num_nodes.tolist()
        logits = torch.from_numpy(self.rng.normal(size=(sum(sizes), self.vocab)))
        self.drafting.update(rows, verified, logits, np.cumsum([0, *sizes[:-1]]).tolist())
        left = self.drafting.num_unread(rows)  # A draft model has read what it drafted rightly.
        assert unread == left if self.states_of is not None else unread >= left
        if self.rng.random() < 0.3:
            return rows, None
        trees = self.drafting.propose(rows, tables)
        self.drafts |= zip(active, trees.trees, strict=True)
        return rows, trees

    def _tokens(self, number: int) -> list[int]:
        return self.rng.integers(0, self.vocab, number).tolist()

    def _verified(self, name: str) -> TokenTree:
        """The request's draft, or its root alone where its text has gone on without it."""
        root = self.texts[name][-1]
        tree = self.drafts.pop(name, None)
        return tree if tree is not None and tree.token(0) == root else TokenTree.chain([root])

    def _emit(self, number: int, name: str, tree: TokenTree) -> ServedRow:
        path = tree.path_to(int(self.rng.integers(tree.num_nodes)))
        emitted = [*(tree.token(node) for node in path[1:]), *self._tokens(1)]
        text = self.texts[name] = self.texts[name] + emitted
        room = int(self.rng.integers(1, 12))
        return ServedRow(name, number, Verdict(path, emitted[-1], False), emitted, lambda: list(text), len(text), room)

    def _write(self, text: list[int], table: np.ndarray) -> None:
        known = np.arange(len(text))
        written = self.states_of(text), np.tile(table, (len(known), 1)), known
        self.reader.pages.write(len(known), lambda: written)


def states_of(text: list[int], size: int = SIZE) -> Float[Tensor, "n H"]:
    """States of a pretended target, which depend on the tokens so far."""
    tokens = torch.tensor(text, dtype=torch.float64)
    sums = torch.stack([tokens.cumsum(0), tokens], 1)
    return torch.sin(sums @ torch.linspace(0.1, 2, 2 * size, dtype=torch.float64).view(2, size))


class ServedTarget(nn.Module):
    """A model of vLLM's as far as heads and MTP layers ask; of two layers, which returns their states."""

    def __init__(self, embed_tokens: nn.Module, lm_head: nn.Module | None = None) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head, self.layers = embed_tokens, lm_head or embed_tokens, [None] * 2
        for module in (self.embed_tokens, self.lm_head):
            vars(module)["org_vocab_size"] = len(module.get_parameter("weight"))

    @property
    def model(self) -> nn.Module:
        return self

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None: ...


def alone(drafter: Any, text: list[int], max_depth: int = 49, **prompt: Any) -> TreeBatch:
    """The draft of the transformers engine's drafter for one text; `prompt`: of its session."""
    ids = torch.tensor([text])
    history, policy = History(ids, torch.ones_like(ids, dtype=torch.bool)), as_policy(NUM_NODES)
    device, generator = torch.device("cpu"), torch.Generator()
    drafter.start(Session(history, False, NoProcessors(), generator, device, VOCAB, [0], policy, **prompt))
    return drafter.propose(max_depth)


def paths_of(trees: TreeBatch, row: int) -> dict[tuple[int, ...], float]:
    """The nodes of a row's tree by their tokens, with their values."""
    tree = trees.trees[row]
    values = [1.0] * tree.num_nodes if trees.values is None else trees.values[row].tolist()
    return {tuple(tree.token(node) for node in tree.path_to(leaf)): values[leaf] for leaf in range(tree.num_nodes)}


def num_like_alone(server: Server, num_steps: int, expected: Callable[[list[int], int], TreeBatch]) -> int:
    """How many trees were drafted in so many steps, all of them what `expected` drafts for their text alone."""
    number = 0
    for _ in range(num_steps):
        rows, trees = server.step()
        most = max(row.room for row in rows) - 1
        for index, row in enumerate(rows if trees is not None and most else ()):
            found = expected(server.texts[row.request], most).limit_depth([row.room - 1])
            assert paths_of(trees, index) == pytest.approx(paths_of(found, 0), rel=1e-3)
            number += 1
    return number
