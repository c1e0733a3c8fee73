"""Medusa (Cai et al. 2024): heads on the target's last hidden state, each for a later token, all in one pass.

The heads do not see each other's tokens, so all nodes of one depth share one distribution: a node at depth d is a guess
of head d - 1, whatever stands above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import AUTO
from treespec.drafters.base import SessionSource, single_nodes
from treespec.drafters.host_trees import can_use_heap, grow_on_host
from treespec.drafters.path_probs import path_probs
from treespec.errors import CheckpointError, ConfigError, VocabularyMismatchError
from treespec.heads.drafting.proposals import needs_full_probs
from treespec.heads.medusa.files import load_heads
from treespec.heads.medusa.module import MedusaHeads
from treespec.policies import BestFirst
from treespec.protocols import Frontier, HiddenStates, Proposal, Session, VerifiedStep
from treespec.tree import TreeBatch
from treespec.tree.transfer import download, upload

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
        token_map = self._heads.token_map
        num_scored = self._heads.num_scored
        least = num_scored if token_map is None else int(token_map.max()) + 1
        if least > session.vocab_size or (token_map is None and least != session.vocab_size):
            raise VocabularyMismatchError(
                f"the Medusa heads score {least} tokens, the target {session.vocab_size}: they belong to another model"
            )
        self._session = session
        self._features = self._prompt_features(session.prompt_states)

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone before the target's first feature. See `Drafter`."""
        if self._features is None:
            return single_nodes(self.root_tokens)
        self._logits: list[Tensor] = []
        self._probs: list[Tensor] = []
        depth = min(max_depth, self._heads.num_heads)
        policy = self._policy
        is_on_cpu = self._session.device.type == "cpu"
        # A CPU computes only the depths that a tree reaches; an accelerator waits less if it computes all at once.
        self._shared = None if is_on_cpu or not self._session.processors.is_path_free else self._all_probs(depth)
        self._candidates: tuple[Tensor, Tensor] | None = None
        if self._shared is not None and not needs_full_probs(self._session, policy):
            probs, tokens = download(*self._shared.topk(min(max(policy.max_nodes - 1, 1), self._shared.shape[-1])))
            self._candidates = probs, tokens
        if can_use_heap(policy) and (self._candidates is not None or (is_on_cpu and self._is_shared(policy))):
            return self._grow_on_host(policy, depth)
        return policy.grow(self, depth)

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

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`: the distribution of every node's depth."""
        rows = torch.arange(len(frontier.depths), device="cpu").unsqueeze(1)
        if self._candidates is not None:
            return Proposal(*(values[rows, frontier.depths] for values in self._candidates))
        rows, depths = upload(self._session.device, rows, frontier.depths)
        if self._shared is not None:
            return Proposal(self._shared[rows, depths])
        # A pass reaches at most one level deeper, so it needs at most one head more.
        num_depths = min(len(self._logits) + 1, self._heads.num_heads)
        if self._session.processors.is_path_free:
            probs = torch.stack([self._depth_probs(d) for d in range(num_depths)], 1)
            return Proposal(probs[rows, depths])
        logits = torch.stack([self._depth_logits(d) for d in range(num_depths)], 1)
        return Proposal(path_probs(self._session, logits[rows, depths], frontier))

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
        output = self._heads.heads[0].output
        if output.dtype != features.dtype or output.device != self._session.device:
            self._heads = self._heads.to(self._session.device, features.dtype)
        return features.to(self._session.device)

    def _depth_logits(self, depth: int) -> Float[Tensor, "B V"]:
        """Raw logits of the children of nodes at `depth`."""
        assert self._features is not None
        for head in range(len(self._logits), depth + 1):
            self._logits.append(self._heads.logits(head, self._features, self._session.vocab_size))
        return self._logits[depth]

    def _depth_probs(self, depth: int) -> Float[Tensor, "B V"]:
        """Their distribution, where processors look at no path."""
        for d in range(len(self._probs), depth + 1):
            self._probs.append(path_probs(self._session, self._depth_logits(d).unsqueeze(1)).squeeze(1))
        return self._probs[depth]

    def _is_shared(self, policy: BestFirst) -> bool:
        """Whether children are selected, from distributions for which one top-k per depth is enough."""
        is_selected = policy.children != AUTO or not self.is_sampling
        return is_selected and self._session.processors.is_path_free

    def _best(self, depth: int, k: int) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        """Probabilities and tokens of the best children of nodes at `depth`."""
        if self._candidates is not None:
            probs, tokens = self._candidates
            return probs[:, depth], tokens[:, depth]
        distribution = self._depth_probs(depth)
        return distribution.topk(min(k, distribution.shape[1]))

    def _all_probs(self, num_depths: int) -> Float[Tensor, "B D V"]:
        """The distributions of depths, where processors look at no path."""
        return path_probs(self._session, torch.stack([self._depth_logits(d) for d in range(num_depths)], 1))

    def _grow_on_host(self, policy: BestFirst, max_depth: int) -> TreeBatch:
        tops: list[list[list[tuple[float, int, int]]]] = []

        def children_of(row: int, depth: int) -> list[tuple[float, int, int]]:
            for d in range(len(tops), depth + 1):
                probs, tokens = self._best(d, policy.num_nodes - 1)
                pairs = zip(probs.tolist(), tokens.tolist(), strict=True)
                tops.append([[(p, t, d + 1) for p, t in zip(*pair, strict=True) if p > 0] for pair in pairs])
            return tops[depth][row]

        trees = [
            grow_on_host(policy, root, 0, lambda depth, row=row: children_of(row, depth), max_depth)
            for row, root in enumerate(self.root_tokens.tolist())
        ]
        return TreeBatch.from_host_trees(trees)
