"""A control's choices depend on the past only: the joint distribution of three tokens, all randomness enumerated."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from helpers.control_call import begun

from treespec import Control, TreeBatch, Verdict
from treespec.policies import Chain
from treespec.protocols import Scores, VerifiedStep
from treespec.testing import (
    SELECTED,
    WITHOUT_REPLACEMENT,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    enumerate_traces,
)
from treespec.verification import RULES

TARGET, DRAFT = RandomDistributions(3, 1), RandomDistributions(3, 2)
PASS_MS = {1: 1.0, 2: 1.43, 4: 1.7}
ROOT = TreeBatch(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1))


class OfStep:
    """A random source whose nodes are those of one of several steps."""

    def __init__(self, rng, step):
        self._rng, self._first = rng, 100 * step

    def flip(self, node, prob):
        return self._rng.flip(self._first + node, prob)

    def pick(self, node, weights):
        return self._rng.pick(self._first + node, weights)


def decode(rng, scheme, rule, shapes, is_peeking=False):
    """Three tokens; the times that the control receives depend on the tokens so far, so its choices do too."""
    control, text, step = Control(max_nodes=4, pass_ms=PASS_MS), (), 0
    begun(control, is_sampling=True)
    control.choose(1, 1)
    for token in range(2):  # A time is believed after a median of three.
        control.learn(plain_step(token), 0.0, 0.4)
    while len(text) < 3:
        drafting, source, step = OfStep(rng, step), OfStep(rng, step + 1), step + 2
        trees = ROOT
        if control.choose(1, 1 + len(text)):
            branching = (1,) * min(control.current.k, 2) if isinstance(control.current, Chain) else (2,)
            toy = ToyDrafter(scheme, FixedShape.kary(*branching), (lambda path, text=text: DRAFT((*text, *path)),))
            trees = TreeBatch.from_trees([toy(drafting).to_token_tree()])
            trees = control.trim(with_values(trees, text))
            if is_peeking and trees.max_nodes > 1 and trees.trees[0].token(trees.max_nodes - 1) == 1:
                trees = trees.keep_nodes((torch.arange(trees.max_nodes) < trees.max_nodes - 1).unsqueeze(0))
        tree = trees.trees[0]
        shapes.add((type(control.current).__name__, tree.num_nodes))
        verdict = rule.verify(tree, lambda node, text=text, tree=tree: target_probs(text, tree, node), source)
        emitted = [tree.token(node) for node in verdict.path[1:]] + [verdict.next_token]
        text = (*text, *emitted)
        verified = VerifiedStep(trees, [verdict], Scores(torch.zeros(0)), [emitted])
        control.learn(verified, 0.01 if sum(text) % 2 else 9.0, 4.0 if text[-1] else 0.4)
    return text[:3]


def plain_step(token):
    return VerifiedStep(ROOT, [Verdict((0,), token, False)], Scores(torch.zeros(0)), [[token]])


def with_values(trees, text):
    tree, values = trees.trees[0], [1.0]
    for node in range(1, tree.num_nodes):
        above = tuple(tree.token(i) for i in tree.path_to(tree.parent_list[node])[1:])
        values.append(values[tree.parent_list[node]] * float(DRAFT((*text, *above))[tree.token(node)]))
    return replace(trees, is_width_fixed=True, values=torch.tensor([values]))


def target_probs(text, tree, node):
    return torch.from_numpy(TARGET((*text, *(tree.token(i) for i in tree.path_to(node)[1:]))).astype(np.float64))


def joint(scheme, rule, **options):
    shapes, found = set(), dict.fromkeys(product(range(3), repeat=3), 0.0)
    for weight, text in enumerate_traces(lambda rng: decode(rng, scheme, RULES[rule], shapes, **options)):
        found[text] += float(weight)
    expected = {t: float(np.prod([TARGET(t[:i])[t[i]] for i in range(3)])) for t in found}
    return max(abs(found[t] - expected[t]) for t in found), shapes


@pytest.mark.parametrize(
    ("scheme", "rule"),
    [(SELECTED, "target_walk"), (WITHOUT_REPLACEMENT, "traversal"), (WITHOUT_REPLACEMENT, "recursive")],
)
def test_three_tokens_have_the_targets_distribution(scheme, rule):
    error, shapes = joint(scheme, rule)
    assert error < 1e-9
    assert len(shapes) > 1, "the choices depend on the past"


def test_cutting_sampled_children_by_their_tokens_is_found():
    error, _ = joint(WITHOUT_REPLACEMENT, "traversal", is_peeking=True)
    assert error > 1e-3
