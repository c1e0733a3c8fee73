"""The committed tokens of every row."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.tree.transfer import download


class History:
    """The committed tokens of every row on the host, left padding included: what processors and drafters read.

    Rows are ragged: `lengths[b]` tokens of row b are valid.
    """

    def __init__(self, prompt_ids: Int[Tensor, "B P"], prompt_mask: Bool[Tensor, "B P"]) -> None:
        """The mask is False on left padding."""
        ids, mask = download(prompt_ids, prompt_mask)
        self._buffer = ids.clone()
        self.lengths = [ids.shape[1]] * ids.shape[0]
        self.num_padding: list[int] = (~mask).sum(1).tolist()

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @property
    def last_tokens(self) -> Int[Tensor, "B"]:
        """The roots of the next trees."""
        return torch.tensor([int(self._buffer.numpy()[b, n - 1]) for b, n in enumerate(self.lengths)], device="cpu")

    def row(self, row: int) -> Int[Tensor, "L"]:
        """One row, left padding included (as plain `generate` shows it to its processors)."""
        return self._buffer[row, : self.lengths[row]]

    def tokens(self, row: int) -> Int[Tensor, "L"]:
        """One row without the left padding."""
        return self._buffer[row, self.num_padding[row] : self.lengths[row]]

    def append(self, row: int, tokens: Sequence[int]) -> None:
        """Add emitted tokens to a row."""
        end = self.lengths[row] + len(tokens)
        if end > self._buffer.shape[1]:
            room = max(end, 2 * self._buffer.shape[1])
            self._buffer = torch.nn.functional.pad(self._buffer, (0, room - self._buffer.shape[1]))
        self._buffer.numpy()[row, self.lengths[row] : end] = tokens  # NumPy writes few in less time.
        self.lengths[row] = end

    def truncate(self, row: int, length: int) -> None:
        """Forget the tokens of a row beyond `length`."""
        self.lengths[row] = min(length, self.lengths[row])

    def add_rows(self, texts: Sequence[Sequence[int]]) -> None:
        """Rows that join after the others, each text at least one token, without padding."""
        first, width = self.num_rows, max(map(len, texts), default=0)
        room = max(width - self._buffer.shape[1], 0)
        self._buffer = torch.nn.functional.pad(self._buffer, (0, room, 0, len(texts)))
        self.lengths += [0] * len(texts)
        self.num_padding += [0] * len(texts)
        for row, text in enumerate(texts, start=first):
            self.append(row, text)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._buffer = self._buffer[list(rows)]
        self.lengths = [self.lengths[b] for b in rows]
        self.num_padding = [self.num_padding[b] for b in rows]
