"""Early exit: the target's own first layers and its head draft, and the target goes on from what they have computed.

Self-speculative decoding in the form of LayerSkip (Elhoushi et al. 2024), for trees.
"""

from collections.abc import Sequence
from typing import cast

from treespec.checks import check_count
from treespec.drafters.base import SessionSource, depth_room, single_nodes
from treespec.drafters.path_probs import path_probs
from treespec.errors import ConfigError
from treespec.protocols import EarlyExitScorer, Frontier, Proposal, Session, VerifiedStep
from treespec.tree import TreeBatch


class EarlyExit(SessionSource):
    """Drafts with the first layers of the target; see `Drafter` for its methods.

    It needs no second model, no training and no further memory; but the early layers of models that were not trained
    for it predict poorly, see docs/drafters.md.

    Args:
        num_layers: how many of the target's layers draft, at least one and fewer than it has.

    Raises `ConfigError`: `num_layers` is not a positive int.
    """

    def __init__(self, num_layers: int) -> None:
        self.exit_layer = check_count("num_layers", num_layers)

    @property
    def _target(self) -> EarlyExitScorer:
        return cast(EarlyExitScorer, self._session.target)

    @property
    def num_weights(self) -> int:
        """What a draft pass reads, once a call has begun; 0 if the scorer does not say."""
        return getattr(self._target, "num_draft_weights", 0)

    def start(self, session: Session) -> None:
        """Raises `ConfigError`: the target's scorer has no exit at this layer."""
        target = session.target
        if not isinstance(target, EarlyExitScorer) or target.exit_layer != self.exit_layer:
            raise ConfigError(
                f"EarlyExit drafts with the target, whose scorer has no exit after {self.exit_layer} layers: "
                f"make_exit_scorer(model, {self.exit_layer})"
            )
        self._session = session

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone once the context is full. See `Drafter`."""
        depth = min(max_depth, depth_room(self._session.history, self._target.max_positions))
        return self._policy.grow(self, depth) if depth > 0 else single_nodes(self.root_tokens)

    def update(self, step: VerifiedStep) -> None:
        """Nothing to learn: the target keeps what was computed."""

    def select_rows(self, rows: Sequence[int]) -> None:
        """Nothing is kept per row."""

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`. The target's drafted nodes have the numbers of the expanded ones."""
        logits = self._target.draft(frontier.tokens, frontier.parents)
        return Proposal(path_probs(self._session, logits, frontier))
