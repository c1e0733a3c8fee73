"""What a user sees of a call of `generate` while it decodes: a bar, and a streamer's text."""

from __future__ import annotations

from types import TracebackType

import torch
from tqdm.auto import tqdm
from transformers.generation.streamers import BaseStreamer

from treespec.engine.observer import Observer


class Progress(Observer):
    """Emitted tokens of all rows, with tokens per row and pass, on the standard error; closed at the end of the block.

    Args:
        most_tokens: that all rows may emit; None: unknown.
    """

    def __init__(self, most_tokens: int | None) -> None:
        self._bar = tqdm(total=most_tokens, unit=" tokens", desc="generate", leave=False)
        self._num_tokens = self._num_passes = 0

    def on_tokens(self, row: int, tokens: list[int]) -> None:
        self._num_tokens += len(tokens)
        self._num_passes += 1
        self._bar.set_postfix_str(f"{self._num_tokens / self._num_passes:.2f} per pass", refresh=False)
        self._bar.update(len(tokens))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()


class Streaming(Observer):
    """Puts every chunk of tokens into a streamer, int64 [1, k]."""

    def __init__(self, streamer: BaseStreamer) -> None:
        self._streamer = streamer

    def on_tokens(self, row: int, tokens: list[int]) -> None:
        self._streamer.put(torch.tensor([tokens], device="cpu"))
