"""Medusa (Cai et al. 2024): heads on the target's last hidden state, each for a later token, all in one pass.

The heads do not see each other's tokens, so all nodes of one depth share one distribution: a node at depth d is a guess
of head d - 1, whatever stands above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.drafters.base import SessionSource, single_nodes
from treespec.errors import CheckpointError, ConfigError, VocabularyMismatchError
from treespec.heads.drafting.depths import DepthDrafts, useful_depth
from treespec.heads.medusa.files import load_heads
from treespec.heads.medusa.module import MedusaHeads
from treespec.protocols import HiddenStates, Session, VerifiedStep
from treespec.tree import TreeBatch
from treespec.tree.transfer import upload

LAST = -1


class Medusa(SessionSource):
    """Drafts with Medusa heads; see `Drafter` and `FeatureDrafter` for its methods.

    With the feature of the last token before the root, head i guesses the token i + 1 positions after the root.
    Selected children are the exact best products of the heads' probabilities under `BestFirst`; sampled ones are drawn
    from the heads' distributions after the caller's processors, which are kept for verification.

    Args:
        heads: trained for the target, see `Medusa.load`.

    Raises `ConfigError`: the heads are not `MedusaHeads`.
    """

    hidden_layers: tuple[int, ...] = (LAST,)

    def __init__(self, heads: MedusaHeads) -> None:
        if not isinstance(heads, MedusaHeads):
            raise ConfigError(f"heads must be MedusaHeads, got {type(heads).__name__}: Medusa.load(folder) reads them")
        self._heads = heads

    @classmethod
    def load(cls, path: str | Path, output_weight: Tensor | None = None) -> Medusa:
        """A drafter from a checkpoint in one of the public formats; see `load_heads`."""
        return cls(load_heads(path, output_weight))

    def start(self, session: Session) -> None:
        """Take the prompt's last feature.

        Raises:
            VocabularyMismatchError, CheckpointError: the heads have another vocabulary or another hidden size.
        """
        least = int(self._heads.target_ids.max()) + 1
        if least > session.vocab_size or (self._heads.token_map is None and least != session.vocab_size):
            raise VocabularyMismatchError(
                f"the Medusa heads score {least} tokens, the target {session.vocab_size}: they belong to another model"
            )
        self._session = session
        self._features = self._prompt_features(session.prompt_states)

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone before the target's first feature. See `Drafter`."""
        depth = useful_depth(self._session, max_depth, self._heads.num_heads)
        if self._features is None or depth < 1:
            return single_nodes(self.root_tokens)
        logits = self._heads.logits(self._features, depth)
        return DepthDrafts(self._session, self._heads.target_ids, logits).grow(depth)

    def update(self, step: VerifiedStep) -> None:
        """Keep the feature of each row's last accepted node: the one that the next root was chosen after."""
        states = step.scores.hidden_states[LAST]
        nodes = [v.path[max(len(tokens) - 1, 0)] for v, tokens in zip(step.verdicts, step.emitted, strict=True)]
        index = upload(states.device, torch.arange(len(nodes), device="cpu"), torch.tensor(nodes, device="cpu"))
        self._features = self._take(states[index[0], index[1]])

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows' features, in this order."""
        if self._features is not None:
            (index,) = upload(self._features.device, torch.tensor(list(rows), device="cpu"))
            self._features = self._features[index]

    def _prompt_features(self, states: HiddenStates) -> Float[Tensor, "B H"] | None:
        """The features before the first roots; None where the target has computed none."""
        if LAST not in states or states[LAST].shape[1] == 0:
            return None
        history = self._session.history
        # A row of one token has only padding before its root: its first feature is zero.
        has_text = [length - padding > 1 for length, padding in zip(history.lengths, history.num_padding, strict=True)]
        last = states[LAST][:, -1]
        return self._take(torch.where(torch.tensor(has_text, device=last.device).unsqueeze(1), last, 0.0))

    def _take(self, features: Float[Tensor, "B H"]) -> Float[Tensor, "B H"]:
        """Features on the call's device, where and in whose dtype the heads are from then on."""
        if features.shape[-1] != self._heads.hidden_size:
            raise CheckpointError(
                f"the Medusa heads read hidden states of {self._heads.hidden_size} numbers, the target's have "
                f"{features.shape[-1]}: they belong to another model"
            )
        self._heads = self._heads.to(self._session.device, features.dtype)
        return features.to(self._session.device)
