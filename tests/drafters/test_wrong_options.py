"""Users' mistakes in the options of drafters and policies, and the error that each gives."""

import pytest
import torch
from helpers import dflash_files
from helpers.tiny import tiny_llama

from treespec import DraftModel, SuffixLookup, TokenRecycling, TreeScorer
from treespec.drafters.lookup.recycling_table import Table
from treespec.errors import ConfigError
from treespec.heads import DFlash, Eagle3, Medusa

DRAFT = tiny_llama()
DFLASH_HEAD = dflash_files.random_head(dflash_files.shape())

WRONG = {
    "drafts of less than no token": (lambda: SuffixLookup(max_factor=-0.5), "max_factor must be a number >= 0"),
    "matches that cannot be": (lambda: SuffixLookup(max_match=1, min_match=3), "min_match is 3"),
    **{
        f"a longest text of {length!r}": (
            lambda length=length: DraftModel(TreeScorer(DRAFT), max_length=length),
            "max_length must be a positive int",
        )
        for length in (0, 2.5)
    },
    "a head's longest text": (lambda: DFlash(DFLASH_HEAD, (1, 2), max_length=0), "max_length must be a positive int"),
    "a model for a head": (lambda: Eagle3(DRAFT, (1, 2, 0)), "an Eagle3Head, got LlamaForCausalLM"),
    "a head of another kind": (lambda: Eagle3(DFLASH_HEAD, (1, 2)), "an Eagle3Head, got DFlashHead"),
    "a head's folder": (lambda: DFlash("folder", (1, 2)), r"got str: load_drafter"),
    "a folder for Medusa heads": (lambda: Medusa("folder"), r"got str: Medusa\.load"),
    "too few hidden layers": (lambda: DFlash(DFLASH_HEAD, (1,)), r"of the 2 hidden .* got \(1,\)"),
    "one hidden layer": (lambda: DFlash(DFLASH_HEAD, 1), "of the 2 hidden states .* got 1"),
    "a string for a table": (lambda: TokenRecycling(table="x"), "Table of tensors, got str"),
    "a table of other shapes": (
        lambda: TokenRecycling(table=Table(torch.ones(4, 2).long(), torch.ones(2))),
        r"hits \[k \+ 1\], got",
    ),
    **{
        f"a table of {candidates} and {hits}": (
            lambda given=(candidates, hits): TokenRecycling(table=Table(*map(torch.tensor, given))),
            words,
        )
        for candidates, hits, words in (
            ([[1], [-2]], [0.0, 0.0], "tokens of its 2 rows"),
            ([[1], [0]], [torch.nan, 0.0], "hits must be counts"),
            ([[1], [0]], [-1.0, 1.0], "hits must be counts"),
            ([[1], [0]], [2.0, 1.0], "hits must be counts"),
        )
    },
    "no candidates": (lambda: TokenRecycling(0), "num_candidates"),
    "a table of floats": (lambda: TokenRecycling(table=Table(torch.ones(4, 2), torch.ones(3))), "int64"),
}


@pytest.mark.parametrize(("call", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_gets_a_clear_error(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
