"""The numbers on the pages are those of the committed results, and those reports are what their data say."""

import json
import re

import pytest

from benchmarks.common.settings import RESULTS
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
    "pass": ("docs/how.md", "bring 3.30 tokens each"),
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
    """Whole calls of `tree="auto"` in times of plain `generate`, on prompts that nothing was tuned on.

    That the block finds that contestant's drafters is tested in tests/speedup: test_what_ships_is_found_...
    """
    headline = QUOTES[README][0]
    filled(PAGES[README].split("## Try it")[0], headline["text"], ["", ""])  # An error if it stood elsewhere.
    where = '`tree="auto"`', "whole calls: times plain"
    assert headline["from"] == [["peers/peers", f"T = {temperature}", *where] for temperature in (0, 1)]
    assert "1,500 of 1,500 greedy outputs are identical" in peers_part(json.loads((RESULTS / PEERS).read_text()))


def test_speeds_on_cpus_are_of_one_engine_in_one_run():
    """Other files have what does not depend on a machine's speed, and a GPU's."""
    files = {source[0] for sentences in QUOTES.values() for one in sentences for source in one["from"]}
    others = {"tree_vs_chain/tree_vs_chain", "verification/verification", "joint_distribution/joint_distribution"}
    assert files - others - {"accelerator-h100"} == {"peers/peers"}
    assert all(re.search(r"commit (before )?[0-9a-f]{8}, ", (RESULTS / f"{file}.md").read_text()) for file in files)
    runs = [cell["run"] for cell in json.loads((RESULTS / PEERS).read_text())["found"].values()]
    assert len({(run["versions"]["commit"], run["processor"]) for run in runs}) == 1


@pytest.mark.slow
def test_reports_are_what_their_data_say():
    data = json.loads((RESULTS / PEERS).read_text())
    assert (RESULTS / PEERS).with_suffix(".md").read_text() == report(data, peers.__doc__ or "")


def test_what_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"0 sentences like 'is \{\} times'"):
        filled("is twice as fast", "is {} times", ["2"])
    with pytest.raises(ValueError, match=r"peers\.md has no number at \('T = 0', 'tree of 9', 'in total'\)"):
        quoted("peers/peers", "T = 0", "tree of 9", "in total")
