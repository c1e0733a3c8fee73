"""One language: words of the project's former private dialect do not come back.

The field has a word for each of them (docs/architecture.md, glossary). The check reads names, prose, error messages and
result tables alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("treespec", "benchmarks", "examples", "hub", "docs", "tests")

FORMER_WORDS = {
    r"(?<![a-z])laws?(?![a-z])": "distribution; `probs`, `draft_probs`, `target_probs` in names",
    r"choosers?": "random source, `rng`",
    r"\badmi(?:ts?|tted|tting|ssions?|ssible)\b|objections?": "requirements, supports, reason",
    r"\bpromis(?:e|es|ed|ing)\b|\bdoubt(?:s|ed)?\b": "confidence, smoothing",
    r"\boffer(?:s|ed|ing)?\b|\bheard\b|\bholders?\b": "vote, weight, voters",
    r"(?<![a-z])judg(?:e|es|ed|ing|ement)(?![a-z])": "verify; evaluate (trained heads)",
    r"\b(?:told|tells?|telling)\b": "receives, reports, passes on",
    r"\banew\b|\btakes? notice\b|\b(?:what|that|which) (?:is|are) none\b": "again, from scratch; invalid",
    r"(?<!\bin )(?<!\bout of )(?<!take )(?<!takes )\bplaces?\b(?!\.\w)": "position, depth and rank, node, device",
    r"\bBlock(?:Drafter|Head|Config)\b|\bis_dspark\b|block[- ]parallel|\bblock heads?\b": "DFlash, `dflash`",
    r"(?<!For)CausalLM\b(?!Output)|\bRecurrentLM\b|\bEarlyExitLM\b|\bStaticLM\b": "TreeScorer, RecurrentScorer, ...",
}
"""Pattern to the words that say it now."""

SLOTS = re.compile(r"(?<![a-z])slots?(?![a-z])", re.IGNORECASE)
"""A slot is a position in a key-value cache and nothing else: not in policies, lookups or merges."""
ROOMS_WITHOUT_SLOTS = (
    "treespec/policies",
    "treespec/drafters/lookup",
    "treespec/drafters/merge",
    "treespec/verification",
)


def texts() -> Iterator[tuple[str, str]]:
    """The project's own files, by their path from the root."""
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    for room in ROOMS:
        files += [file for kind in ("*.py", "*.md") for file in sorted((ROOT / room).rglob(kind))]
    for file in files:
        # Prompts are texts for a model, whatever their words.
        if file != Path(__file__) and "/data/" not in str(file) and file.name != "prompts.py":
            yield str(file.relative_to(ROOT)), file.read_text()


def findings(pattern: re.Pattern[str], prefix: str = "") -> list[str]:
    """Lines in which a pattern stands, as `file:line: line`."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        if name.startswith(prefix)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("former", FORMER_WORDS)
def test_former_words_do_not_come_back(former: str) -> None:
    found = findings(re.compile(former, re.IGNORECASE if former.islower() else 0))
    assert not found, f"say {FORMER_WORDS[former]}:\n" + "\n".join(found[:20])


@pytest.mark.parametrize("room", ROOMS_WITHOUT_SLOTS)
def test_slots_are_those_of_caches(room: str) -> None:
    found = findings(SLOTS, room)
    assert not found, "a slot is a position in a key-value cache:\n" + "\n".join(found[:20])


def test_the_check_sees_what_it_is_for() -> None:
    for line, is_former in (
        ("the target's law", True), ("draft_laws", True), ("TargetLaws", False), ("lawn, flaws", False),
        ("in place of", False), ("the place of a node", True), ("AutoModelForCausalLM", False), ("a CausalLM", True),
    ):  # fmt: skip
        hits = [former for former in FORMER_WORDS if re.search(former, line, re.IGNORECASE if former.islower() else 0)]
        assert bool(hits) == is_former, (line, hits)
