"""One language: words of the project's former private dialect do not come back.

The field has a word for each of them (docs/architecture.md, glossary). The check reads names, prose, error messages and
results alike; names are split into their words first, so that `draft_laws` and `DraftLaw` are found like "law".
"""

import functools
import itertools
import re
from collections.abc import Iterator
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
FORMER_NAMES = r"(?<!For)CausalLM\b(?!Output)|\bRecurrentLM\b|\bStaticLM\b"
"""Classes that are `TreeScorer`, `RecurrentScorer` and `StaticScorer` now."""

BEGINS_WITHOUT_SUBJECT = r'(?:"""|(?<!["#])# |\bhelp=f?")(?:Of|What) (?!.*\?$)|^\s*(?:// )?Of '
"""Docstrings, their paragraphs, comments and help texts name their subject first; headings and questions need not."""
SLOTS = r"\bslots?\b"
"""A slot is a position in a key-value cache and nothing else: not in policies, lookups or merges."""
ROOMS_WITHOUT_SLOTS = (
    "treespec/policies",
    "treespec/drafters/lookup",
    "treespec/drafters/merge",
    "treespec/verification",
)


def words_of(text: str) -> str:
    """The text with its names split into words, and line by line without indentation and comment signs."""
    text = re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return re.sub(r"(?m)^[ \t#]+", "", text)


@functools.cache
def texts() -> list[tuple[str, str, str]]:
    """The project's own files: path from the root, text, words."""
    files = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
    for room in ROOMS:
        files += [file for kind in KINDS for file in sorted((ROOT / room).rglob(kind))]
    named = [(str(file.relative_to(ROOT)), file) for file in files if file != Path(__file__)]
    texts = [(name, file.read_text()) for name, file in named if name not in PROMPTS]
    return [(name, text, words_of(text)) for name, text in (*texts, *results())]


def results() -> Iterator[tuple[str, str]]:
    """The names in files of data, each once; the numbers are megabytes."""
    for room, kind in itertools.product(("benchmarks/results", "treespec/data"), ("*.json", "*.csv")):
        for file in sorted((ROOT / room).rglob(kind)):
            names = dict.fromkeys(re.findall(r"[A-Za-z][\w .'-]*", file.read_text()))
            yield str(file.relative_to(ROOT)), "\n\n".join(names)


def findings(pattern: str, prefix: str = "") -> list[str]:
    """Where words stand, also across the end of a line, as `file:line: line`."""
    found = []
    for name, text, words in texts():
        if name.startswith(prefix):
            for match in re.finditer(pattern, words.replace("\n", " "), re.IGNORECASE):
                line = words.count("\n", 0, match.start())
                found.append(f"{name}:{line + 1}: {text.splitlines()[line].strip()}")
    return found


@pytest.mark.parametrize("former", FORMER_WORDS)
def test_former_words_do_not_come_back(former: str) -> None:
    found = findings(former)
    assert not found, f"say {FORMER_WORDS[former]}:\n" + "\n".join(found[:20])


@pytest.mark.parametrize("word", LIBRARY_WORDS)
def test_the_library_speaks_plainly(word: str) -> None:
    found = findings(word, "treespec/")
    assert not found, f"say {LIBRARY_WORDS[word]}:\n" + "\n".join(found[:20])


def test_former_names_of_scorers_do_not_come_back() -> None:
    found = [name for name, text, _ in texts() if re.search(FORMER_NAMES, text)]
    assert not found, "say TreeScorer, RecurrentScorer, ..."


def test_docstrings_and_comments_begin_with_their_subject() -> None:
    found = [
        f"{name}: {line.strip()}"
        for name, text, _ in texts()
        for line in text.splitlines()
        if not name.endswith(".md") and re.search(BEGINS_WITHOUT_SUBJECT, line)
    ]
    assert not found, "name the subject first: " + "\n".join(found[:20])


@pytest.mark.parametrize("room", ROOMS_WITHOUT_SLOTS)
def test_slots_are_those_of_caches(room: str) -> None:
    found = findings(SLOTS, room)
    assert not found, "a slot is a position in a key-value cache:\n" + "\n".join(found[:20])


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


FORMER = """the target's law|draft_laws|TargetLaws|DraftLaw|PathLaw|LawError|AdmissionError|auto_admits_what|admissible
telling_step|tells_both|told_one_to_one|keeps note of it|takes notice|built anew|that_are_none
what_is_none|of what is none|acceptance_per_place|n_places|numPlaces|PLACES|the place of a node|offer_nodes|heard_votes
doubt_weight|is_promising|FAMILIES|by_family|the sampling family|no tree of a row's own|of a row's own, and
self.policy.commit(step)|BlockDrafter
Mixin among the bases|is no trace|paths_that_are_no_tree|beside vLLM|nothing_beside_it
draft too dear|DEAR_HOST|draftDear|block_heads|is_dspark|what
is none"""
"""Separated by bars or lines; the last one goes over the end of a line."""
FINE = """lawn, flaws, Lawrence|in place of|in_place|takes place|three decimal places
placeholder|AMD EPYC (family 26, model 2)
the model family|family="monospace"|the target's own layers|layers of its own|the text's own ending
retell, hotel, intellect|note that|cache.commit(path)|admire|for lack of a better one
coffers|stakeholders|threshold|prejudge|endearing
there is no trace|there are no nodes|is no longer|costs are no more|is no matter|type(processors) is NoProcessors
a tree is no deeper than|has no setting|besides"""


def is_former(text: str) -> bool:
    return any(re.search(former, words_of(text).replace("\n", " "), re.IGNORECASE) for former in FORMER_WORDS)


@pytest.mark.parametrize("text", re.split(r"\||\n(?!is none)", FORMER))
def test_the_check_finds_former_words_in_names_and_prose(text: str) -> None:
    assert is_former(text)


@pytest.mark.parametrize("text", re.split(r"\||\n", FINE))
def test_the_check_leaves_plain_english_alone(text: str) -> None:
    assert not is_former(text)


def test_a_class_of_transformers_may_be_named() -> None:
    assert re.search(FORMER_NAMES, "a CausalLM")
    assert not re.search(FORMER_NAMES, "AutoModelForCausalLM, CausalLMOutputWithPast")


def test_help_texts_are_found() -> None:
    assert re.search(BEGINS_WITHOUT_SUBJECT, 'SeedOption = Annotated[int, typer.Option(help="Of all numbers.")]')
