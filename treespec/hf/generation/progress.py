"""Observers of a call of `generate` for its user: a streamer, a progress bar, a trace, observers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers.generation.streamers import BaseStreamer

from treespec.engine.observer import Observer
from treespec.hf.generation.call import Call


def watchers(call: Call) -> Iterator[Observer]:
    """The observers that a call's options ask for."""
    if call.streamer is not None:
        yield Streaming(call.streamer, call.input_ids)
    if call.progress:
        longest = call.config.max_length
        yield Progress(None if longest is None else call.num_rows * max(longest - call.num_prompt, 0))
    if call.trace is not None and (watching := call.trace.observer(call)) is not None:
        yield watching
    yield from call.observers


class Progress(Observer):
    """Tokens that all rows emitted, of `most_tokens` if these are known, with tokens per row and pass; on stderr."""

    def __init__(self, most_tokens: int | None) -> None:
        self._bar = tqdm(total=most_tokens, unit=" tokens", desc="generate", leave=False)
        self._num_tokens = self._num_passes = 0

    def on_tokens(self, row: int, tokens: list[int]) -> None:
        self._num_tokens += len(tokens)
        self._num_passes += 1
        self._bar.set_postfix_str(f"{self._num_tokens / self._num_passes:.2f} per pass", refresh=False)
        self._bar.update(len(tokens))

    def __exit__(self, *error: object) -> None:
        self._bar.close()


class Streaming(Observer):
    """Puts the prompt, int64 [1, P], and every chunk of tokens, int64 [1, k], into a streamer."""

    def __init__(self, streamer: BaseStreamer, prompt: Tensor) -> None:
        self._streamer, self._prompt = streamer, prompt

    def __enter__(self) -> Self:
        self._streamer.put(self._prompt.cpu())
        return self

    def on_tokens(self, row: int, tokens: list[int]) -> None:
        self._streamer.put(torch.tensor([tokens], device="cpu"))
