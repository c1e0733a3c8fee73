"""A drafter that draws from a distortion of the target's exact distributions."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from treespec.drafters.base import SessionSource
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.testing import Context, Continuations
from treespec.tree import TreeBatch


class TableDrafter(SessionSource):
    """Draws from the table's distributions, flattened and disturbed by noise: half of what is drafted is rejected."""

    def __init__(self, table: Continuations, vocab_size: int) -> None:
        self._table = table
        self._vocab_size = vocab_size
        self._rows: dict[Context, Tensor] = {}

    def start(self, session: Session) -> None:
        self._session = session
        self._start = session.history.lengths[0]

    def propose(self, max_depth: int) -> TreeBatch:
        return self._policy.grow(self, max_depth)

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
            noise = torch.rand(
                len(exact),
                generator=torch.Generator("cpu").manual_seed(zlib.crc32(repr(context).encode())),
                dtype=torch.float32,
                device="cpu",
            )
            weights = (
                torch.tensor(list(exact.values()), dtype=torch.float32, device="cpu").sqrt() * (6 * noise - 3).exp()
            )
            row = torch.zeros(self._vocab_size, dtype=torch.float32, device="cpu")
            row[list(exact)] = weights / weights.sum()
            self._rows[context] = row
        return self._rows[context]
