"""Every measured number on a page is quoted from a result, or is in a committed one that its section links to.

Quoted are those of `docs/tools/quotes.toml`, which `tests/benchmarks/test_readme_table.py` compares with their cells:
all of the pages that it names. Measured are numbers with a fraction, thousands and percentages in prose and tables; in
README every number. Those of snippets, code and headings are not, nor the constants below.
"""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.doc_snippets import DOCS

from docs.tools.quotes import QUOTES, unquoted

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
CONSTANTS = {
    "README.md": "135 1.7 3 3.11 2.8 5.18 4 1 0 2 12 8 16 32",
    "architecture.md": "4,096 3,400 10,100 4,300 14,200",  # All but the first: test_weight.py
    "diagnosis.md": "40 60 1.15",
    "drafters.md": ".03 .4 208,559",  # 208,559: test_warm_start.py
    "heads.md": "2401.15077 2503.01840 2602.06036 2401.10774 0.33 4.5 32,000",
    "hybrids.md": "3.5 5.18 5.23",
    "how.md": ".75 .8 .2",
    "commands.md": "5.24",
    "models.md": "7.7 2,048 5.23 5.24",
    "parts.md": "5.24",
    "training.md": "8,192 24 20 13 12 8 3",  # All but the first: test_on_gpu.py
    "verification.md": "4,096",
    "vllm.md": "0.32 0.33 5.20 5.18 2,048 4,096 5",
    "deploy.md": "0.32 0.33 5.20",
}
"""By page, what is set, derived or tested elsewhere: versions, defaults, limits, papers, parameters of a setting."""
FRACTIONS_THOUSANDS_PERCENTAGES = r"(?<![\w.,/-])(?:\d{1,3}(?:,\d{3})+|\d*\.\d+|\d+(?= ?%))(?![\w]|\.\d|,\d)"
ANY_NUMBER = r"(?<![\w.,/-])(?:\d{1,3}(?:,\d{3})+|\d*\.?\d+)"


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """By section: prose that quotes nothing, and the numbers of the results that it links to."""
    for section in re.split(r"^## ", _text(page), flags=re.MULTILINE):
        links = [page.parent / link for link in re.findall(r"\]\(([^)#\s]+)", section)]
        results = [link for link in links if "results" in link.parts and link.suffix in (".md", ".json", ".csv")]
        prose = re.sub(r"\]\([^)]*\)|`[^`]*`|^#.*$", "", section, flags=re.MULTILINE)
        yield prose, "" if _name(page) in QUOTES else "\n".join(_numbers_of(result.resolve()) for result in results)


def _text(page: Path) -> str:
    """A page without code and README's table, tested elsewhere, and without the numbers that it quotes."""
    text, name = page.read_text(), _name(page)
    text = unquoted(name, text) if name in QUOTES else text
    return re.sub(r"```.*?```|<!-- (\w+) -->.*?<!-- /\1 -->|^    .*$", "", text, flags=re.DOTALL | re.MULTILINE)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@functools.cache
def _numbers_of(result: Path) -> str:
    if result.suffix != ".json":
        return result.read_text()
    return "\n".join(_rounded(json.loads(result.read_text())))


def _rounded(data: Any) -> Iterator[str]:
    """All numbers of JSON data as whole numbers and with one to three decimals."""
    if isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _rounded(value)
    elif isinstance(data, int | float):
        yield from (f"{data:.{digits}f}" for digits in range(4))


def is_in(number: str, results: str) -> bool:
    plain = number.replace(",", "")
    shown = {number, plain, "0" + plain if plain.startswith(".") else plain}
    return any(re.search(rf"(?<![\d.]){re.escape(form)}(?!\d)", results) for form in shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_measured_numbers_are_in_the_results_that_the_section_links_to(page: Path) -> None:
    pattern = ANY_NUMBER if page.name == "README.md" else FRACTIONS_THOUSANDS_PERCENTAGES
    constants = CONSTANTS.get(page.name, "").split()
    unfounded = [
        f"{number} in ...{prose[max(0, match.start() - 60) : match.end() + 20]!r}"
        for prose, results in sections(page)
        for match in re.finditer(pattern, prose)
        if (number := match[0]) not in constants and not is_in(number, results)
    ]
    assert unfounded == []


def test_a_number_without_a_result_is_found() -> None:
    assert all(is_in(*case) for case in [("1,600", "| 1600 |"), (".470", "0.470"), ("1.39", "1.39 (1.2 to 1.5)")])
    assert not any(is_in(*case) for case in [("1.39", "1.394"), ("1.39", "11.39"), ("0.5", "")])
