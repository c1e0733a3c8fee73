"""Every form of a rule decides coin for coin as its reference does: the rule's walk over a toy tree in numpy.

On a CPU the engine runs the same walk over a stored tree in torch, whose distributions are kept compactly; for
accelerators five rules have a dense form besides.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.toys import as_batch, random_chain, random_drafted, random_pairs, verify_rows
from torch import Tensor

from treespec.tree import IID, TreeBatch, Verdict
from treespec.verification import RULES, GivenUniforms
from treespec.verification.dense.forms import has_dense_form, verify_dense

NUM_ROWS = 40
DENSE_ON_TREES = ("target_walk", "recursive", "traversal")
DENSE_ON_CHAINS = (*DENSE_ON_TREES, "token", "block")
KINDS: tuple[Callable, ...] = (random_drafted, random_chain, random_pairs)


def uniforms(rng: np.random.Generator, trees: TreeBatch) -> tuple[Tensor, Tensor]:
    """Coins and draws float64 [B, N]."""
    coins, draws = (torch.from_numpy(rng.random(trees.tokens.shape)) for _ in range(2))
    return coins, draws


@pytest.mark.parametrize(
    ("names", "kind"), [(DENSE_ON_TREES, random_drafted), (("token", "block"), random_chain)], ids=["trees", "chains"]
)
def test_dense_forms(names: tuple[str, ...], kind: Callable) -> None:
    assert {name for name, rule in RULES.items() if has_dense_form(rule)} == set(DENSE_ON_CHAINS)
    for number in range(25):
        rng = np.random.default_rng(number)
        trees, target_probs = as_batch([kind(rng, 1 + number % 6) for _ in range(NUM_ROWS)])
        coins, draws = uniforms(rng, trees)
        for name in names:
            walked = verify_rows(RULES[name], trees, target_probs, coins, draws)
            assert verify_dense(RULES[name], trees, target_probs, coins, draws) == walked, name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_rule_on_stored_trees_is_the_rule_on_toy_trees(kind: Callable) -> None:
    """The trees that a rule supports: two in seven and more for each rule on at least one kind."""
    rng = np.random.default_rng(5)
    num_trees, counts = 210, Counter[str]()
    for number in range(num_trees):
        toy, target = kind(rng, 2 + number % 5)
        trees, target_probs = as_batch([(toy, target)])
        coins, draws = uniforms(rng, trees)
        probs = [target(context).copy() for context in toy.contexts]
        for name, rule in RULES.items():
            if rule.reason_against(trees) is None:
                counts[name] += 1
                expected = rule.verify(toy, probs.__getitem__, GivenUniforms(coins[0], draws[0]))
                assert verify_rows(rule, trees, target_probs, coins, draws) == [expected], name
    served = {random_drafted: {*DENSE_ON_TREES, "typical_acceptance", "threshold"}, random_chain: set(DENSE_ON_CHAINS)}
    for_drawn = {name for name, rule in RULES.items() if IID in rule.requirements.sampling_schemes}
    expected_rules = served.get(kind, for_drawn - {"token", "block"})
    assert all(counts[name] >= 2 * num_trees / 7 for name in expected_rules), counts


def test_chains_are_one_rule_less() -> None:
    """On chains block verification is traversal, and token verification recursive rejection and K-SEQ."""
    rng = np.random.default_rng(1)
    chains = [random_chain(rng, 4) for _ in range(160)]
    trees, target_probs = as_batch(chains)
    coins, draws = uniforms(rng, trees)  # More than the second batch needs.

    def verdicts(name: str) -> list[Verdict]:
        return verify_rows(RULES[name], trees, target_probs, coins, draws)

    assert verdicts("block") == verdicts("traversal")
    assert verdicts("token") == verdicts("recursive")
    trees, target_probs = as_batch([chain for chain in chains if all(p is not None for p in chain[0].draft_probs[1:])])
    assert len(trees.trees) > 50
    assert verdicts("token") == verdicts("k_seq")
