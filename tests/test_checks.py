"""Public objects show their options."""

import inspect
import re

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
NUMBERS = [
    (kind, name)
    for kind in MADE
    for name, parameter in inspect.signature(globals()[kind]).parameters.items()
    if re.search(r"\b(int|float)\b", str(parameter.annotation))
    and not re.search(r"\b(bool|tuple)\b", str(parameter.annotation))
]


def test_numbers_are_found() -> None:
    assert len(NUMBERS) > 30


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_bools_are_refused_as_numbers(kind: str, name: str) -> None:
    """True for a count, a share or a budget is a slip, as where two arguments were swapped."""
    with pytest.raises(ConfigError, match="True"):
        MADE[kind](**{name: True})


FLAGS = [
    (kind, name)
    for kind in MADE
    for name, parameter in inspect.signature(globals()[kind]).parameters.items()
    if re.fullmatch(r"bool( \| None)?", str(parameter.annotation))
]


@pytest.mark.parametrize(("kind", "name"), FLAGS)
@pytest.mark.parametrize("value", ["no", 1])
def test_other_values_are_refused_as_flags(kind: str, name: str, value: object) -> None:
    """The string "no" would count as true."""
    with pytest.raises(ConfigError, match=f"{name} must be True or False, got {value!r}"):
        MADE[kind](**{name: value})


def test_large_options_are_shown_by_their_class() -> None:
    model = tiny_llama()
    assert repr(TreeSpeculation(model, tree=4)).startswith("TreeSpeculation(DraftModel(scorer=<TreeScorer>")
    assert repr(SuffixStore([[1] * 1000])) == "SuffixStore()"
