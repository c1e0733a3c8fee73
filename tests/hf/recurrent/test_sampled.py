"""Sampled texts with random options: token for token those of passes without a cache, with the same random numbers."""

import random
from functools import cache
from typing import Any

import pytest
import torch
from helpers.rounds import tree_logits, uncached_logits
from helpers.zoo import BY_NAME, STATEFUL, VOCAB_SIZE, build, prompts

import treespec
from treespec.checks import AUTO
from treespec.drafters import DraftModel, SuffixLookup, TokenRecycling
from treespec.hf import make_scorer
from treespec.hf.generation import target as target_file
from treespec.hf.introspect import ModelFacts
from treespec.hf.recurrent.scorer import StateScorer
from treespec.policies import BestFirst, Chain, KAry
from treespec.protocols import Capability, Scores
from treespec.tree import IID, WITHOUT_REPLACEMENT, TokenTree

DRAFTS = ("llama", "lfm2", "mamba")
OPTIONS: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.2},
    {"temperature": 0.6, "no_repeat_ngram_size": 2},
    {"top_p": 0.8, "prefix_allowed_tokens_fn": lambda _, ids: range(5 + len(ids) % 2, VOCAB_SIZE, 2)},
)
TREES: dict[str, Any] = {
    "traversal": [4, 16, Chain(3), KAry((3, 2)), BestFirst(9, WITHOUT_REPLACEMENT)],
    "auto": [4, 16, BestFirst(9), [(0,), (1,), (0, 0)]],
    "recursive": [Chain(4), KAry((2, 2), IID), BestFirst(9, WITHOUT_REPLACEMENT)],
}
"""Trees that a rule can verify, also those of draft models."""


class PathScorer:
    """A target that scores every path of a tree in a plain pass over its whole text."""

    capability, max_positions, hidden_layers = Capability.TREE, None, ()
    vocab_size, device, num_weights, cache = VOCAB_SIZE, torch.device("cpu"), 0, None

    def __init__(self, facts: ModelFacts, **_: Any) -> None:
        self._model = facts.model

    def prefill(self, ids, mask):
        self._rows = [row[valid].tolist() for row, valid in zip(ids, mask, strict=True)]
        return Scores(torch.stack([uncached_logits(self._model, row)[-1:] for row in self._rows]), {})

    def extend(self, tokens, parents):
        sizes = (parents != -2).sum(1).tolist()
        self._trees = [TokenTree(*parts) for parts in zip(*map(_cut, (tokens, parents), (sizes, sizes)), strict=True)]
        found = tree_logits(self._model, self._rows, self._trees)
        return Scores(torch.nn.utils.rnn.pad_sequence(found, batch_first=True), {})

    def commit(self, paths):
        for row, tree, path in zip(self._rows, self._trees, paths, strict=True):
            row += [tree.token(node) for node in path]

    def select_rows(self, rows):
        self._rows = [list(self._rows[row]) for row in rows]


def _cut(columns, sizes):
    return [row[:size] for row, size in zip(columns, sizes, strict=True)]


@cache
def built(name: str):
    return build(name)


def random_options(choice: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of `generate`, and those of `TreeSpeculation`."""
    pads = [0, *(choice.randrange(6) for _ in range(choice.randrange(3)))]
    mask = torch.arange(12) >= torch.tensor(pads).unsqueeze(1)
    ids = prompts(len(pads), 12, seed=choice.randrange(100)).masked_fill(~mask, 0)
    options = {"inputs": ids, "attention_mask": mask.long(), "max_new_tokens": choice.randrange(4, 16)}
    options |= {"do_sample": True, "top_k": 0, "pad_token_id": 0, "eos_token_id": choice.choice([VOCAB_SIZE + 1, 7])}
    rule = choice.choice(list(TREES))
    given = {"verification": rule, "tree": choice.choice(TREES[rule]), "seed": choice.randrange(1000)}
    return options | choice.choice(OPTIONS), given


def drafters(name: str, given: dict[str, Any], choice: random.Random):
    """A function that makes a drafter: draft models for rules that read draft distributions or drawn children."""
    draft = built(choice.choice([name, name, *DRAFTS]))
    kinds: list[Any] = [lambda: DraftModel(make_scorer(draft))]
    is_selected = getattr(given["tree"], "children", AUTO) == AUTO
    if is_selected and given["verification"] in ("auto", "traversal"):
        kinds += [TokenRecycling, lambda: [TokenRecycling(), SuffixLookup()]]
    return choice.choice(kinds)


def decoded(name: str, options: dict[str, Any], speculation: treespec.TreeSpeculation) -> tuple[Any, float]:
    out = built(name).generate(**options, custom_generate=speculation)
    return out.tolist(), speculation.stats.mean_acceptance_length


def check_random_options(seed: int, monkeypatch: pytest.MonkeyPatch, num_sets: int) -> list[float]:
    """Returns acceptance lengths."""
    choice, lengths = random.Random(seed), []
    for _ in range(num_sets):
        name = str(choice.choice(STATEFUL))
        options, given = random_options(choice)
        make = drafters(name, given, choice)
        found = decoded(name, options, treespec.TreeSpeculation(make(), **given))
        with monkeypatch.context() as patched:
            patched.setattr(target_file, "make_scorer", PathScorer)
            expected = decoded(name, options, treespec.TreeSpeculation(make(), **given))
        assert found == expected, (name, options, given)
        lengths.append(found[1])
    return lengths


@pytest.mark.parametrize(
    ("seed", "num_sets"), [(0, 4), *(pytest.param(seed, 10, marks=pytest.mark.slow) for seed in range(1, 7))]
)
def test_random_options(seed, num_sets, monkeypatch):
    """Architecture, rows, padding, tree, drafter, sampling, processors, rule and stopping at random."""
    lengths = check_random_options(seed, monkeypatch, num_sets)
    assert sum(lengths) > len(lengths)  # Something was accepted.


def test_wrong_states_are_found(monkeypatch):
    """As where a commit keeps none of the accepted nodes."""
    commit = StateScorer.commit

    def forgetting(scorer, paths):
        for layer in scorer._layers:
            layer._drop_nodes()
        commit(scorer, paths)

    monkeypatch.setitem(globals(), "STATEFUL", [BY_NAME["qwen3_5_text"]])
    for name in ("qwen3_5_text", *DRAFTS):
        make_scorer(built(name))  # With the checks of a first use, which would find it.
    monkeypatch.setattr(StateScorer, "commit", forgetting)
    with pytest.raises(AssertionError):
        check_random_options(0, monkeypatch, 10)
