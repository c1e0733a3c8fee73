"""Processors on trees: the fast top-p keeps what the library's keeps, stacked paths get what single ones get."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor, TopKLogitsWarper

from treespec.engine.target_probs import TargetProbs
from treespec.hf.generation.processors import FastTopP, TreeProcessors
from treespec.protocols import History
from treespec.tree import TokenTree, TreeBatch


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("vocab_size", [40, 600, 20_000])
def test_fast_top_p_keeps_what_the_library_keeps(top_p, scale, vocab_size):
    generator = torch.Generator().manual_seed(vocab_size)
    scores = scale * torch.randn(5, vocab_size, generator=generator)
    warper = TopPLogitsWarper(top_p)
    ids = torch.zeros(5, 1, dtype=torch.long)
    expected, got = warper(ids, scores), FastTopP(warper)(ids, scores)
    mass = torch.where(expected.isinf() != got.isinf(), scores.softmax(-1), 0).sum(-1)
    assert mass.max() < 1e-5, "only tokens at the rounding edge of top_p may differ"
    both = expected.isfinite() & got.isfinite()
    assert both.any(-1).all()
    assert torch.equal(expected[both], got[both])


def test_fast_top_p_after_top_k_and_with_a_minimum():
    scores = torch.randn(3, 4000, generator=torch.Generator().manual_seed(0))
    ids = torch.zeros(3, 1, dtype=torch.long)
    cut = TopKLogitsWarper(20)(ids, scores)
    for warper in (TopPLogitsWarper(0.7), TopPLogitsWarper(0.01, min_tokens_to_keep=7)):
        assert torch.equal(FastTopP(warper)(ids, cut).isfinite(), warper(ids, cut).isfinite())


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
    probs = TargetProbs(trees, logits, history, TreeProcessors(processors, 3), [0, 1, 2], is_sampling=True)
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
