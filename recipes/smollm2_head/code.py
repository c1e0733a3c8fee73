"""Requests for Python: functions of the standard library to complete or explain, functions from examples, free wishes."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from recipes.smollm2_head.words import FIRST_NAMES, FOODS, GOODS, PLACES

MODULES = """argparse ast asyncio/tasks base64 bisect calendar cmd code collections/__init__ colorsys configparser contextlib
copy csv dataclasses datetime difflib dis email/utils enum filecmp fileinput fnmatch fractions ftplib functools genericpath
getpass gettext glob gzip hashlib heapq html/__init__ http/client imaplib inspect ipaddress json/__init__ keyword
linecache locale logging/__init__ lzma mailbox mimetypes netrc ntpath numbers opcode operator optparse pathlib pickle
pickletools pkgutil platform plistlib posixpath pprint profile pstats py_compile queue quopri random re/__init__ reprlib
sched secrets selectors shelve shlex shutil signal smtplib socket socketserver ssl stat statistics string stringprep
subprocess symtable sysconfig tabnanny tarfile tempfile textwrap threading timeit token tokenize trace traceback
types typing urllib/parse urllib/request uuid warnings wave weakref webbrowser xml/dom/minidom xml/etree/ElementTree
zipapp zipfile turtle bdb doctest unittest/util unittest/case concurrent/futures/thread multiprocessing/util"""

COMPLETE = (
    "Complete this Python function:\n\n```python\n{}\n```",
    "Finish the body of the following function and show all of it.\n\n```python\n{}\n```",
    "Please implement this function in Python.\n\n```python\n{}\n```",
    "{}\n\nComplete the Python function above. Return only the code.",
    "Fill in the missing code:\n\n```python\n{}\n```",
    "Write the rest of this function, then explain it in one sentence:\n\n```python\n{}\n```",
)

ABOUT_CODE = (
    "Explain what this Python function does, step by step:\n\n```python\n{}\n```",
    "Write unit tests for this function:\n\n```python\n{}\n```",
    "Rewrite this function with type hints and clearer names. Return the whole function.\n\n```python\n{}\n```",
    "Add comments to every line of this code:\n\n```python\n{}\n```",
    "Is there a bug in this code? Answer, then show an improved version.\n\n```python\n{}\n```",
    "Translate this Python code to JavaScript:\n\n```python\n{}\n```",
)

FREE = (
    "Write a Python function that {}.",
    "Write a Python function that {}. Include a docstring and two examples.",
    "How can I write Python code that {}?",
    "I need a small Python script that {}. Keep it short.",
    "Show me two different ways to write a Python function that {}, and compare them.",
    "Write a Python function that {} and raises a ValueError for bad input. Add a test.",
    "Write a program that {}. First in Python, then in C++.",
)

WISHES = """reads a {file} file and prints the {count} longest lines
converts temperatures between Celsius and {unit}
merges two dictionaries and adds up the values of shared keys
downloads a web page and saves all of its links to a {file} file
sorts a list of {things} by price and then by name
groups a list of {things} by their first letter
draws {count} random names from a list without repetition
formats a number of seconds as hours, minutes and seconds
checks whether a password has at least {count} characters, a digit and a capital letter
splits a list into chunks of {count}
removes duplicate {things} from a list but keeps their order
computes the average, the median and the standard deviation of the column "{column}" in a CSV file
prints a multiplication table up to {count}
finds all files that are larger than {count} megabytes in a folder
parses dates such as "2021-{month:02d}-05" and returns the weekday
simulates rolling {count} dice and draws a histogram with text
implements a queue with two stacks
implements binary search on a sorted list of {things}
implements a bank account class with deposits, withdrawals and an overdraft of {count} dollars
implements a timer as a context manager
implements a linked list with insert, delete and search
implements an LRU cache with room for {count} items
renames all {file} files in a folder so that they start with a date
prints a calendar of month {month} as text
reads a JSON list of {things} and writes it as CSV, with the columns name and {column}
solves a maze given as a list of strings with breadth-first search
plays rock, paper, scissors for {count} rounds and keeps the score
computes compound interest over {count} years
retries another function up to {count} times with growing pauses
finds the shortest path between two cities in a weighted graph
flattens a nested list of any depth
turns a snake_case name into camelCase
counts the lines of code, comments and blank lines in a Python file
compares two folders and prints which {file} files differ
draws a triangle of stars with {count} rows
sends a reminder at {count} o'clock every day
rotates a matrix by 90 degrees
transposes a table that is given as a list of rows
stores {things} in an SQLite table and finds those with a {column} above {count}
reads key=value pairs from a configuration file
encodes a text with run lengths and decodes it again
generates a random maze of {count} by {count} cells
returns the {count} most common pairs of neighbouring words of a text
converts an RGB colour to HSV
estimates pi with {count}000 random points
prints a progress bar for a long loop
schedules a tournament for {count} teams from {place}
splits a bill among {count} friends and rounds to cents""".splitlines()


def complete_library(rng: Random) -> str:
    head, _ = rng.choice(library_functions())
    return rng.choice(COMPLETE).format(head)


def about_library(rng: Random) -> str:
    sources = [source for _, source in library_functions() if 80 < len(source) < 800]
    return rng.choice(ABOUT_CODE).format(rng.choice(sources))


def complete_from_examples(rng: Random) -> str:
    return rng.choice(COMPLETE).format(rng.choice((_numbers, _text, _records))(rng))


def ask_freely(rng: Random) -> str:
    wish = rng.choice(WISHES).format(
        file=rng.choice(("text", "CSV", "JSON", "log", "Markdown", "configuration")),
        count=rng.randint(3, 20),
        unit=rng.choice(("Fahrenheit", "Kelvin")),
        things=rng.choice((*GOODS, "books", "songs", "students", "cities", "orders", "invoices", "players")),
        column=rng.choice(("price", "weight", "age", "rating", "year", "distance", "score")),
        month=rng.randint(1, 12),
        place=rng.choice(PLACES),
    )
    return rng.choice(FREE).format(wish)


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
    for module in MODULES.split():
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
    pool = [word.lower() for group in (FOODS, GOODS, PLACES, FIRST_NAMES) for word in group if " " not in word]
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

    pool = FIRST_NAMES if label == "name" else GOODS
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
