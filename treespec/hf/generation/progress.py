"""A bar that shows how far a call of `generate` has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from tqdm.auto import tqdm
from transformers.generation.streamers import BaseStreamer


class Progress:
    """Emitted tokens of all rows, with tokens per row and pass, on the standard error; closed at the end of the block.

    Args:
        most_tokens: that all rows may emit; None: unknown.
        is_shown: without it this does nothing.
    """

    def __init__(self, most_tokens: int | None, is_shown: bool) -> None:
        self._bar = tqdm(total=most_tokens, unit=" tokens", desc="generate", disable=not is_shown, leave=False)
        self._num_tokens = self._num_passes = 0

    def listener(self, streamer: BaseStreamer | None) -> Callable[[int, list[int]], None] | None:
        """What is to be called with (row, tokens) after every pass, for the bar and a streamer; None: nothing."""
        if streamer is None:
            return None if self._bar.disable else self._count

        def put(row: int, tokens: list[int]) -> None:
            self._count(row, tokens)
            streamer.put(torch.tensor([tokens]))

        return put

    def _count(self, _: int, tokens: Sequence[int]) -> None:
        self._num_tokens += len(tokens)
        self._num_passes += 1
        self._bar.set_postfix_str(f"{self._num_tokens / self._num_passes:.2f} per pass", refresh=False)
        self._bar.update(len(tokens))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
