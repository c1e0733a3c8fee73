"""docs/own.md: its parts decode, and the rule of the page is proven."""

import pytest
import torch
from helpers.doc_snippets import run_page
from helpers.tiny import identical, padded

import treespec
from treespec.protocols import Drafter
from treespec.testing import TOY_SCHEMES, distribution_pairs, exact


@pytest.fixture(scope="module")
def names() -> dict:
    """Names from the page's snippets, run in order; the rule of the page is proven on two shapes instead of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "SHAPES", {name: exact.SHAPES[name] for name in ("chain", "2x2")})
        names = run_page("own.md")
    assert len(names["cases"]) == len(TOY_SCHEMES) * 2 * len(distribution_pairs(2))
    return names


def test_the_parts_decode(names: dict) -> None:
    assert isinstance(names["drafter"], Drafter)
    assert isinstance(names["Repeat"](), Drafter)
    assert names["speculation"].stats.num_draft_tokens > 0
    assert names["speculation"].stats.num_emitted_tokens == 16


@pytest.mark.parametrize("tree", ["Fork", "BestFirst"])
def test_greedy_output_is_identical_to_plain_generate(names: dict, tree: str) -> None:
    policy = names["Fork"]() if tree == "Fork" else treespec.BestFirst(6)
    speculation = treespec.TreeSpeculation(names["drafter"], tree=policy)
    identical(names["model"], padded(torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]]), [0, 0]), speculation)
