"""Drafters: distributions equal to a recomputation from scratch, no repeated work, tables equal to plain loops."""

import numpy as np
import pytest
import torch
from helpers.drafter_loop import Loop, Recent, check_distributions
from helpers.toy_models import TableLM, ToyScorer

from treespec.drafters import DraftModel, SuffixLookup, TokenRecycling
from treespec.errors import ConfigError, ContextFullError, TreespecWarning
from treespec.literature import SpecExec, dyspec
from treespec.policies import BestFirst, Chain, KAry, Paths
from treespec.protocols import Capability
from treespec.sampling import NoProcessors
from treespec.tree import IID, MIXED, SELECTED, TreeBatch

VOCAB = 6


class Cold:
    """A path-free processor: temperature and a cut-off."""

    is_path_free = is_row_free = is_order_free = True
    can_remove_all, ignores_padding = True, False

    def __call__(self, ids, logits, row):
        scores = logits.float() / 0.7
        return scores.masked_fill(scores < scores.amax(-1, keepdim=True) - 4, -torch.inf)


PROMPTS = [[1, 2, 3], [4], [5, 0, 2, 2, 1]]
POLICIES = {
    "chain": Chain(4),
    "paths": Paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]),
    "k-ary": KAry((2, 2, 1)),
    "mixed": KAry((2, 2), MIXED),
    "best-first": BestFirst(9),
    "dyspec": dyspec(9),
    "best-first, beam": BestFirst(9, beam=2),
    "selected": BestFirst(9, SELECTED),
    "specexec": SpecExec(9, beam=3, num_passes=6),
}


CASES = [(name, is_sampling, Recent()) for name in POLICIES for is_sampling in (True, False)]
CASES += [("k-ary", True, given) for given in (NoProcessors(), Cold(), Recent(is_row_free=True))]
CASES += [("best-first", False, given) for given in (NoProcessors(), Cold(), Recent(is_row_free=True))]


@pytest.mark.parametrize(
    ("name", "is_sampling", "processors"), CASES, ids=lambda part: type(part).__name__ if callable(part) else str(part)
)
def test_draft_model_equals_a_recomputation(name, is_sampling, processors):
    scorer = ToyScorer(TableLM(VOCAB))
    loop = Loop(DraftModel(scorer), PROMPTS, POLICIES[name], is_sampling, processors, seed=len(name))
    for step in range(8):
        if step == 4:
            loop.keep_rows([2, 0])
        batch = loop.propose(max_depth=3 if step % 4 == 3 else 99)
        is_ranked_by_acceptance = is_sampling and name.startswith("best-first")
        check_distributions(batch, scorer.model, loop, are_values_probs=not is_ranked_by_acceptance)
        loop.step(batch)
    if not isinstance(POLICIES[name], BestFirst):  # what lies below a computed node outside the tree is dropped
        assert max(scorer.scored.values()) == 1, "a node was computed twice"
    assert scorer.num_prefills == 1


def check_no_repeats(scorer, loop):
    """No committed token was computed twice."""
    for row, name in enumerate(loop.session.row_ids):
        text = loop.history.tokens(row).tolist()
        for end in range(1, len(text) + 1):
            assert scorer.scored[(name, *text[:end])] <= 1


def test_draft_model_pays_one_pass_per_level():
    scorer = ToyScorer(TableLM(VOCAB))
    loop = Loop(DraftModel(scorer), PROMPTS, KAry((2, 1, 2)))
    for step in range(1, 7):
        batch = loop.propose()
        assert scorer.num_passes == 3 * step, "catching up must not cost a pass of its own"
        loop.step(batch)


def test_draft_model_keeps_nodes_that_left_the_tree():
    """Emitted tokens are found among the computed nodes even when the verified tree did not hold them."""
    scorer = ToyScorer(TableLM(VOCAB))
    loop = Loop(DraftModel(scorer), [[1, 2], [3, 4]], KAry((2, 2, 1)), is_sampling=False)
    trees = loop.propose()
    roots = TreeBatch(trees.tokens[:, :1], trees.parents[:, :1])
    computed = [tree.token(tree.children(tree.children(0)[1])[0]) for tree in trees.trees]
    first = [tree.token(tree.children(0)[1]) for tree in trees.trees]
    loop.step(roots, emit=[[a, b] for a, b in zip(first, computed, strict=True)])
    num_passes = scorer.num_passes
    batch = loop.propose()
    check_distributions(batch, scorer.model, loop)
    assert scorer.num_passes == num_passes + 2, "the new roots were computed already"
    loop.step(batch, emit=[[0], [1, 1, 1]])
    check_distributions(loop.propose(), scorer.model, loop)
    check_no_repeats(scorer, loop)


