"""The base of this package's verification rules, their requirements of a tree, and their random sources."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.errors import LogitsError, RuleMismatchError
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.sampling import inverse_cdf
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, TreeBatch, Verdict

ANY_SCHEME = frozenset({SELECTED, IID, WITHOUT_REPLACEMENT, MIXED})


@dataclass(frozen=True)
class Requirements:
    """A rule's requirements of a tree: sampling schemes of siblings, shape, fixed widths, support of the draft."""

    sampling_schemes: frozenset[str] = ANY_SCHEME
    is_chain_only: bool = False
    needs_fixed_width: bool = False
    max_siblings: int | None = None
    max_support: int | None = None

    def reason_against(self, trees: TreeBatch) -> str | None:
        """Why the trees do not meet the requirements, or None. Trees are read only as far as needed."""
        if self.is_chain_only and not trees.is_chain:
            return "it verifies chains, and a node of the tree has several children"
        if self.needs_fixed_width and not trees.is_width_fixed:
            return "it needs every node's width fixed before its first draw (is_width_fixed)"
        others = frozenset() if self.sampling_schemes == ANY_SCHEME else trees.sampling_schemes - self.sampling_schemes
        if others:
            wanted, got = (" or ".join(sorted(schemes)) for schemes in (self.sampling_schemes, others))
            return f"it needs siblings that are {wanted}, and some are {got} (a policy's `children=` says which)"
        if self.max_siblings is not None and _most_siblings(trees) > self.max_siblings:
            return f"it allows at most {self.max_siblings} siblings, and a node has {_most_siblings(trees)}"
        if self.max_support is not None and _widest_support(trees) > self.max_support:
            return (
                f"it allows draft distributions of at most {self.max_support} tokens, and one has "
                f"{_widest_support(trees)} (use `treespec.literature.Truncated(policy)`, or draw from `truncate_probs`)"
            )
        return None


class BaseRule(ABC):
    """A rule that states its requirements as data. Rules from elsewhere need only be a `VerificationRule`."""

    name: str
    is_lossless: bool
    requirements: Requirements

    def reason_against(self, trees: TreeBatch) -> str | None:
        """Why the rule cannot verify these trees, or None."""
        return self.requirements.reason_against(trees)

    @abstractmethod
    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        """Verify one tree, reading only the nodes it needs. Generic over torch, numpy and rational arrays."""


def _most_siblings(trees: TreeBatch) -> int:
    return max(len(children) for tree in trees.trees for children in tree.children_lists)


def _widest_support(trees: TreeBatch) -> int:
    """The most tokens that a distribution which a node was drawn from allows; rows that no node uses do not count."""
    if trees.draft_probs is None or trees.draft_index is None:
        return 0
    used = trees.draft_index[(trees.draft_index >= 0) & (trees.parents >= 0)].unique()
    return int((trees.draft_probs[used] > 0).sum(-1).max()) if len(used) else 0


@dataclass(frozen=True)
class GivenUniforms:
    """Coins and draws in [0, 1), one per node, made beforehand. Raises `LogitsError`: weights without finite mass."""

    coins: Sequence[float] | Float[Tensor, "N"]
    draws: Sequence[float] | Float[Tensor, "N"]

    def flip(self, node: int, prob: Any) -> bool:
        """Whether the coin of `node` is below `prob`: strictly, so that probability zero never happens."""
        prob = float(prob)
        if math.isnan(prob):  # coin < NaN is false: it would pass for a rejection.
            raise LogitsError(f"the acceptance probability of node {node} is NaN: check both models' distributions")
        return float(self.coins[node]) < prob

    def pick(self, node: int, weights: Any) -> int:
        """The token at which the draw of `node` falls in the cumulative sum of `weights` [V]."""
        weights = weights if isinstance(weights, Tensor) else torch.as_tensor(weights, device="cpu")
        total = float(weights.sum())
        if not 0 < total < math.inf:
            raise LogitsError(f"cannot draw the token after node {node}: the weights sum to {total}")
        # In float32 a uniform has 24 bits, too few for tokens of a probability below 6e-8.
        uniform = torch.tensor(float(self.draws[node]), dtype=torch.float64, device=weights.device)
        return int(inverse_cdf(weights, uniform))


class ArgmaxSource:
    """Greedy decoding: picks the first token of the highest weight, so raw scores can stand for the distribution."""

    def flip(self, node: int, prob: Any) -> bool:
        raise RuleMismatchError(
            f"the rule flips a coin (node {node}), but greedy decoding has none: use the target walk, which every "
            "lossless rule equals at temperature zero"
        )

    def pick(self, node: int, weights: Any) -> int:
        if isinstance(weights, Tensor) and weights.is_cpu and weights.dtype != torch.bfloat16:  # NumPy has none.
            weights = weights.detach().numpy()  # Its argmax takes a sixth of PyTorch's time.
        return int(weights.argmax())
