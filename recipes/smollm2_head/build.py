"""Messages of all kinds, without repetition, in an order that batches like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from recipes.smollm2_head import chat, code, open_talk, passages, problems

COUNT = 4096

CHUNK, GROUP = 512, 64
"""In every chunk, groups of neighbours are of similar length, as a batch pads to its longest; the groups are mixed, so
that a run that stops early has seen short and long messages of all kinds."""

MAX_TRIES = 1000

QUARTERS = (code.KINDS, problems.KINDS, passages.KINDS, chat.KINDS)


def build(count: int = COUNT, seed: int = 0) -> list[str]:
    """`count` different messages."""
    return _draw(QUARTERS, count, Random(f"training prompts {seed}"))


def build_talk(count: int = COUNT, seed: int = 0) -> list[str]:
    """`count` different messages of open talk."""
    return _draw([(open_talk.talk,)], count, Random(f"open talk {seed}"))


def _draw(kinds: Sequence[Sequence[Callable[[Random], str]]], count: int, rng: Random) -> list[str]:
    """Different messages, of all kinds by turns, in the order of `CHUNK` and `GROUP`."""
    seen: set[str] = set()
    messages = [draw_new(kinds[i % len(kinds)], seen, rng) for i in range(count)]
    rng.shuffle(messages)
    return [message for start in range(0, count, CHUNK) for message in _arrange(messages[start : start + CHUNK], rng)]


def _arrange(messages: Sequence[str], rng: Random) -> list[str]:
    """In groups of similar length, one group after the other."""
    ordered = sorted(messages, key=len)
    groups = [ordered[start : start + GROUP] for start in range(0, len(ordered), GROUP)]
    rng.shuffle(groups)
    return [message for group in groups for message in group]


def draw_new(kinds: Sequence[Callable[[Random], str]], seen: set[str], rng: Random) -> str:
    """A message of one of the kinds that is not among those seen; it joins them.

    Raises:
        ValueError: the kinds are exhausted.
    """
    for _ in range(MAX_TRIES):
        message = rng.choice(kinds)(rng).strip()
        if message not in seen:
            seen.add(message)
            return message
    raise ValueError(f"no new message in {MAX_TRIES} tries: ask for fewer than {len(seen)}")
