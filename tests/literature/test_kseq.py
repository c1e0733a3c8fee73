"""K-SEQ: its share of the optimum, and what it refuses. Its exact distribution: tests/verification."""

import math

import numpy as np
import pytest
import torch

from treespec.errors import ConfigError, RuleMismatchError
from treespec.literature import KSeq, kseq
from treespec.literature.optimum import optimum_iid
from treespec.testing import (
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    assert_lossless,
    distribution_pairs,
    exact_distribution,
)
from treespec.tree import IID, TokenTree, TreeBatch
from treespec.verification import resolve


@pytest.mark.parametrize("name", list(distribution_pairs(3)))
def test_it_is_lossless_however_coarse_the_bisection(name):
    for num_bisections, vocab_size, branching in ((0, 3, (3,)), (4, 3, (3,)), (0, 2, (2, 2))):
        target, drafts = distribution_pairs(vocab_size, is_exact=True)[name]
        drafter = ToyDrafter(IID, FixedShape.kary(*branching), drafts)
        assert assert_lossless(KSeq(num_bisections), drafter, target).error == 0


def test_acceptance_is_within_a_factor_of_the_optimum():
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(100):
        vocab, k = int(rng.integers(2, 30)), int(rng.integers(1, 9))
        target, draft = rng.dirichlet(np.full(vocab, 0.5), size=2)
        ratio = kseq.tightening(target, draft, k, 40)
        accepted = 1 - (1 - np.minimum(draft, target / ratio).sum()) ** k
        optimum = float(optimum_iid(torch.tensor(target), torch.tensor(draft), k))
        shares.append(accepted / optimum)
    assert 1 - 1 / math.e <= min(shares) <= max(shares) <= 1 + 1e-9


def test_acceptance_of_one_node_is_the_closed_form():
    target, draft = RandomDistributions(4, 5), RandomDistributions(4, 6)
    result = exact_distribution(KSeq(40), ToyDrafter(IID, FixedShape.kary(2), (draft,)), target)
    ratio = kseq.tightening(target(()), draft(()), 2, 40)
    beta = np.minimum(draft(()), target(()) / ratio).sum()
    assert result.mean_accepted == pytest.approx(1 - (1 - beta) ** 2, abs=1e-12)
    assert result.mean_accepted == pytest.approx(ratio * beta, abs=1e-9)


def test_what_it_does_not_support_is_named():
    arrays = torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 0]), torch.full((1, 4), 0.25), torch.tensor([-1, 0, 0])
    without = TokenTree(*arrays, torch.tensor([False, True, True]))
    with pytest.raises(RuleMismatchError, match=r"iid.*without_replacement.*recursive.*traversal"):
        resolve(KSeq(), True, TreeBatch.from_trees([without]))
    with pytest.raises(RuleMismatchError, match=r"is_width_fixed.*recursive"):
        resolve(KSeq(), True, TreeBatch.from_trees([TokenTree(*arrays, is_width_fixed=False)]))
    assert KSeq().reason_against(TreeBatch.from_trees([TokenTree(*arrays)])) is None
    for num_bisections in (-1, 2.5, "many"):
        with pytest.raises(ConfigError, match="num_bisections must be"):
            KSeq(num_bisections)  # pyright: ignore[reportArgumentType]
