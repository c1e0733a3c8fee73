"""Public objects show their options."""

import inspect
import re
from itertools import product

import pytest

from tests.helpers.tiny import tiny_llama
from treespec import (
    BestFirst,
    Chain,
    Control,
    KAry,
    Sequoia,
    SuffixLookup,
    SuffixStore,
    TokenRecycling,
    TraceFile,
    TreeSpeculation,
)
from treespec.errors import ConfigError
from treespec.literature.kseq import KSeq
from treespec.training.options import TrainingConfig
from treespec.training.text.batch import Writing


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (Chain(3), "Chain(k=3)"),
        (BestFirst(16, depth=4), "BestFirst(num_nodes=16, depth=4)"),
        (Control(), "Control()"),
        (KAry((2, 2)), "KAry(branching=[2, 2])"),
        (TokenRecycling(), "TokenRecycling()"),
        (
            TreeSpeculation([SuffixLookup(min_prob=0.1), TokenRecycling()], tree=Chain(2)),
            "TreeSpeculation(Merge(drafters=[SuffixLookup(min_prob=0.1), TokenRecycling()], pool=<OpinionPool>), "
            "tree=Chain(k=2), verification='auto')",
        ),
    ],
)
def test_public_objects_show_their_options(shown: object, expected: str) -> None:
    assert repr(shown) == expected


MADE = {
    "BestFirst": lambda **options: BestFirst(**{"num_nodes": 8} | options),
    "Chain": Chain,
    "Control": Control,
    "KSeq": KSeq,
    "Sequoia": lambda **options: Sequoia(**{"probs": [0.5, 0.2], "num_nodes": 4} | options),
    "SuffixLookup": SuffixLookup,
    "TokenRecycling": TokenRecycling,
    "TrainingConfig": TrainingConfig,
    "TraceFile": lambda **options: TraceFile("x", **options),
    "TreeSpeculation": lambda **options: TreeSpeculation(TokenRecycling(), **options),
    "Writing": Writing,
}
OPTIONS = [
    (kind, name, str(parameter.annotation))
    for kind in MADE
    for name, parameter in inspect.signature(globals()[kind]).parameters.items()
]
NUMBERS = [
    (kind, name)
    for kind, name, annotation in OPTIONS
    if re.search(r"\b(int|float)\b", annotation) and not re.search(r"\b(bool|tuple)\b", annotation)
]
FLAGS = [(kind, name) for kind, name, annotation in OPTIONS if re.fullmatch(r"bool( \| None)?", annotation)]


def test_bools_are_refused_as_numbers() -> None:
    """True for a count, a share or a budget is a slip, as where two arguments were swapped."""
    assert len(NUMBERS) > 30
    for kind, name in NUMBERS:
        with pytest.raises(ConfigError, match="True"):
            MADE[kind](**{name: True})


def test_other_values_are_refused_as_flags() -> None:
    """The string "no" would count as true."""
    assert len(FLAGS) > 2
    for (kind, name), value in product(FLAGS, ("no", 1)):
        with pytest.raises(ConfigError, match=f"{name} must be True or False, got {value!r}"):
            MADE[kind](**{name: value})


def test_large_options_are_shown_by_their_class() -> None:
    assert repr(TreeSpeculation(tiny_llama(), tree=4)).startswith("TreeSpeculation(DraftModel(scorer=<TreeScorer>")
    assert repr(SuffixStore([[1] * 1000])) == "SuffixStore()"
