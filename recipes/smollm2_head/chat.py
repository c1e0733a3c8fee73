"""Conversation: advice, explanations, writing, roles, lists, translations, short questions, data formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from recipes.smollm2_head.words import WORDS, draw, full_name, read_phrases

LINES, OWN = read_phrases("chat")
FOREIGN = ("French", "German", "Spanish")


def fill(template: str, rng: Random) -> str:
    topic, topic2 = rng.sample(WORDS["topic"], 2)
    character, character2 = rng.sample(WORDS["character"], 2)
    words = draw(rng, "hobby job place country foods goods theme name")
    return template.format(
        topic=topic, topic2=topic2, character=character, character2=character2, **words, full=full_name(rng),
        k=rng.randint(3, 10), age=rng.randint(6, 14),
        rhyme=rng.choice(OWN["rhymes"]), word=rng.choice(OWN["adjectives"]),
    )  # fmt: skip


def make_list(rng: Random) -> str:
    return fill(rng.choice(LINES["lists"]).replace("{things}", rng.choice(LINES["things"])), rng)


def translate(rng: Random) -> str:
    if rng.random() < 0.5:
        language = rng.choice(FOREIGN)
        sentence = fill(rng.choice(LINES[language.lower()]), rng)
        return rng.choice(("Translate from {} to English: {}", "What does this {} sentence mean? {}")).format(
            language, sentence
        )
    request = rng.choice(
        ("Translate to {}: {}", "How do you say this in {}?\n\n{}", "Give me the {} translation of: {}")
    )
    return request.format(rng.choice(OWN["languages"]), fill(rng.choice(LINES["sentences"]), rng))


def _of(templates: Sequence[str]) -> Callable[[Random], str]:
    return lambda rng: fill(rng.choice(templates), rng)


KINDS: tuple[Callable[[Random], str], ...] = (
    _of(LINES["explain"]),
    _of(LINES["explain"]),
    _of(LINES["advice"]),
    _of(LINES["write"]),
    _of(LINES["write"]),
    _of(LINES["roles"]),
    _of(LINES["questions"]),
    make_list,
    translate,
)
