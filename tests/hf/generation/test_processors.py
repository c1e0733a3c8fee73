"""Processors on trees: stacked paths get what single ones get."""

import pytest
import torch
from helpers.tiny import tiny_llama
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from treespec import TokenRecycling, TreeSpeculation
from treespec.engine.target_probs import TargetProbs
from treespec.errors import UnsupportedModeError
from treespec.hf.generation.processors import TreeProcessors, check_follows_text
from treespec.protocols import History, Scores
from treespec.tree import TokenTree, TreeBatch

IDS = torch.tensor([[3, 4, 5]])


def test_dense_scores_equal_those_on_demand():
    """Rows of different lengths, trees of different shapes: stacking changes nothing."""
    trees = TreeBatch.from_trees(
        [
            TokenTree.from_paths("[(0,), (1,), (0, 0), (0, 1)]", [5, 3, 4, 3, 6]),
            TokenTree.from_paths("[(0,), (0, 0), (0, 0, 0)]", [2, 5, 2, 5]),
            TokenTree.from_paths("[(0,)]", [1, 1]),
        ]
    )
    ids = torch.tensor([[3, 4, 3, 4, 5], [0, 5, 2, 5, 2], [6, 6, 6, 1, 1]])
    history = History(ids, ids > 0)
    history.append(1, [2])
    processors = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.7), NoRepeatNGramLogitsProcessor(2), TemperatureLogitsWarper(0.7)]
    )
    logits = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    probs = TargetProbs(trees, Scores(logits), history, TreeProcessors(processors, 3), [0, 1, 2], is_sampling=True)
    dense = probs.dense_scores()
    for row, tree in enumerate(trees.trees):
        for node in range(tree.num_nodes):
            path = [tree.token(i) for i in tree.path_to(node)[1:]]
            alone = processors(torch.tensor([[*history.row(row).tolist(), *path]]), logits[row, node].unsqueeze(0))[0]
            assert torch.equal(probs.scores(row, node), alone)
            assert torch.equal(dense[row, node], alone)


class RowDependent:
    """Forbids a token that depends on the row, as a prefix function may."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row in range(len(scores)):
            scores[row, row + 1] = -torch.inf
        return scores


def test_an_unknown_processor_sees_its_own_row():
    processors = TreeProcessors([RowDependent()], num_rows=3)
    assert not processors.is_row_free
    ids, logits = torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 6)
    for row in range(3):
        is_forbidden = processors(ids, logits, row).isinf()
        assert is_forbidden.nonzero().tolist() == [[0, row + 1], [1, row + 1]]
    assert logits.eq(0).all(), "the model's logits must not be written to"


class Counting:
    """Forces the next token of its own text at every call, as processors that follow one text do."""

    num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        forced = torch.full_like(scores, -torch.inf)
        forced[:, 10 + self.num_calls % 7] = 0
        return forced


class Remembering:
    """A function of the text that keeps what it has found."""

    def __init__(self):
        self.known = {}

    def __call__(self, input_ids, scores):
        key = tuple(input_ids[:, -1].tolist())
        return scores + self.known.setdefault(
            key, torch.randn(scores.shape, generator=torch.Generator().manual_seed(3))
        )


@pytest.mark.parametrize("package", ["own", "transformers.generation.logits_process"])
def test_a_processor_that_follows_its_calls_is_refused(package, monkeypatch):
    """Those of a newer transformers too."""
    monkeypatch.setattr(Counting, "__module__", package)
    options = {"max_new_tokens": 6, "logits_processor": LogitsProcessorList([Counting()])}
    with pytest.raises(UnsupportedModeError, match=r"Counting gives the same text other scores .*GrammarProcessor"):
        tiny_llama().generate(IDS, **options, custom_generate=TreeSpeculation(TokenRecycling(), tree=4))


class Matching:
    """Follows one text and raises when a call is not for the next token of it, as matchers of grammars do."""

    length = None

    def __call__(self, input_ids, scores):
        if self.length is not None and input_ids.shape[1] != self.length + 1:
            raise IndexError(f"{input_ids.shape[1]} tokens do not follow {self.length}")
        self.length = input_ids.shape[1]
        return scores


def test_the_error_of_a_processor_that_raises_while_it_is_probed_is_seen():
    words = r"Matching raises IndexError \(3 tokens do not follow 4\)"
    with pytest.raises(UnsupportedModeError, match=words) as caught:
        check_follows_text(Matching(), IDS, vocab_size=40)
    assert isinstance(caught.value.__cause__, IndexError)


class Broken:
    """Raises for every text but the prompt, or for the prompt too."""

    def __init__(self, longest):
        self.longest = longest

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] > self.longest:
            raise ZeroDivisionError("the processor's own fault")
        return scores


@pytest.mark.parametrize("longest", [2, 3, 5])
def test_a_processor_that_raises_in_plain_decoding_too_raises_the_same(longest):
    options = {"max_new_tokens": 6, "logits_processor": LogitsProcessorList([Broken(longest)]), "do_sample": False}
    for chosen in (None, TreeSpeculation(TokenRecycling(), tree=4)):
        with pytest.raises(ZeroDivisionError, match="own fault"):
            tiny_llama().generate(IDS, **options, custom_generate=chosen)


class KnowsOneText:
    """A function of the text that knows no text but those of one continuation."""

    def __init__(self, texts):
        self.texts = texts

    def __call__(self, input_ids, scores):
        for text in input_ids.tolist():
            if text not in self.texts:
                raise KeyError(f"{text} is unknown")
        return scores


def test_a_function_of_the_text_is_not_refused():
    """Also where it does not know the probing texts."""
    for ids, processor in (
        (IDS, KnowsOneText([[3, 4, 5], [3, 4, 5, 9]])),
        (IDS, KnowsOneText([[3, 4, 5], [3, 4, 5, 0]])),
        (torch.tensor([[3, 4, 5], [6, 7, 8]]), RowDependent()),
        (IDS, Remembering()),
    ):
        check_follows_text(processor, ids, vocab_size=40)
