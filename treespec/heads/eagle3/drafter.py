"""EAGLE-3 (Li et al. 2025): a one-layer head drafts from features of the target's own verification pass.

The feature of a position is known once the target has scored it, and pairs with the *next* token. So a step's first
pass feeds the head one pair per token that was emitted since the last one, the root's last; its keys are kept for good.
Every level of the tree below is one tree-masked pass whose features are the head's own outputs; those keys are dropped
with the tree, because the true features replace them.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.drafters.base import depth_room, single_nodes
from treespec.heads.drafting.base import HeadDrafter
from treespec.heads.drafting.unread_features import Pairs, take_columns
from treespec.heads.eagle3.files import KEYS, eagle3_config, eagle3_keys, is_meant
from treespec.heads.eagle3.module import Eagle3Head, Eagle3Output
from treespec.heads.files.kinds import HeadKind, register
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.policies import BestFirst
from treespec.policies.best_first import DENSE_DEPTH
from treespec.policies.wrapping import shape_of
from treespec.protocols import Frontier, Proposal
from treespec.tree import TreeBatch
from treespec.tree.transfer import upload


class Eagle3(HeadDrafter[Eagle3Head]):
    """Drafts with an EAGLE-3 head; see `HeadDrafter` and `Drafter`."""

    _head_type = Eagle3Head
    _features: list[Tensor]
    """[B, F, H] of every level: what the children of every expanded node read."""

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone where a root's feature is not known or the context is full."""
        depth = min(max_depth, depth_room(self._session.history, self._max_length))
        shape = shape_of(self._policy)
        if isinstance(shape, BestFirst) and shape.depth is None:
            depth = min(depth, DENSE_DEPTH)  # A level costs a pass, whether its distributions are dense or not.
        if not self._unread.reaches_roots or depth < 1:
            return single_nodes(self.root_tokens)
        return self._policy.grow(self, depth)

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`; the first pass reads the tokens that were committed since the last step."""
        with torch.no_grad():
            if frontier.is_root:
                output = self._catch_up()
                self._features = [output.features]
            else:
                output = self._read_level(frontier)
                self._features.append(output.features)
            return self._propose(output.logits, frontier)

    def _catch_up(self) -> Eagle3Output:
        """The head's output after the roots: `logits` [B, 1, W], `features` [B, 1, H]."""
        roots: Tensor | None = None
        for pairs in self._unread.take():
            ends = self._read_committed(pairs, self._keys, self._unread.offsets)
            if roots is not None and min(pairs.counts) == 0:
                (has_pairs,) = upload(ends.device, torch.tensor(pairs.counts, device="cpu")[:, None, None] > 0)
                ends = torch.where(has_pairs, ends, roots)
            roots = ends
        assert roots is not None
        return self.head.read(roots)

    def _read_committed(self, pairs: Pairs, keys: DraftingCache, offsets: list[int]) -> Float[Tensor, "B 1 H"]:
        """A pass over committed tokens, whose keys are kept; returns the outputs at each row's last one.

        `offsets`: see `UnreadFeatures`.
        """
        states, tokens, counts = pairs
        num_columns = tokens.shape[1]
        slots = np.array(keys.lengths)[:, None] + np.arange(num_columns)
        positions = slots + np.array(offsets)[:, None]
        last = np.maximum(np.array(counts)[:, None] - 1, 0)
        num_slots = max(length + count for length, count in zip(keys.lengths, counts, strict=True))
        mask = self._sees(slots[..., None], np.arange(num_slots))[:, None]
        arrays = map(torch.from_numpy, (positions, last, mask))
        tokens, positions, last, mask = keys.begin_commit(counts, num_columns, tokens, *arrays)
        features = self._fuse(states.to(self.head.embedding))
        return take_columns(self.head.run(tokens, features, positions, mask, keys), last)

    def _fuse(self, states: Float[Tensor, "B M Y"]) -> Float[Tensor, "B M H"]:
        """The head's features of the target's states."""
        return self.head.fuse(states)

    def _read_level(self, frontier: Frontier) -> Eagle3Output:
        """The head's output after nodes below the root. Padding reads the root's feature."""
        keys = self._keys
        num_nodes = frontier.tokens.shape[1]
        # A node of depth d has the position of the d-th token after the root.
        lengths, offsets = np.array([keys.lengths, self._unread.offsets])[..., None]
        slots = lengths - 1 + frontier.expanded_depths.numpy()
        nodes = slots[:, -num_nodes:]
        committed = np.arange(keys.num_committed)
        is_seen = np.repeat((committed < lengths)[:, None], num_nodes, 1)
        is_above = frontier.ancestors.numpy()[..., 1:]
        if self.head.config.layer.window is not None:
            is_seen &= self._sees(nodes[..., None], committed)
            is_above = is_above & self._sees(nodes[..., None], slots[:, None, 1:])
        mask = np.concatenate([is_seen, is_above], -1)[:, None]
        above, parents = self._above(frontier.parents.numpy())
        arrays = map(torch.from_numpy, (parents, nodes + offsets, mask))
        tokens, parents, positions, mask = upload(keys.device, frontier.tokens, *arrays)
        keys.begin_pending(num_nodes)
        features = take_columns(above, parents)
        return self.head.read(self.head.run(tokens, features, positions, mask, keys))

    def _above(self, parents: Int[np.ndarray, "B F"]) -> tuple[Float[Tensor, "B E H"], Int[np.ndarray, "B F"]]:
        """The features of levels that hold all parents, of the last one if it does, and the parents' columns there."""
        first = sum(level.shape[1] for level in self._features[:-1])
        if (parents >= first).all():
            return self._features[-1], parents - first
        self._features = [torch.cat(self._features, 1)]
        return self._features[0], np.maximum(parents, 0)

    def _sees(self, queries: Int[np.ndarray, "B F 1"], keys: Int[np.ndarray, "... S"]) -> Bool[np.ndarray, "B F S"]:
        """Whether a key's slot is in the window that ends at a query's."""
        window = self.head.config.layer.window
        is_before = keys <= queries
        return is_before if window is None else is_before & (keys > queries - window)


register(
    HeadKind(
        names=("eagle3",),
        keys=KEYS,
        is_meant=is_meant,
        read_config=eagle3_config,
        head=Eagle3Head,
        drafter=Eagle3,
        write_config=eagle3_keys,
    )
)
