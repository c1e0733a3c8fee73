"""Calls by transformers' own decoding where that is faster: for models whose passes take no longer than the engine's
own work, such as tiny ones, on texts of which hardly anything can be guessed.

`Control` does not do this: within a call it chooses among steps of the engine, by what each is predicted to bring.
Whether the engine is to run at all shows only in whole calls of either way.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria
from transformers.generation.streamers import BaseStreamer

from treespec.checks import AUTO
from treespec.engine.ranks import Alone
from treespec.engine.stats import SpeculationStats
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.generation.call import Call
from treespec.hf.generation.decode import criteria_of
from treespec.hf.generation.progress import Streaming
from treespec.hf.models.measuring import FirstTokenClock
from treespec.policies import Control

MEMORY, LEAST_TOKENS = 0.3, 8
"""The weight of a call among those before it, and the tokens of a call that counts."""
TURN = 3
"""Calls that measure a way: what one text brings says little of the next, and a control that was misled recovers."""
LOSS, LEAST_CALLS = 0.01, 4
"""The share of the time that trying the slower way again may cost, and the calls between two tries at least; at first
they are fewer than that share allows, doubled at every try."""
KNOWN_ENDS = EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria
"""Criteria that end rows of a batch at their end token, or all at once."""


class FasterWay:
    """Which way decodes the next call, by the seconds per token, after the prompt, of earlier calls with as many rows.

    Speculation comes first, and its first call, which makes what is made once, does not count. Where its steps bring
    less than the time of its passes alone would have brought in plain decoding, calls are decoded plainly; then the
    faster way is taken, and the slower one tried again now and then, always for `TURN` calls.

    Attributes:
        is_plain: whether the next call is to be decoded plainly.
    """

    is_plain = False

    def __init__(self) -> None:
        self._seconds: dict[bool, float] = {}  # Per token, by whether it was plain.
        self._num_calls = 0  # Since the way was changed.
        self._wait, self._is_tried, self._is_warm = LEAST_CALLS, False, False

    def learn(self, is_plain: bool, seconds: float, stats: SpeculationStats, num_rows: int) -> None:
        """Count a call that took `seconds`."""
        num_tokens = (stats.num_emitted_tokens - stats.num_first_tokens) / num_rows
        was_warm, self._is_warm = self._is_warm, True
        if num_tokens < LEAST_TOKENS or not was_warm or is_plain != self.is_plain:
            return
        now, self._num_calls = (seconds - stats.seconds["prefill"]) / num_tokens, self._num_calls + 1
        # Tried again, a way is what it is now: how it was may be long ago, or was one busy moment.
        before = now if self._num_calls == 1 else self._seconds.get(is_plain, now)
        self._seconds[is_plain] = before + max(MEMORY, 1 / self._num_calls) * (now - before)
        if self._num_calls >= TURN and self._is_changed(stats):
            self.is_plain, self._num_calls = not is_plain, 0

    def _is_changed(self, stats: SpeculationStats) -> bool:
        """Whether the way that took the last calls leaves the next ones to the other; `stats`: of the last call."""
        own = self._seconds[self.is_plain]
        if (other := self._seconds.get(not self.is_plain)) is None:
            return own > stats.seconds["target"] / stats.num_target_passes
        if self._is_tried:
            self._is_tried, self._wait = False, 2 * self._wait if own > other else LEAST_CALLS
        if own > other:
            return True
        most = max(LEAST_CALLS, math.ceil(TURN * (other / own - 1) / LOSS))
        self._is_tried = self._num_calls - TURN >= min(self._wait, most)
        return self._is_tried


def can_be_plain(call: Call) -> bool:
    """Whether a call asks for nothing that speculation alone has, and no other process waits for its passes."""
    is_wanting = any(option is not None for option in (call.seed, call.trace, call.compiled))
    is_wanting |= call.record_steps or call.progress or len(call.observers) > 0
    is_wanting |= call.verification != AUTO  # Plain decoding would leave a lossy rule out.
    is_special = call.config.return_dict_in_generate or call.has_filled_cache or bool(call.state_layers)
    has_known_ends = call.stop_strings is None and all(isinstance(one, KNOWN_ENDS) for one in call.criteria)
    if call.num_rows > 1 and not has_known_ends:  # Padding after such an end would count as tokens.
        return False
    return isinstance(call.policy, Control) and not (is_wanting or is_special) and isinstance(call.facts.ranks, Alone)


class PlainStreaming(Streaming, BaseStreamer):
    """The streamer of transformers' own decoding of one row. The caller ends the stream, after the statistics."""

    def put(self, value: Tensor) -> None:
        self.on_tokens(0, value.tolist())

    def end(self) -> None:
        pass


def decode_plainly(call: Call) -> tuple[Tensor, SpeculationStats]:
    """Decode by transformers' own loop; returns the output, int64 [B, P + new], and the call's statistics."""
    model: Any = call.model
    arguments = {**call.prompt.arguments, "use_cache": True}
    if call.cache is not None:
        arguments[call.facts.cache_argument] = call.cache
    start, first = time.perf_counter(), FirstTokenClock()
    prepared = call.input_ids, call.processors, StoppingCriteriaList([*criteria_of(call), first]), call.config
    streaming = nullcontext() if call.streamer is None else PlainStreaming(call.streamer, call.input_ids)
    with evaluation_mode(model), streaming as streamer:
        out = model._sample(*prepared, streamer=streamer, **arguments)
    new = out[:, call.num_prompt :].cpu()  # On accelerators this waits for the output.
    ends = torch.isin(new, torch.tensor(call.end_tokens, dtype=new.dtype, device="cpu"))
    num_emitted = int((ends.cumsum(1) - ends.long() == 0).sum())
    target = time.perf_counter() - start - first.seconds
    seconds = {"prefill": first.seconds, "draft": 0.0, "target": target, "verify": 0.0, "commit": 0.0}
    num_passes, num_drafts = new.shape[1] - 1, num_emitted - len(new)
    stats = SpeculationStats(
        num_drafts=num_drafts,
        num_emitted_tokens=num_emitted,
        num_first_tokens=len(new),
        num_target_passes=num_passes,
        acceptance_histogram=Counter({0: num_drafts}),
        choices=Counter({"plain": num_passes}),
        seconds=seconds,
    )
    return out, stats
