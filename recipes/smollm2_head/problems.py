"""Word problems of a primary-school kind, and a few of mathematics and logic: stories with drawn names and numbers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from recipes.smollm2_head.words import draw, names, read_phrases

LINES = read_phrases("problems").lines


def fill(template: str, rng: Random) -> str:
    """A template with drawn names and numbers."""
    a, b, c = names(rng, 3)
    n, k, s, p = rng.randint(12, 48), rng.randint(4, 11), rng.randint(2, 5), rng.randint(3, 19)
    j, r = rng.randint(3, 9), rng.randint(2, 6)
    roots = rng.randint(1, 9), rng.randint(1, 9)
    step = rng.randint(2, 12)
    return template.format(
        a=a, b=b, c=c, n=n, k=k, s=s, p=p, j=j, r=r,
        m=rng.randint(11, 40), h=rng.randint(10, 60) * 10, q=rng.choice((5, 10, 20, 25, 30, 40, 50, 60, 75)),
        money=rng.randint(8, 90) * 5, rn=(r + 1) * rng.randint(4, 30), jp=j * p - rng.randint(1, p),
        pm=rng.randint(5, 11), kn=k * n, jn=j * n, ssum=sum(roots), sprod=roots[0] * roots[1],
        n1=n + step, n2=n + 2 * step, n3=n + 3 * step,
        **draw(rng, "goods foods job place"),
    )  # fmt: skip


def story(rng: Random) -> str:
    return fill(rng.choice(LINES["stories"]), rng) + rng.choice(LINES["endings"])


def mathematics(rng: Random) -> str:
    return fill(rng.choice(LINES["maths"]), rng)


def logic(rng: Random) -> str:
    return fill(rng.choice(LINES["logic"]), rng)


KINDS: tuple[Callable[[Random], str], ...] = (story, story, story, story, story, mathematics, logic)
