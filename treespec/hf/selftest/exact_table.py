"""The exact distribution of a few sampled tokens, and a drafter that draws from a distortion of it."""

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.tree import TreeBatch

Context = tuple[int, ...]
"""New tokens after the prompt."""


class ExactTable:
    """The target's processed distributions after every possible continuation of a prompt, by uncached passes.

    Args:
        model: the target.
        prompt: int64 [P].
        processors: a function of (ids int64 [B, L], scores float [B, V]), the call's own logits processors.
        num_tokens: the length of the continuations; with a top-k of 4 there are 4 ** num_tokens.
    """

    @torch.no_grad()
    def __init__(self, model: Any, prompt: Tensor, processors: Any, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.probs: dict[Context, dict[int, float]] = {}
        contexts: list[Context] = [()]
        for _ in range(num_tokens):
            fresh = torch.tensor(contexts, dtype=torch.int64, device=prompt.device).view(len(contexts), -1)
            ids = torch.cat([prompt.expand(len(contexts), -1), fresh], 1)
            scores = processors(ids, model(ids, use_cache=False).logits[:, -1].float())
            for context, row in zip(contexts, scores.softmax(-1), strict=True):
                tokens = row.nonzero().flatten()
                self.probs[context] = dict(zip(tokens.tolist(), row[tokens].tolist(), strict=True))
            contexts = [(*context, token) for context in contexts for token in self.probs[context]]

    def joint(self) -> dict[Context, float]:
        """The probability of every whole continuation; they sum to one."""
        joint: dict[Context, float] = {(): 1.0}
        for _ in range(self.num_tokens):
            joint = {(*c, t): w * p for c, w in joint.items() for t, p in self.probs[c].items()}
        total = sum(joint.values())
        return {context: weight / total for context, weight in joint.items()}


class TableDrafter:
    """Draws from the table's distributions, flattened and disturbed by noise: half of what is drafted is rejected."""

    def __init__(self, table: ExactTable, vocab_size: int) -> None:
        self._table = table
        self._vocab_size = vocab_size
        self._rows: dict[Context, Tensor] = {}

    def start(self, session: Session) -> None:
        self._session = session
        self._start = session.history.lengths[0]
        self.is_sampling = session.is_sampling
        self.generator = session.generator

    @property
    def root_tokens(self) -> Tensor:
        return self._session.history.last_tokens

    def propose(self, max_depth: int) -> TreeBatch:
        assert self._session.policy is not None, "TreeSpeculation always has a policy"
        return self._session.policy.grow(self, max_depth)

    def expand(self, frontier: Frontier) -> Proposal:
        history = self._session.history
        before = [tuple(history.row(row)[self._start :].tolist()) for row in range(history.num_rows)]
        rows = [
            torch.stack([self._row((*emitted, *(path or ()))) for path in paths])
            for emitted, paths in zip(before, frontier.path_tokens(), strict=True)
        ]
        return Proposal(torch.stack(rows).to(self._session.device))

    def update(self, step: VerifiedStep) -> None:
        pass

    def select_rows(self, rows: Sequence[int]) -> None:
        pass

    def _row(self, context: Context) -> Tensor:
        """The draft distribution [V] after a context; any where the table ends."""
        if context not in self._rows:
            exact = self._table.probs.get(context, {0: 1.0, 1: 1.0})
            noise = torch.rand(len(exact), generator=torch.Generator().manual_seed(zlib.crc32(repr(context).encode())))
            weights = torch.tensor(list(exact.values())).sqrt() * (6 * noise - 3).exp()
            row = torch.zeros(self._vocab_size)
            row[list(exact)] = weights / weights.sum()
            self._rows[context] = row
        return self._rows[context]
