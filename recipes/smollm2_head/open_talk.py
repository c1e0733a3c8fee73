"""Open talk: roles, stories, letters, opinions, advice, explanations, brainstorming, dialogue, and rewriting of a text.

A message is a request, often with a remark about the sender before it and a wish about length, tone or form behind it,
so that few messages share more than a phrase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from recipes.smollm2_head.words import read_phrases, shared

LINES, OWN = read_phrases("open_talk")
KINDS = ["roles", "stories", "letters", "opinions", "advice", "explain", "ideas", "dialogues", "rewrites"]

WORDS: dict[str, Sequence[str]] = {
    **shared("name place country job topic theme hobby goods foods character"),
    **OWN,
    "n": [str(n) for n in range(2, 31)],
    "k": [str(n) for n in range(3, 10)],
}

PAIRS = ("place", "job", "topic", "character", "subject", "virtue", "animal")
"""Places of which a template may name a second one, {place2}."""

QUOTED = {name: LINES[name] for name in ("blunt", "stiff", "note", "wrong")}


def talk(rng: Random) -> str:
    """One message."""
    request = fill(rng.choice(LINES[rng.choice(KINDS)]), rng)
    before = [fill(rng.choice(LINES["remarks"]), rng)] if rng.random() < 0.25 else []
    behind = [fill(rng.choice(LINES["wishes"]), rng)] if rng.random() < 0.35 else []
    return " ".join([*before, request, *behind])


def fill(template: str, rng: Random) -> str:
    """A template with drawn words; a second word of a pair is another one."""
    words = {name: rng.choice(choices) for name, choices in WORDS.items()}
    words |= {f"{name}2": rng.choice([word for word in WORDS[name] if word != words[name]]) for name in PAIRS}
    words["other"] = rng.choice([name for name in WORDS["name"] if name != words["name"]])
    quoted = {name: rng.choice(texts).format_map(words) for name, texts in QUOTED.items()}
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", template.format_map(words | quoted))
