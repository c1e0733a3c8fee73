"""Checks of a drafter by the engine: that the target returns what it reads, and that its trees can be scored."""

from torch import Tensor

from treespec.errors import ConfigError, InvalidTreeError
from treespec.protocols import CausalScorer, Drafter, FeatureDrafter
from treespec.tree import TreeBatch


def check_features(target: CausalScorer, drafter: Drafter) -> None:
    """Raise `ConfigError` when the drafter reads hidden states that `target` does not return."""
    missing = set(hidden_layers(drafter)) - set(target.hidden_layers if hidden_layers(drafter) else ())
    if missing:
        raise ConfigError(
            f"{type(drafter).__name__} reads the target's hidden states {sorted(missing)}, which its scorer does not "
            f"return: make_scorer(model, hidden_layers={hidden_layers(drafter)})"
        )


def hidden_layers(drafter: Drafter) -> tuple[int, ...]:
    """The target's layers that a drafter reads, see `FeatureDrafter`."""
    return drafter.hidden_layers if isinstance(drafter, FeatureDrafter) else ()


def check_proposal(trees: TreeBatch, last_tokens: Tensor, vocab_size: int) -> None:
    """Raise `InvalidTreeError` for trees that the target cannot score, given the rows' last tokens int64 [B]."""
    if not isinstance(trees, TreeBatch) or trees.num_rows != len(last_tokens):
        got = f"{trees.num_rows} trees" if isinstance(trees, TreeBatch) else type(trees).__name__
        raise InvalidTreeError(f"the drafter must propose a TreeBatch of {len(last_tokens)} trees, got {got}")
    tokens = trees.tokens.numpy()
    if (tokens[:, 0] != last_tokens.numpy()).any():
        raise InvalidTreeError("the drafter's roots must be the last committed tokens, history.last_tokens")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise InvalidTreeError(f"a drafted token is outside the target's vocabulary of {vocab_size}")
