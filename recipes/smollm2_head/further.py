"""Messages that continue or use what the target wrote before, and messages in other languages.

Further turns of a conversation, tasks over one or more of its own earlier answers (summaries, translations, rewriting,
questions, code reviews: long inputs whose content is different every time), and openings in five languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from recipes.smollm2_head.words import read_phrases

LINES = read_phrases("further").lines
SOURCE_CHARACTERS = 1400


def is_open(message: str) -> bool:
    """Whether the target finishes the message: it does not end like a sentence."""
    return message[-1] not in ".?!"


def follow_up(rng: Random) -> str:
    return rng.choice(LINES["follow_ups"])


def language(rng: Random) -> str:
    return rng.choice(LINES["languages"])


def task(rng: Random, sources: Sequence[str]) -> str:
    """A task over one or two of the sources, which are cut to `SOURCE_CHARACTERS` together."""
    source = rng.choice(sources)
    if rng.random() < 0.15:
        parts = [each[: SOURCE_CHARACTERS // 2] for each in (source, rng.choice(sources))]
        return "\n\n".join([rng.choice(LINES["several"]), *(f"Text {n}: {part}" for n, part in enumerate(parts, 1))])
    kinds = LINES["code_tasks"] if "```" in source and rng.random() < 0.8 else LINES["tasks"]
    parts = [rng.choice(kinds), source[:SOURCE_CHARACTERS]]
    return "\n\n".join(parts if rng.random() < 0.8 else parts[::-1])