def test_duplicate_siblings_are_all_followed():
    """Two i.i.d. draws may give one token: if the one with the computed child was accepted, it is found."""
    scorer = ToyScorer(TableLM(2, scale=0.1))
    loop = Loop(DraftModel(scorer), [[0, 1]], Paths([(0,), (1,), (0, 0), (1, 0), (1, 0, 0)], IID), vocab_size=2)
    batch, num_duplicates = loop.propose(), 0
    for _ in range(20):
        tree = batch.trees[0]
        num_duplicates += tree.token(1) == tree.token(2)
        deep = [tree.token(i) for i in tree.path_to(tree.num_nodes - 1)[1:]]
        num_scored = sum(scorer.scored.values())
        loop.step(batch, emit=[[*deep, 0]])
        batch = loop.propose()
        # The accepted leaf and the new root are computed, then three nodes of the new tree.
        assert sum(scorer.scored.values()) == num_scored + 2 + 3
    assert num_duplicates > 3


def test_draft_model_survives_steps_that_are_not_its_own():
    """Merged or skipped steps: whatever was emitted is caught up with in one pass."""
    scorer = ToyScorer(TableLM(VOCAB))
    loop = Loop(DraftModel(scorer), PROMPTS, Chain(3))
    random = np.random.default_rng(4)
    for step in range(10):
        trees = loop.propose() if step % 3 else TreeBatch(loop.history.last_tokens[:, None], torch.full((3, 1), -1))
        if step % 3:
            check_distributions(trees, scorer.model, loop)
        loop.step(trees, emit=[random.integers(VOCAB, size=random.integers(1, 6)).tolist() for _ in range(3)])
    assert max(scorer.scored.values()) == 1


@pytest.mark.parametrize(
    ("capability", "prompts"),
    [(Capability.CHAIN, PROMPTS), (Capability.PLAIN, PROMPTS), (Capability.PLAIN, [[1, 2, 3]])],
)
def test_models_without_trees_draft_chains(capability, prompts):
    scorer = ToyScorer(TableLM(VOCAB), capability)
    with pytest.warns(TreespecWarning, match="cannot run trees"):
        loop = Loop(DraftModel(scorer), prompts, BestFirst(5))
    for step in range(12):
        batch = loop.propose()
        assert batch.is_chain
        assert batch.tokens.shape[1] == 5
        check_distributions(batch, scorer.model, loop)
        loop.step(batch)
        if step == 5 and len(prompts) > 1:
            loop.keep_rows([0, 2])
    assert scorer.num_prefills == 1
    if len(prompts) == 1:
        assert max(scorer.scored.values()) == 1


def test_rows_of_a_chain_model_that_drift_apart_start_over():
    scorer = ToyScorer(TableLM(VOCAB), Capability.CHAIN)
    loop = Loop(DraftModel(scorer), PROMPTS, Chain(2))
    batch = loop.propose()
    loop.step(batch, emit=[[1], [2, 2, 2, 2, 2, 2], [3, 3]])
    check_distributions(loop.propose(), scorer.model, loop)
    assert scorer.num_prefills == 2


@pytest.mark.parametrize("policy", [Chain(3), BestFirst(8)])
def test_draft_model_stops_at_its_context(policy):
    scorer = ToyScorer(TableLM(VOCAB), max_positions=12)
    loop = Loop(DraftModel(scorer), [[1, 2, 3], [1, 2]], policy)
    depths = []
    for _ in range(14):
        batch = loop.propose()
        depths.append(max(max(tree.depths) for tree in batch.trees))
        loop.step(batch, emit=[[1], [2]])
    assert depths[0] > 1
    assert depths[9:] == [1, 0, 0, 0, 0], "the last position serves as a leaf's parent, then nothing is left"
    long = Loop(DraftModel(scorer), [[1] * 14], policy)
    assert long.propose().max_nodes == 1
    short = DraftModel(ToyScorer(TableLM(VOCAB)), max_length=2)
    assert Loop(short, [[1, 2, 3]], policy).propose().max_nodes == 1


def test_draft_model_stops_when_the_scorer_has_no_room():
    scorer = ToyScorer(TableLM(VOCAB))
    loop = Loop(DraftModel(scorer), [[1, 2]], KAry((2, 2)))

    def full(*_):
        raise ContextFullError("full")

    loop.step(loop.propose())
    scorer.extend = full
    for _ in range(3):
        batch = loop.propose()
        assert batch.max_nodes == 1
        loop.step(batch)


def test_drafters_need_a_policy():
    with pytest.raises(ConfigError, match="no tree policy"):
        Loop(DraftModel(ToyScorer(TableLM(VOCAB))), [[1]]).propose()


class Widest(BestFirst):
    """Another shape under BestFirst's name: the root's children alone."""

    def grow(self, source, max_depth):
        return super().grow(source, min(max_depth, 1))


@pytest.mark.parametrize("make", [SuffixLookup, TokenRecycling])
def test_a_subclass_of_best_first_shapes_its_own_trees(make):
    loop, depths = Loop(make(), [[1, 2, 3, 1, 2, 3, 1, 2]], Widest(6)), []
    for step in range(6):
        batch = loop.propose()
        depths.append(int(batch.depths.max()))
        loop.step(batch, torch.randn(*batch.tokens.shape, VOCAB, generator=torch.Generator().manual_seed(step)))
    assert max(depths) == 1
