"""The numbers in the sentences of the pages, by the cells of committed tables that they quote.

`quotes.toml` has by page the sentences, with `{}` for every number, and where each number stands:

- `["speed_up", "T = 0", "tree of 8", "in total"]`: a file of `benchmarks/results/` without `.md`, a table by its
  heading or its first column's name, labels of a row (a label that several rows share stands in the first), a column;
- `["speed_up", "{} held-out prompts"]`: a file, and words in it.

`python -m benchmarks.readme_table` writes the numbers; `tests/docs/test_numbers.py` names numbers of these pages that
no sentence has.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from benchmarks.common.settings import RESULTS

ROOT = Path(__file__).parents[2]
QUOTES: dict[str, list[dict]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""By page, from the repository's root: the sentences, each `{"text": ..., "from": [a source per number]}`."""
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


def quoting(page: str, text: str) -> str:
    """The text of a page with the numbers of the results in its sentences."""
    for sentence in QUOTES[page]:
        text = filled(text, sentence["text"], [quoted(*source) for source in sentence["from"]])
    return text


def unquoted(page: str, text: str) -> str:
    """The text of a page without the numbers that are quoted."""
    for sentence in QUOTES[page]:
        text = filled(text, sentence["text"], [""] * len(sentence["from"]))
    return text


def filled(text: str, sentence: str, numbers: Iterable[str]) -> str:
    """A text with these numbers in one of its sentences.

    Raises `ValueError`: the sentence does not stand in the text once, or has another count of numbers.
    """
    found = list(_pattern(sentence).finditer(text))
    if len(found) != 1:
        raise ValueError(f"{len(found)} sentences like {sentence!r}, expected one")
    words = found[0].groups()
    changed = "".join(part for pair in zip(words, [*numbers, ""], strict=True) for part in pair)
    return text[: found[0].start()] + changed + text[found[0].end() :]


def quoted(file: str, *where: str) -> str:
    """The number of a source, see the module.

    Raises `ValueError`: there is none.
    """
    text = (RESULTS / f"{file}.md").read_text()
    found = _in_words(text, *where) if len(where) == 1 else _in_table(text, *where)
    if found is None:
        raise ValueError(f"{file}.md has no number at {where}")
    return found


def _in_words(text: str, words: str) -> str | None:
    before, after = (re.escape(part) for part in words.split("{}"))
    found = re.search(f"(?<![\\d.]){before}({NUMBER}){after}", text)
    return found and found[1]


def _in_table(text: str, table: str, *labels_and_column: str) -> str | None:
    """The number that the first fitting cell begins with: paired ratios have their intervals after it."""
    *labels, column = labels_and_column
    for names, header, cells in _rows(text):
        if table in names and column in header and {*labels} <= {*cells}:
            found = re.match(NUMBER, cells[header.index(column)])
            return found and found[0]
    return None


@cache
def _rows(text: str) -> list[tuple[set[str], list[str], list[str]]]:
    """Every row of every table: the table's names, its columns, the row's cells."""
    return [row for section in re.split(r"^#+ ", text, flags=re.MULTILINE) for row in _rows_of(section)]


def _rows_of(section: str) -> Iterator[tuple[set[str], list[str], list[str]]]:
    heading = section.partition("\n")[0]
    for table in re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines())
        first = ""
        for cells in rows:
            first = cells[0] = cells[0] or first
            yield {heading, header[0]}, header, cells


def _pattern(sentence: str) -> re.Pattern[str]:
    """Matches a sentence however its lines are broken; its groups are the words around the numbers."""
    parts = (r"\s+".join(map(re.escape, part.split(" "))) for part in sentence.split("{}"))
    return re.compile(NUMBER.join(f"({part})" for part in parts))
