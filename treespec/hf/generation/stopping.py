"""Stopping at exactly the token where plain `generate` stops: every criterion is checked after every new token."""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from treespec.engine.ranks import Alone, Ranks
from treespec.errors import TreespecWarning


class TreeStopping:
    """Where the rows of a call end.

    EOS ids and the maximal length are read from their criteria and compared on the host; every other criterion is
    called with one row, token by token. Without an EOS id plain decoding of a batch continues for all rows until the
    last one has met a criterion; `is_joint` does the same.

    Args:
        criteria: the prepared criteria of the call.
        num_rows: rows of the caller's batch.
        max_positions: the size of the model's position table, None without one.
        scores_of: (row, length) to the scores of the row's new tokens up to `length` ids, for criteria that read them.
        ranks: the processes that run the model together; criteria may read clocks, so the first one's decide.
        last_length: the longest text before a single one is read again: no step continues across it.
    """

    def __init__(
        self,
        criteria: StoppingCriteriaList,
        num_rows: int,
        max_positions: int | None = None,
        scores_of: Callable[[int, int], tuple[Tensor, ...] | None] | None = None,
        ranks: Ranks | None = None,
        last_length: int | None = None,
    ) -> None:
        self._max_length = min((c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)), default=None)
        eos = [c for c in criteria if isinstance(c, EosTokenCriteria)]
        self._eos = {int(token) for c in eos for token in c.eos_token_id.flatten().tolist()}
        self._others = [c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))]
        self._max_positions = max_positions
        self._scores_of = scores_of
        self._ranks = ranks or Alone()
        self._last_length = last_length
        self.is_joint = num_rows > 1 and not any(hasattr(c, "eos_token_id") for c in criteria)
        self._has_stopped = [False] * num_rows
        self._num_open = num_rows
        self._longest = 0
        self._num_padding = [0] * num_rows

    @property
    def joint_length(self) -> int | None:
        """The length at which all rows of a joint call end; None until every row has met a criterion."""
        return self._longest if self.is_joint and self._num_open == 0 else None

    def max_new(self, row: int, length: int, num_padding: int) -> int:
        self._num_padding[row] = num_padding
        limits = [limit for limit in (self._max_length, self.joint_length) if limit is not None]
        if self._max_positions is not None:
            # The last token of a row is never fed back, so a row may hold one token more than there are positions.
            limits.append(self._max_positions + 1 + num_padding)
        if self._last_length is not None and length <= self._last_length:
            limits.append(self._last_length + 1)
        return max(min(limits, default=length + 2**30) - length, 0)

    def num_kept(self, row: int, ids: Tensor, new_tokens: Sequence[int]) -> int | None:
        first = ids.shape[0] - len(new_tokens)
        stop = next((i + 1 for i, t in enumerate(new_tokens) if self._stops(row, ids[: first + i + 1], t)), None)
        if not self.is_joint:
            return stop
        if stop is not None and not self._has_stopped[row]:
            self._has_stopped[row] = True
            self._num_open -= 1
            self._longest = max(self._longest, first + stop)
        length = ids.shape[0]
        if self.max_new(row, length, self._num_padding[row]) > 0:
            return None
        return max(min(self.joint_length or length, length) - first, 0)

    def _stops(self, row: int, ids: Tensor, token: int) -> bool:
        length = ids.shape[0]
        is_too_long = self._max_length is not None and length >= self._max_length
        if token in self._eos or is_too_long or self._is_full(row, length):
            return True
        if not self._others:
            return False
        scores = self._scores_of(row, length) if self._scores_of else None
        batch = ids.unsqueeze(0)
        stops = any(bool(torch.as_tensor(c(batch, scores), device="cpu").any()) for c in self._others)  # pyright: ignore[reportArgumentType]
        return self._ranks.agree("stopping criterion", stops)

    def _is_full(self, row: int, length: int) -> bool:
        if self._max_positions is None or length - self._num_padding[row] <= self._max_positions:
            return False
        warnings.warn(
            f"row {row} stops after {length} tokens: the model's {self._max_positions} positions are full",
            TreespecWarning,
            stacklevel=2,
        )
        return True
