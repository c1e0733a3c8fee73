"""The numbers on the pages are those of the committed results, and those reports are what their data say."""

import json
import re

import pytest

from benchmarks import speed_up
from benchmarks.common.settings import RESULTS, settings_lines
from benchmarks.peers import __main__ as peers
from benchmarks.peers.report import report
from benchmarks.readme_table import PEERS, README, peers_part, written
from docs.tools.quotes import NUMBER, QUOTES, ROOT, filled, quoted, quoting

PAGES = {page: (ROOT / page).read_text() for page in QUOTES}


@pytest.mark.parametrize("page", QUOTES)
def test_a_page_has_the_numbers_of_the_results(page):
    assert written(page, PAGES[page]) == PAGES[page], "python -m benchmarks.readme_table"


FALSE = {
    "auto": (README, '`tree="auto"` is 3.22 times as fast at temperature 0'),
    "H100": (README, '`tree="auto"` is 4.18 times as fast as plain `generate` where first choices'),
    "random drafts": (README, 'with random drafts `tree="auto"` 0.44 and'),
    "three in another order": (README, "accepts 1.35, 1.30 and 1.27 times as many tokens per pass"),
    "headline": (README, "decodes unseen prompts 4.43 times as fast"),
    "from empty tables": ("docs/choose.md", "4.60 tokens per pass in trees of 16 from empty tables, 3.02 in chains"),
    "pass": ("docs/how.md", "over eight 26.2 and over sixteen"),
}
"""Sentences with numbers of the linked results that are another's."""


@pytest.mark.parametrize(("page", "sentence"), FALSE.values(), ids=FALSE)
def test_a_number_of_another_cell_is_found_and_mended(page, sentence):
    words = (r"\s+".join(map(re.escape, part.split(" "))) for part in re.split(NUMBER, sentence))
    changed, count = re.subn(NUMBER.join(words), lambda _: sentence, PAGES[page])
    assert count == 1
    assert changed != PAGES[page]
    assert quoting(page, changed).split() == PAGES[page].split()


def test_readme_begins_with_what_its_first_block_gives():
    """Times plain of the block itself, measured on prompts that nothing was tuned on, with plain's greedy outputs."""
    headline = QUOTES[README][0]
    filled(PAGES[README].split("## Try it")[0], headline["text"], ["", ""])  # An error if it stood elsewhere.
    assert [source[:3:2] for source in headline["from"]] == [["speed_up", "README's block"]] * 2
    assert json.loads((RESULTS / "speed_up.json").read_text())["differing"] == []


@pytest.mark.slow
def test_reports_are_what_their_data_say():
    data = json.loads((RESULTS / PEERS).read_text())
    assert (RESULTS / PEERS).with_suffix(".md").read_text() == report(data, peers.__doc__ or "")
    data = json.loads((RESULTS / "speed_up.json").read_text())
    assert (RESULTS / "speed_up.md").read_text() == f"{speed_up.report(data)}\n{settings_lines(data)}"


def test_outputs_that_are_not_plains_are_counted():
    data = json.loads((RESULTS / PEERS).read_text())
    first = next(iter(data["found"]["T = 0"]["prompts"].values()))
    first["auto"]["agreement"] = "tie"
    first["tree-8"]["agreement"] = "different"
    assert "1 differ after a tie of its two best logits, 1 are wrong." in peers_part(data)


def test_what_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"0 sentences like 'is \{\} times'"):
        filled("is twice as fast", "is {} times", ["2"])
    with pytest.raises(ValueError, match="2 sentences"):
        filled("is 2 times, is 3 times", "is {} times", ["2"])
    with pytest.raises(ValueError, match=r"speed_up\.md has no number at \('T = 0', 'tree of 9', 'in total'\)"):
        quoted("speed_up", "T = 0", "tree of 9", "in total")
    with pytest.raises(ValueError, match="has no number"):
        quoted("speed_up", "{} unseen prompts")


def test_a_missing_mark_is_named():
    with pytest.raises(ValueError, match="<!-- peers -->"):
        written(README, PAGES[README].replace("<!-- peers -->", ""))
