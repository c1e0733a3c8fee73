"""Processors on trees: stacked paths get what single ones get."""

import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
)
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from treespec.engine.target_probs import TargetProbs
from treespec.hf.generation.processors import TreeProcessors
from treespec.protocols import History
from treespec.tree import TokenTree, TreeBatch


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
