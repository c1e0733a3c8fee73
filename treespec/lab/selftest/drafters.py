"""Drafters of the self-test: one plants the true continuation, one draws from a distortion of the target."""

import random
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from treespec.drafters.base import SessionSource
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.testing import Context, Continuations
from treespec.tree import TokenTree, TreeBatch


class Static(SessionSource):
    """Base of drafters that learn nothing; it remembers where the prompt ended."""

    def start(self, session: Session) -> None:
        self._session, self._start = session, session.history.lengths[0]

    def update(self, step: VerifiedStep) -> None:
        pass

    def select_rows(self, rows: Sequence[int]) -> None:
        pass


class Planted(Static):
    """Random small trees of point masses, with the true token at a random rank of each level.

    Args:
        continuations: per row of the caller's batch, the tokens that plain decoding emits after the prompt.
        vocab_size: wrong tokens are drawn below it.
        max_width: children of a node are 2 to this many; 1 makes chains.
        max_depth: levels are 1 to this many.
        miss_rate: how often a level lacks the true token.
        seed: of all choices.
    """

    def __init__(
        self,
        continuations: Sequence[Sequence[int]],
        vocab_size: int,
        max_width: int = 4,
        max_depth: int = 3,
        miss_rate: float = 0.2,
        seed: int = 0,
    ) -> None:
        self._continuations, self._vocab_size = continuations, vocab_size
        self._max_width, self._max_depth, self._miss_rate = max_width, max_depth, miss_rate
        self._random = random.Random(seed)

    def propose(self, max_depth: int) -> TreeBatch:
        return TreeBatch.from_trees([self._tree(index, max_depth) for index in range(self._session.history.num_rows)])

    def _tree(self, index: int, max_depth: int) -> TokenTree:
        history = self._session.history
        depth = self._random.randint(1, min(self._max_depth, max_depth))
        start = history.lengths[index] - self._start
        truth = list(self._continuations[self._session.row_ids[index]][start : start + depth])
        tokens, parents = [int(history.row(index)[-1])], [-1]
        parent = 0
        for token in truth:
            level = self._level(token)
            first = len(tokens)
            tokens += level
            parents += [parent] * len(level)
            # Some levels grow below a wrong token: rejecting it must reject them too.
            is_planted = token in level and self._random.random() > self._miss_rate / 2
            parent = first + (level.index(token) if is_planted else self._random.randrange(len(level)))
        return TokenTree(torch.tensor(tokens, device="cpu"), torch.tensor(parents, device="cpu"))

    def _level(self, token: int) -> list[int]:
        """Sibling tokens, all different, with or without the true one."""
        width = self._random.randint(min(2, self._max_width), self._max_width)
        wrong = self._random.sample([other for other in range(self._vocab_size) if other != token], width)
        if self._random.random() >= self._miss_rate:
            wrong[self._random.randrange(width)] = token
        return wrong


class TableDrafter(Static):
    """Draws from the table's distributions, flattened and disturbed by noise: half of what is drafted is rejected."""

    def __init__(self, table: Continuations, vocab_size: int) -> None:
        self._table, self._vocab_size = table, vocab_size
        self._rows: dict[Context, Tensor] = {}

    def propose(self, max_depth: int) -> TreeBatch:
        return self._policy.grow(self, max_depth)

    def expand(self, frontier: Frontier) -> Proposal:
        history = self._session.history
        # The table begins after the first new token, which is the same in all texts.
        before = [tuple(history.row(row)[self._start + 1 :].tolist()) for row in range(history.num_rows)]
        rows = [
            torch.stack([self._row((*emitted, *(path or ()))) for path in paths])
            for emitted, paths in zip(before, frontier.path_tokens(), strict=True)
        ]
        return Proposal(torch.stack(rows).to(self._session.device))

    def _row(self, context: Context) -> Tensor:
        """The draft distribution [V] after a context; any where the table ends."""
        if context not in self._rows:
            exact = self._table.probs.get(context, {0: 1.0, 1: 1.0})
            noise = seeded_rand(context, len(exact))
            weights = torch.tensor(list(exact.values()), dtype=torch.float32, device="cpu").sqrt()
            weights *= (6 * noise - 3).exp()
            row = torch.zeros(self._vocab_size, dtype=torch.float32, device="cpu")
            row[list(exact)] = weights / weights.sum()
            self._rows[context] = row
        return self._rows[context]


def seeded_rand(context: Context, size: int) -> Tensor:
    """Uniform numbers, float32 [size], that are a function of the context."""
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(repr(context).encode()))
    return torch.rand(size, generator=generator, dtype=torch.float32, device="cpu")
