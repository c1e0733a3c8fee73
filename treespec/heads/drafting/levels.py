"""Trees of heads that read their own outputs: a pass per level over the head's own cache.

The state of a position is known once the target has scored it, and pairs with the *next* token. So a step's first pass
feeds the head one pair per token that was emitted since the last one, the root's last; its keys are kept for good.
Every level of the tree below is one tree-masked pass whose features are the head's own outputs; those keys are dropped
with the tree, because the true features replace them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.drafters.base import single_nodes
from treespec.heads.drafting.base import Head, HeadDrafter, head_proposal, level_depth
from treespec.heads.drafting.context_vocabulary import ContextVocabulary, Vocabulary
from treespec.heads.drafting.unread_features import Pairs, take_columns
from treespec.heads.modules.base import DraftHead
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.protocols import Frontier, Proposal, Session
from treespec.tree import TreeBatch
from treespec.tree.transfer import upload


class LevelDrafter(HeadDrafter[Head]):
    """The base of `Eagle`, `Eagle3` and `Mtp`, with a pass per level.

    Heads have `run`, from the outputs of the parents [B, F, Z] to [B, F, Z]; and `fuse` and `read`, or a drafter that
    feeds and reads them otherwise. `read` of a `DraftHead` takes further output rows, see `ContextVocabulary`.

    Axis letters: Z the width of what a pass gives per token, J layers with a mask of their own.
    """

    _outputs: list[Tensor]
    """[B, F, Z] of every level: what the children of every expanded node read."""

    def __init__(self, head: Head, hidden_layers: Sequence[int], max_length: int | None = None) -> None:
        super().__init__(head, hidden_layers, max_length)
        self._context = ContextVocabulary(head) if isinstance(head, DraftHead) else None

    def start(self, session: Session) -> None:
        """See `HeadDrafter`."""
        super().start(session)
        if self._context is not None:
            self._context.start(session.history)

    def select_rows(self, rows: Sequence[int]) -> None:
        super().select_rows(rows)
        if self._context is not None:
            self._context.forget()

    @property
    def _window(self) -> int | None:
        """How many positions a token sees, itself included; None for all."""
        return self.head.config.layer.window

    def _run_text(self, tokens: Tensor, states: Tensor, positions: Tensor, mask: Tensor, keys: DraftingCache) -> Tensor:
        """A pass over committed tokens int64 [B, M] with the target's states before them [B, M, Y]: [B, M, Z]."""
        head: Any = self.head
        return head.run(tokens, self._fuse(states.to(head.embedding)), positions, mask, keys)

    def _fuse(self, states: Float[Tensor, "B M Y"]) -> Float[Tensor, "B M H"]:
        """The head's features of the target's states."""
        head: Any = self.head
        return head.fuse(states)

    def _read(self, states: Float[Tensor, "B F Z"], frontier: Frontier) -> tuple[Tensor, Tensor]:
        """Logits [B, F, W + n] after nodes, and what their children read [B, F, Z], of the outputs of a pass."""
        return self._read_all(states)

    def _read_all(self, states: Float[Tensor, "B F Z"]) -> tuple[Tensor, Tensor]:
        """The same by the head's `read`, with the texts' tokens."""
        head: Any = self.head
        vocabulary = self._vocabulary
        if vocabulary.rows is None:
            return head.read(states)
        logits, outputs = head.read(states, vocabulary.rows)
        if vocabulary.is_absent is not None:
            logits[..., -len(vocabulary.rows) :].masked_fill_(vocabulary.is_absent, -torch.inf)
        return logits, outputs

    def _propose(self, logits: Tensor, frontier: Frontier | None) -> Proposal:
        return head_proposal(self._session, self._ids_of(logits), logits, frontier)

    def _ids_of(self, logits: Float[Tensor, "B F _"]) -> Int[Tensor, "_"]:
        """The target's ids of the logits' tokens; a drafter that reads its head otherwise has the head's own alone."""
        return self._vocabulary.ids[: logits.shape[-1]]

    @property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self.head.target_ids) if self._context is None else self._context.read()

    @torch.no_grad()
    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone where a root's feature is not known or the context is full."""
        depth = level_depth(self._session, max_depth, self._max_length)
        if not self._unread.reaches_roots or depth < 1:
            return single_nodes(self.root_tokens)
        return self._policy.grow(self, depth)

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`; the first pass reads the tokens that were committed since the last step."""
        states = self._catch_up() if frontier.is_root else self._run_level(frontier)
        logits, outputs = self._read(states, frontier)
        self._outputs = [outputs] if frontier.is_root else [*self._outputs, outputs]
        return self._propose(logits, frontier)

    def _catch_up(self) -> Float[Tensor, "B 1 Z"]:
        """The head's outputs at the roots."""
        roots: Tensor | None = None
        for pairs in self._unread.take():
            ends = self._read_committed(pairs, self._keys, self._unread.offsets)
            roots = ends if roots is None else keep_where_none(pairs, ends, roots)
        assert roots is not None
        return roots

    def _read_committed(self, pairs: Pairs, keys: DraftingCache, offsets: list[int]) -> Float[Tensor, "B 1 Z"]:
        """A pass over committed tokens, whose keys are kept; returns the outputs at each row's last one.

        `offsets`: see `UnreadFeatures`.
        """
        states, tokens, counts = pairs
        num_columns = tokens.shape[1]
        slots = np.array(keys.lengths)[:, None] + np.arange(num_columns)
        positions = slots + np.array(offsets)[:, None]
        last = np.maximum(np.array(counts)[:, None] - 1, 0)
        num_slots = max(length + count for length, count in zip(keys.lengths, counts, strict=True))
        mask = self._mask(self._sees(slots[..., None], np.arange(num_slots)), slots, np.arange(num_slots)[None])
        arrays = map(torch.from_numpy, (positions, last, mask))
        tokens, positions, last, mask = keys.begin_commit(counts, num_columns, tokens, *arrays)
        return take_columns(self._run_text(tokens, states, positions, mask, keys), last)

    def _run_level(self, frontier: Frontier) -> Float[Tensor, "B F Z"]:
        """The head's outputs at nodes below the root. Padding reads the root's feature."""
        keys = self._keys
        num_nodes = frontier.tokens.shape[1]
        # A node of depth d has the position of the d-th token after the root.
        lengths, offsets = np.array([keys.lengths, self._unread.offsets])[..., None]
        slots = lengths - 1 + frontier.expanded_depths.numpy()
        nodes = slots[:, -num_nodes:]
        committed = np.arange(keys.num_committed)
        is_seen = np.repeat((committed < lengths)[:, None], num_nodes, 1)
        is_above = frontier.ancestors.numpy()[..., 1:]  # Without the root, whose key is committed.
        if self._window is not None:
            is_seen &= self._sees(nodes[..., None], committed)
            is_above = is_above & self._sees(nodes[..., None], slots[:, None, 1:])
        key_slots = np.concatenate([np.broadcast_to(committed, (len(slots), len(committed))), slots[:, 1:]], -1)
        mask = self._mask(np.concatenate([is_seen, is_above], -1), nodes, key_slots)
        above, parents = self._above(frontier.parents.numpy())
        arrays = map(torch.from_numpy, (parents, nodes + offsets, mask))
        tokens, parents, positions, mask = upload(keys.device, frontier.tokens, *arrays)
        keys.begin_pending(num_nodes)
        head: Any = self.head
        return head.run(tokens, take_columns(above, parents), positions, mask, keys)

    def _above(self, parents: Int[np.ndarray, "B F"]) -> tuple[Float[Tensor, "B E Z"], Int[np.ndarray, "B F"]]:
        """The outputs of levels that hold all parents, of the last one if it does, and the parents' columns there."""
        first = sum(level.shape[1] for level in self._outputs[:-1])
        if (parents >= first).all():
            return self._outputs[-1], parents - first
        self._outputs = [torch.cat(self._outputs, 1)]
        return self._outputs[0], np.maximum(parents, 0)

    def _mask(
        self, is_seen: Bool[np.ndarray, "B F S"], queries: Int[np.ndarray, "B F"], keys: Int[np.ndarray, "#B S"]
    ) -> Bool[np.ndarray, "B #J F S"]:
        """The masks of the head's layers from what is in the window and on the path; `queries`, `keys`: slots."""
        return is_seen[:, None]

    def _sees(self, queries: Int[np.ndarray, "B F 1"], keys: Int[np.ndarray, "... S"]) -> Bool[np.ndarray, "B F S"]:
        """Whether a key's slot is in the window that ends at a query's."""
        is_before = keys <= queries
        return is_before if self._window is None else is_before & (keys > queries - self._window)


def keep_where_none(pairs: Pairs, ends: Float[Tensor, "B 1 Z"], before: Float[Tensor, "B 1 Z"]) -> Tensor:
    """The outputs at the last pairs of rows that have some, else those `before`."""
    if min(pairs.counts) > 0:
        return ends
    (has_pairs,) = upload(ends.device, torch.tensor(pairs.counts, device="cpu")[:, None, None] > 0)
    return torch.where(has_pairs, ends, before)
