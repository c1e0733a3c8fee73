"""Tasks over a passage, a report from templates or Python's docs: summaries, extraction, questions, rewriting."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable
from functools import cache
from random import Random

from recipes.smollm2_head.words import WORDS, date, draw, full_name, names, read_phrases

LINES, OWN = read_phrases("passages")
MONTHS = ("January", "February", "April", "May", "June", "August", "October", "December")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def fill(template: str, rng: Random) -> str:
    """A template with drawn names, places and numbers."""
    a, b, c, a2, name = names(rng, 5)
    place, other = rng.sample(WORDS["place"], 2)
    return template.format(
        a=a, b=b, c=c, a2=a2, name=f"{name} {full_name(rng).split()[1]}", who=full_name(rng), **draw(rng, "job"),
        place=place, other=other, **draw(rng, "country"), company=rng.choice(OWN["companies"]),
        **draw(rng, "goods foods hobby"), topic=rng.choice(OWN["topics"]), building=rng.choice(OWN["buildings"]),
        day=rng.choice(DAYS), date=date(rng), date2=f"{rng.choice(DAYS)}, {rng.randint(1, 28)} {rng.choice(MONTHS)}",
        year=rng.randint(1780, 1990), year2=rng.randint(1991, 2024), n=rng.randint(13, 95), k=rng.randint(5, 12),
        s=rng.randint(2, 4), q=rng.randint(2, 60), h=rng.randint(16, 22) * 10,
    )  # fmt: skip


def report(rng: Random) -> str:
    """News that never happened, of four to ten sentences."""
    sentences = [
        rng.choice(LINES["openings"]),
        *rng.sample(LINES["middles"], rng.randint(2, 8)),
        rng.choice(LINES["closings"]),
    ]
    return " ".join(fill(sentence, rng) for sentence in sentences)


def message(rng: Random) -> str:
    return fill(rng.choice(LINES["messages"]), rng)


def about_report(rng: Random) -> str:
    return _task(rng, report(rng))


def about_message(rng: Random) -> str:
    return _task(rng, message(rng))


def about_docs(rng: Random) -> str:
    return rng.choice(LINES["about_docs"]).format(rng.choice(documentation()))


def mend(rng: Random) -> str:
    return rng.choice(LINES["mending"]).format(
        " ".join(fill(line, rng) for line in rng.sample(LINES["loose"], rng.randint(1, 2)))
    )


KINDS: tuple[Callable[[Random], str], ...] = (about_report, about_report, about_report, about_message, about_docs, mend)


def _task(rng: Random, passage: str) -> str:
    return rng.choice(LINES["tasks"]).format(passage=passage, s=rng.randint(2, 4))


@cache
def documentation() -> list[str]:
    """Paragraphs of prose from Python's own help texts; none with a set phrase that HumanEval uses as well."""
    texts = [pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)]
    paragraphs = [" ".join(p.split()) for text in texts for p in text.split("\n\n") if not p.startswith((" ", "*"))]
    return [p for p in paragraphs if 250 < len(p) < 900 and "::" not in p and "if and only if there is" not in p]
