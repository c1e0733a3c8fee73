"""Requests for Python: the standard library's functions to complete or explain, functions from examples, wishes."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from recipes.smollm2_head.words import WORDS, read_phrases

LINES, OWN = read_phrases("code")


def complete_library(rng: Random) -> str:
    head, _ = rng.choice(library_functions())
    return rng.choice(LINES["complete"]).format(head)


def about_library(rng: Random) -> str:
    sources = [source for _, source in library_functions() if 80 < len(source) < 800]
    return rng.choice(LINES["about_code"]).format(rng.choice(sources))


def complete_from_examples(rng: Random) -> str:
    return rng.choice(LINES["complete"]).format(rng.choice((_numbers, _text, _records))(rng))


def ask_freely(rng: Random) -> str:
    wish = rng.choice(LINES["wishes"]).format(
        file=rng.choice(("text", "CSV", "JSON", "log", "Markdown", "configuration")),
        count=rng.randint(3, 20),
        unit=rng.choice(("Fahrenheit", "Kelvin")),
        things=rng.choice((*WORDS["goods"], "books", "songs", "students", "cities", "orders", "invoices", "players")),
        column=rng.choice(("price", "weight", "age", "rating", "year", "distance", "score")),
        month=rng.randint(1, 12),
        place=rng.choice(WORDS["place"]),
    )
    return rng.choice(LINES["free"]).format(wish)


KINDS: tuple[Callable[[Random], str], ...] = (
    complete_library,
    complete_library,
    complete_library,
    complete_from_examples,
    complete_from_examples,
    ask_freely,
    ask_freely,
    ask_freely,
    about_library,
    about_library,
)


@cache
def library_functions() -> list[tuple[str, str]]:
    """Head with docstring, and whole source, of the standard library's public functions of a readable size."""
    folder, found = Path(sysconfig.get_path("stdlib")), []
    for module in OWN["modules"]:
        text = (folder / f"{module}.py").read_text(encoding="utf-8") if (folder / f"{module}.py").is_file() else ""
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                doc = ast.get_docstring(node)
                if doc and 40 < len(doc) < 600 and not node.decorator_list:
                    found.append((_head(node, doc), ast.unparse(node)))
    return found


def _head(node: ast.FunctionDef, doc: str) -> str:
    body = "\n".join(f"    {line}".rstrip() for line in doc.splitlines())
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f'def {node.name}({ast.unparse(node.args)}){returns}:\n    """{body.strip()}\n    """'


class _Part(NamedTuple):
    """One step of an invented function: in its name, in words, and done."""

    name: str
    words: str
    do: Callable[[Any], Any]


