"""One language: words of the project's former private dialect do not come back.

The field has a word for each of them (docs/architecture.md, glossary). The check reads names, prose and error
messages alike; names are split into their words first, so that `draft_laws` and `DraftLaw` are found like "law".
"""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("treespec", "benchmarks", "recipes", "examples", "hub", "docs", "tests")
KINDS = ("*.py", "*.md", "*.sh", "*.cpp")
PROMPTS = {
    f"recipes/smollm2_head/{name}.py" for name in ("chat", "code", "open_talk", "openings", "passages", "problems")
}
"""Texts for a model, whatever their words."""

FORMER_WORDS = {
    r"(?<!in-)\blaws?\b": "distribution; `probs`, `draft_probs`, `target_probs` in names",
    r"\bchoosers?\b": "random source, `rng`",
    r"\badmi(?:ts?|tted|tting|ssions?|ssible)\b|\bobjections?\b": "requirements, supports, reason",
    r"\bpromis(?:e|es|ed|ing)\b|\bdoubt(?:s|ed)?\b": "confidence, smoothing",
    r"\boffer(?:s|ed|ings?)?\b|\bheard\b|\bholders?\b": "vote, weight, voters",
    r"\bjudg(?:e|es|ed|ing|ement)\b": "verify; evaluate (trained heads)",
    r"\b(?:told|tells?|telling)\b|\b(?:takes?|took|keeps?|kept) note\b": "receives, reports, passes on; records",
    r"\banew\b|\btakes? notice\b|\b(?:what|that|which) (?:is|are) none\b": "again, from scratch; invalid",
    r"(?<!\bin[ -])(?<!\bout of )(?<!\btake )(?<!\btakes )(?<!\btook )(?<!\bdecimal )\bplaces?\b(?!\.\w)": (
        "position, depth and rank, node, device"
    ),
    r"(?<!\bmodel )(?<!\bcpu )\bfamil(?:y|ies)\b(?!=| \d| \{)": "sampling scheme; kind of heads; architecture",
    r"\bof (?:a|an|the) \w+'s own\b(?! [\w`])": "name what it has: the row has a tree",
    r"\b(?:policy|policies|drafters?)\.commit\b": "`update`; only caches commit",
    r"\bdear(?:er|est|ly)?\b": "expensive, too expensive",
    r"(?<!\bthere )\b(?:is|are) no (?!(?:longer|more|less|fewer|matter|processors|\w+er than)\b)(?=\w)": (
        "is not a ..., does not apply to ..."
    ),
    r"\bbeside\b": "next to, compared with, together with, in addition to",
    r"\bmore and more seldom\b": "with increasing back-off",
    r"\bbehind each other\b": "consecutive, one after the other",
    r"\bparts? from plain\b|\bpart at near-ties\b": "differ from",
    r"\bfigures of before\b": "earlier measurements",
    r"\bamong the bases\b": "mixin placed before ... in the MRO",
    r"\bblock (?:drafters?|heads?|configs?)\b|\bis dspark\b|\bblock[- ]parallel\b": "DFlash, `dflash`",
}
"""Patterns of words, upper and lower case alike, to what says it now."""
LIBRARY_WORDS = {
    r"\bso many\b(?! that)": "this many, or the name of the number",
    r"(?<!left it )(?<!\. )\bbehind\b(?! ?`)": "after",
    r"\b(?:this|that|a|its|these|those) rooms?\b(?! for)": "package, buffer",
    r"\bmay lie\b|\bgoes on\b|\bwhoever\b|\bas it was\b": "may be; continues; name the subject; unchanged",
}
"""The same in the library's docstrings, comments and messages."""
BEGINS_WITHOUT_SUBJECT = r'(?:"""|(?<!["#])# |\bhelp=f?")(?:Of|What) (?!.*\?$)|^\s*(?:// )?Of '
"""Docstrings, their paragraphs, comments and help texts name their subject first; headings and questions need not."""


def words_of(text: str) -> str:
    """The text with its names split into words, and line by line without indentation and comment signs."""
    text = re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return re.sub(r"(?m)^[ \t#]+", "", text)


@functools.cache
def texts() -> list[tuple[str, str, str]]:
    """The project's own files: path from the root, text, words on one line."""
    files = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
    for room in ROOMS:
        files += [file for kind in KINDS for file in sorted((ROOT / room).rglob(kind))]
    named = [(str(file.relative_to(ROOT)), file) for file in files if file != Path(__file__)]
    texts = [(name, file.read_text()) for name, file in named if name not in PROMPTS]
    return [(name, text, words_of(text).replace("\n", " ")) for name, text in texts]


@pytest.mark.parametrize(
    ("word", "room"), [*((word, "") for word in FORMER_WORDS), *((word, "treespec/") for word in LIBRARY_WORDS)]
)
def test_former_words_do_not_come_back(word: str, room: str) -> None:
    """Nor across the end of a line."""
    found = [
        f"{name}: ...{text[max(0, match.start() - 40) : match.end() + 20]}..."
        for name, _, text in texts()
        if name.startswith(room)
        for match in re.finditer(word, text, re.IGNORECASE)
    ]
    assert not found, f"say {(FORMER_WORDS | LIBRARY_WORDS)[word]}:\n" + "\n".join(found[:20])


def test_docstrings_and_comments_begin_with_their_subject() -> None:
    found = [
        f"{name}: {line.strip()}"
        for name, text, _ in texts()
        for line in text.splitlines()
        if not name.endswith(".md") and re.search(BEGINS_WITHOUT_SUBJECT, line)
    ]
    assert not found, "name the subject first: " + "\n".join(found[:20])


def test_errors_are_documented_in_one_way() -> None:
    """As a block, or as a sentence: docs/architecture.md, Docstrings."""
    style = re.compile(r"\bRaises\b(?!:$| `\w+Error`: \S)", re.MULTILINE)
    found = [
        f"{name}: {text[match.start() :].splitlines()[0]}"
        for name, text, _ in texts()
        if name.startswith("treespec/") and name.endswith(".py")
        for match in style.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_the_check_finds_former_words_in_names_and_leaves_plain_english_alone() -> None:
    def is_former(text: str) -> bool:
        return any(re.search(former, words_of(text), re.IGNORECASE) for former in FORMER_WORDS)

    fine = ["lawn, Lawrence", "in_place", "the model family", "cache.commit(path)", "is no longer"]
    former = "the target's law|DraftLaw|draft_laws|that_are_none|numPlaces|policy.commit(x)"
    assert all(map(is_former, former.split("|")))
    assert not any(map(is_former, fine))
    assert re.search(BEGINS_WITHOUT_SUBJECT, 'SeedOption = Annotated[int, typer.Option(help="Of all numbers.")]')
