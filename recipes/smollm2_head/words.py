"""Names, things and topics that prompts are made of, and the templates of every kind of prompts: `phrases/*.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from random import Random
from typing import NamedTuple


class Phrases(NamedTuple):
    """By name, templates and words."""

    lines: dict[str, list[str]]
    words: dict[str, tuple[str, ...]]


def read_phrases(name: str) -> Phrases:
    r"""A file of `phrases/`: in its table `lines` one template per line, in which \n stands for a new line; in the
    table `words` words between commas.
    """
    tables = tomllib.loads((Path(__file__).parent / "phrases" / f"{name}.toml").read_text(encoding="utf-8"))
    lines = {key: text.replace(r"\n", "\r").split("\n") for key, text in tables.get("lines", {}).items()}
    return Phrases(
        {key: [line.replace("\r", "\n") for line in texts] for key, texts in lines.items()},
        {key: split_words(text) for key, text in tables.get("words", {}).items()},
    )


def split_words(text: str) -> tuple[str, ...]:
    """Return the texts between commas, stripped, without empty ones."""
    return tuple(word.strip() for word in text.replace("\n", " ").split(",") if word.strip())


WORDS = read_phrases("words").words
WORDS["topic"] = WORDS["science"] + WORDS["society"]


def shared(names: str) -> dict[str, tuple[str, ...]]:
    """Some of `WORDS`, by names with spaces between them, in that order."""
    return {name: WORDS[name] for name in names.split()}


def draw(rng: Random, names: str) -> dict[str, str]:
    """One of `WORDS` for each name, by names with spaces between them, in that order."""
    return {name: rng.choice(words) for name, words in shared(names).items()}


def full_name(rng: Random) -> str:
    return f"{rng.choice(WORDS['name'])} {rng.choice(WORDS['last_name'])}"


def names(rng: Random, count: int) -> list[str]:
    """Different first names."""
    return rng.sample(WORDS["name"], count)


def date(rng: Random) -> str:
    month = rng.choice(split_words("January, March, April, May, June, July, September, October, November"))
    return f"{rng.randint(1, 28)} {month} {rng.randint(1880, 2024)}"