def _numbers(rng: Random) -> str:
    """Choose some numbers, change them, boil them down."""
    k, limit = rng.randint(3, 9), rng.randint(4, 30)
    choice = rng.choice(
        (
            _Part(f"multiples_of_{k}", f"divisible by {k}", lambda x: x % k == 0),
            _Part(f"not_multiples_of_{k}", f"not divisible by {k}", lambda x: x % k != 0),
            _Part(f"above_{limit}", f"greater than {limit}", lambda x: x > limit),
            _Part(f"up_to_{limit}", f"at most {limit}", lambda x: x <= limit),
            _Part("two_digit", "written with exactly two digits", lambda x: 10 <= x <= 99),
            _Part(f"ending_in_{k}", f"whose last digit is {k}", lambda x: x % 10 == k),
        )
    )
    change = rng.choice(
        (
            _Part("", "", lambda x: x),
            _Part(f"plus_{k}_", f", each increased by {k},", lambda x: x + k),
            _Part(f"times_{k}_", f", each multiplied by {k},", lambda x: x * k),
            _Part("halved_", ", each halved and rounded down,", lambda x: x // 2),
        )
    )
    result = rng.choice(
        (
            _Part("sum", "Return the sum of the numbers", sum),
            _Part("largest", "Return the largest of the numbers (0 if there is none)", lambda v: max(v, default=0)),
            _Part("smallest", "Return the smallest of the numbers (0 if there is none)", lambda v: min(v, default=0)),
            _Part("count", "Return how many different numbers there are among those", lambda v: len(set(v))),
            _Part("sorted", "Return, from large to small, the numbers", lambda v: sorted(v, reverse=True)),
            _Part("positions", "Return the running totals of the numbers", _running_totals),
            _Part("spread", "Return the difference between the largest and the smallest of the numbers", _spread),
        )
    )
    name = rng.choice(("numbers", "values", "items", "amounts", "readings"))

    def solve(values: list[int]) -> Any:
        return result.do([change.do(value) for value in values if choice.do(value)])

    words = f"{result.words} in `{name}` that are {choice.words}{change.words}".rstrip(",").replace(
        "are whose", "have as"
    )
    returns = "list[int]" if isinstance(solve([]), list) else "int"
    head = f"def {result.name}_of_{change.name}{choice.name}({name}: list[int]) -> {returns}:"
    cases = [[rng.randint(0, 60) for _ in range(rng.randint(3, 7))] for _ in range(rng.randint(2, 3))]
    return _function(rng, head, words.replace("have as last digit is", "end in") + ".", solve, cases)


def _running_totals(values: list[int]) -> list[int]:
    return [sum(values[: i + 1]) for i in range(len(values))]


def _spread(values: list[int]) -> int:
    return max(values) - min(values) if values else 0


def _text(rng: Random) -> str:
    """Choose some words, change them, join them."""
    letter, k = rng.choice("aeinorst"), rng.randint(4, 6)
    choice = rng.choice(
        (
            _Part(f"ending_in_{letter}", f"end in '{letter}'", lambda w: w.endswith(letter)),
            _Part(f"without_{letter}", f"do not hold the letter '{letter}'", lambda w: letter not in w),
            _Part(f"longer_than_{k}", f"are longer than {k} letters", lambda w: len(w) > k),
            _Part(f"of_{k}_letters", f"have exactly {k} letters", lambda w: len(w) == k),
        )
    )
    mark = rng.choice("-+/_")
    result = rng.choice(
        (
            _Part("join", f"Join with '{mark}' all words", mark.join),
            _Part("initials", "Return the capitalised first letters, as one string, of all words", _initials),
            _Part("total_length", "Return the total number of letters of all words", lambda ws: sum(map(len, ws))),
            _Part("backwards", "Return, each spelt backwards, all words", lambda ws: [w[::-1] for w in ws]),
            _Part(
                "lengths", "Return a dictionary from word to length for all words", lambda ws: {w: len(w) for w in ws}
            ),
            _Part(
                "alphabetical",
                "Return in alphabetical order, in capitals, all words",
                lambda ws: sorted(w.upper() for w in ws),
            ),
        )
    )

    def solve(text: str) -> Any:
        return result.do([word for word in text.split() if choice.do(word)])

    returns = {str: "str", int: "int", list: "list[str]", dict: "dict[str, int]"}[type(solve("a"))]
    head = f"def {result.name}_of_words_{choice.name}(text: str) -> {returns}:"
    pool = [
        word.lower()
        for group in (WORDS["foods"], WORDS["goods"], WORDS["place"], WORDS["name"])
        for word in group
        if " " not in word
    ]
    cases = [" ".join(rng.sample(pool, rng.randint(3, 5))) for _ in range(2)]
    return _function(rng, head, f"{result.words} of `text` that {choice.words}.", solve, cases)


def _initials(words: list[str]) -> str:
    return "".join(word[0].upper() for word in words)


def _records(rng: Random) -> str:
    """Ask a list of dictionaries."""
    key, label = rng.choice(
        (("price", "item"), ("age", "name"), ("weight", "item"), ("score", "name"), ("year", "title"))
    )
    limit = rng.randint(10, 60)
    result = rng.choice(
        (
            _Part("total", f"Return the sum of the {key}s", lambda rows: sum(row[key] for row in rows)),
            _Part(
                "labels",
                f"Return every {label}, in order of {key},",
                lambda rows: [r[label] for r in sorted(rows, key=lambda r: (r[key], r[label]))],
            ),
            _Part(
                "table",
                f"Return a dictionary from {label} to {key}",
                lambda rows: {row[label]: row[key] for row in rows},
            ),
            _Part("count", "Return the number", len),
        )
    )
    is_above = rng.random() < 0.5
    words = f"{result.words} of the records whose {key} is {'above' if is_above else 'at most'} {limit}."
    head = f"def {key}_{result.name}_{'above' if is_above else 'up_to'}_{limit}(records):"

    def solve(rows: list[dict]) -> Any:
        return result.do([row for row in rows if (row[key] > limit) == is_above])

    pool = WORDS["name"] if label == "name" else WORDS["goods"]
    cases = [[{label: word, key: rng.randint(1, 99)} for word in rng.sample(pool, rng.randint(2, 3))] for _ in range(2)]
    return _function(rng, head, words, solve, cases)


def _function(rng: Random, head: str, words: str, solve: Callable[[Any], Any], cases: list[Any]) -> str:
    """Signature and docstring with examples that are true, in one of a few habits of writing them."""
    call = head.removeprefix("def ").split("(")[0]
    if rng.random() < 0.6:
        examples = [f"    >>> {call}({case!r})\n    {solve(case)!r}" for case in cases]
    else:
        examples = ["    Examples:", *(f"    {call}({case!r}) == {solve(case)!r}" for case in cases)]
    return "\n".join([head, f'    """{words}', "", *examples, '    """'])
