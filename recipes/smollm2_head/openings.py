"""How messages begin, for `treespec write --openings`: a few words that fix the task, and the target goes on.

Templates with every word filled in (the other modules) teach a head their own phrases. A model that writes the rest of
a message itself writes a different passage, function or question every time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from recipes.smollm2_head.words import read_phrases, shared

LINES, OWN = read_phrases("openings")
NUMBERS = [*range(2, 31), 36, 40, 45, 48, 50, 60, 72, 80, 90, 100, 120, 144, 150, 200, 240, 300, 500]
WORDS: dict[str, Sequence[str]] = {
    **shared("name"),
    "other": shared("name")["name"],
    **shared("place country job topic theme hobby character"),
    **OWN,
    "n": [str(n) for n in NUMBERS],
}

QUARTERS = [LINES[name] for name in ("code", "maths", "passages", "talk")]


def build_openings(count: int, seed: int = 0) -> list[str]:
    """`count` openings of the four kinds by turns; one may come again, as the model goes on with it in another way."""
    rng = Random(f"openings {seed}")
    return [_fill(rng.choice(QUARTERS[i % len(QUARTERS)]), rng) for i in range(count)]


def _fill(template: str, rng: Random) -> str:
    filled = template.format_map({name: rng.choice(words) for name, words in WORDS.items()})
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", filled)
