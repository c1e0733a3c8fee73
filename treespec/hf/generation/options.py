"""`Options`: what a `TreeSpeculation` was built with, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.generation.streamers import BaseStreamer

from treespec.errors import ConfigError
from treespec.protocols import Drafter, TreePolicy, VerificationRule


@dataclass(frozen=True)
class Options:
    """The options of `TreeSpeculation`, whose arguments have the same names; one call's are a copy with `replace`.

    Raises:
        ConfigError: stop strings that are not strings or come without a tokenizer, a streamer without `put` and
            `end`, a seed that is not an int from 0 to 2**63 - 1.
    """

    drafter: Drafter
    policy: TreePolicy
    verification: str | VerificationRule = "auto"
    tokenizer: Any = None
    streamer: BaseStreamer | None = None
    stop_strings: str | Sequence[str] | None = None
    seed: int | None = None
    record_steps: bool = False

    def __post_init__(self) -> None:
        seed, streamer = self.seed, self.streamer
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise ConfigError(f"seed must be None or an int from 0 to 2**63 - 1, got {seed!r}")
        if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            raise ConfigError(f"a streamer needs put() and end(), got {type(streamer).__name__}")
        if self.stop_strings is None:
            return
        strings = [self.stop_strings] if isinstance(self.stop_strings, str) else self.stop_strings
        if not isinstance(strings, Sequence) or not strings or not all(isinstance(s, str) and s for s in strings):
            raise ConfigError(f"stop_strings must be one or several non-empty strings, got {self.stop_strings!r}")
        if self.tokenizer is None:
            raise ConfigError("stop_strings need the tokenizer: give tokenizer=tokenizer too")
