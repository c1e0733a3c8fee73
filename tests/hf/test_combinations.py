"""Models x weights x adapters x prompts x constraints: identical, refused by name, or an explained tie."""

from collections import Counter

import pytest
from helpers.matrix.cells import ALL, DIFFERENT, IDENTICAL, PACKAGE, REFUSED, choose, installed, run_group

pytestmark = pytest.mark.filterwarnings("ignore")


def outcomes(axes, folder, per_model):
    groups = choose(axes, per_model)
    return {cell: found for group, cells in groups.items() for cell, found in run_group(group, cells, folder)}


def check(found):
    different = {cell: outcome.detail for cell, outcome in found.items() if outcome.word == DIFFERENT}
    assert different == {}
    counts = Counter(outcome.word for outcome in found.values())
    assert counts[IDENTICAL] > counts.total() / 3
    for cell, outcome in found.items():
        is_refused = "encoder-decoder" in cell.model or cell.prompt == "embeddings" or cell.adapter == "prompt tuning"
        if is_refused or cell.constraint == "xgrammar's processor":
            assert outcome.word in (REFUSED, PACKAGE), (cell, outcome)
        else:
            assert outcome.word != REFUSED or "keeps a state" in outcome.detail, (cell, outcome)


def test_a_part_of_the_matrix(tmp_path):
    axes = installed({**ALL, "weights": ["float32"], "adapter": ["none", "LoRA"]})
    check(outcomes(axes, tmp_path, per_model=1))


@pytest.mark.slow
def test_the_matrix_with_what_is_installed_for_the_tests(tmp_path):
    check(outcomes(installed(), tmp_path, per_model=3))


def test_every_pair_of_prompt_and_constraint_is_dealt_out():
    cells = [cell for cells in choose(ALL, 4).values() for cell in cells]
    pairs = Counter((cell.prompt, cell.constraint) for cell in cells if "images" in cell.model)
    assert len(pairs) == (len(ALL["prompt"]) - 1) * (len(ALL["constraint"]) - 1) + 2
