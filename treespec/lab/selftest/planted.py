"""A drafter that knows the answer: it plants the true continuation at random ranks among wrong tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from treespec.protocols import Session, VerifiedStep
from treespec.tree import TokenTree, TreeBatch


class Planted:
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
        self._continuations = continuations
        self._vocab_size = vocab_size
        self._max_width = max_width
        self._max_depth = max_depth
        self._miss_rate = miss_rate
        self._random = random.Random(seed)

    def start(self, session: Session) -> None:
        self._session = session
        self._prompt_length = session.history.lengths[0]

    def propose(self, max_depth: int) -> TreeBatch:
        return TreeBatch.from_trees([self._tree(index, max_depth) for index in range(self._session.history.num_rows)])

    def update(self, step: VerifiedStep) -> None:
        pass

    def select_rows(self, rows: Sequence[int]) -> None:
        pass

    def _tree(self, index: int, max_depth: int) -> TokenTree:
        history = self._session.history
        depth = self._random.randint(1, min(self._max_depth, max_depth))
        start = history.lengths[index] - self._prompt_length
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
