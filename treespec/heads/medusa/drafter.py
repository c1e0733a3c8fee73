"""Medusa (Cai et al. 2024): heads on the target's last hidden state, each for a later token, all in one pass.

The heads do not see each other's tokens, so all nodes of one depth share one distribution: a node at depth d is a guess
of head d - 1, whatever stands above it.
"""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from treespec.drafters.base import single_nodes
from treespec.errors import CheckpointError, ConfigError, VocabularyMismatchError
from treespec.heads.drafting.depths import DepthDrafts, useful_depth
from treespec.heads.drafting.unread_features import RootReader
from treespec.heads.medusa.files import load_heads
from treespec.heads.medusa.module import MedusaHeads
from treespec.protocols import Session
from treespec.tree import TreeBatch


class Medusa(RootReader):
    """Drafts with Medusa heads; see `Drafter` and `FeatureDrafter` for its methods.

    With the feature of the last token before the root, head i guesses the token i + 1 positions after the root.
    Selected children are the exact best products of the heads' probabilities under `BestFirst`; sampled ones are drawn
    from the heads' distributions after the caller's processors, which are kept for verification.

    Args:
        heads: trained for the target, see `Medusa.load`.

    Raises `ConfigError`: the heads are not `MedusaHeads`.
    """

    def __init__(self, heads: MedusaHeads) -> None:
        if not isinstance(heads, MedusaHeads):
            raise ConfigError(f"heads must be MedusaHeads, got {type(heads).__name__}: Medusa.load(folder) reads them")
        self._heads = heads

    @classmethod
    def load(cls, path: str | Path, output_weight: Tensor | None = None) -> Medusa:
        """A drafter from a checkpoint in one of the public formats; see `load_heads`."""
        return cls(load_heads(path, output_weight))

    def start(self, session: Session) -> None:
        """Begin a call.

        Raises `VocabularyMismatchError`: the heads have another vocabulary; then `propose` raises a `CheckpointError`
        where they have another hidden size.
        """
        least = int(self._heads.target_ids.max()) + 1
        if least > session.vocab_size or (self._heads.token_map is None and least != session.vocab_size):
            raise VocabularyMismatchError(
                f"the Medusa heads score {least} tokens, the target {session.vocab_size}: they belong to another model"
            )
        self._session = session

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy. See `Drafter`."""
        depth = useful_depth(self._session, max_depth, self._heads.num_heads)
        if depth < 1:
            return single_nodes(self.root_tokens)
        features = self._root_states
        self._follow(features)
        logits = self._heads.logits(features, depth)
        return DepthDrafts(self._session, self._heads.target_ids, logits).grow(depth)

    def _follow(self, features: Float[Tensor, "B H"]) -> None:
        """Move the heads to the features' device and dtype. Raises `CheckpointError`: another hidden size."""
        if features.shape[-1] != self._heads.hidden_size:
            raise CheckpointError(
                f"the Medusa heads read hidden states of {self._heads.hidden_size} numbers, the target's have "
                f"{features.shape[-1]}: they belong to another model"
            )
        self._heads = self._heads.to(features.device, features.dtype)
