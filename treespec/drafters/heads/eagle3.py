"""EAGLE-3 (Li et al. 2025): a one-layer head drafts from features of the target's own verification pass.

The feature of a position is known once the target has scored it, and pairs with the *next* token. So a step's first
pass feeds the head one pair per token that was emitted since the last one, the root's last; its keys are kept for good.
Every level of the tree below is one tree-masked pass whose features are the head's own outputs; those keys are dropped
with the tree, because the true features replace them.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.drafters.base import depth_room, single_nodes
from treespec.drafters.heads.base import HeadDrafter
from treespec.drafters.heads.unread_features import Pairs, take_columns
from treespec.heads.modules.eagle3 import Eagle3Head, Eagle3Output
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.policies import BestFirst
from treespec.policies.best_first import DENSE_DEPTH
from treespec.policies.truncated import shape_of
from treespec.protocols import Frontier, Proposal
from treespec.tree import TreeBatch


class Eagle3(HeadDrafter[Eagle3Head]):
    """Drafts with an EAGLE-3 head; see `HeadDrafter` and `Drafter`."""

    _head_type = Eagle3Head
    _features: Tensor
    """[B, E, H]: what the children of every expanded node read."""

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
                self._features = output.features
            else:
                output = self._read_level(frontier)
                self._features = torch.cat([self._features, output.features], 1)
            return self._propose(output.logits, frontier)

    def _catch_up(self) -> Eagle3Output:
        """The head's output after the roots: `logits` [B, 1, W], `features` [B, 1, H]."""
        roots: Tensor | None = None
        for pairs in self._unread.take():
            outputs = self._read_committed(pairs, self._keys, self._unread.offsets)
            last = torch.tensor(pairs.counts).to(outputs.device, non_blocking=True).unsqueeze(1) - 1
            ends = take_columns(outputs, last.clamp(min=0))
            roots = ends if roots is None else torch.where(last.unsqueeze(-1) >= 0, ends, roots)
        assert roots is not None
        return self.head.read(roots)

    def _read_committed(self, pairs: Pairs, keys: DraftingCache, offsets: list[int]) -> Float[Tensor, "B M H"]:
        """Outputs of a pass over committed tokens, whose keys are kept; `offsets`: see `UnreadFeatures`."""
        device = self.head.fc.weight.device
        states, tokens, counts = pairs
        num_columns = tokens.shape[1]
        first = torch.tensor([keys.lengths, offsets]).to(device, non_blocking=True)
        num_slots = keys.begin_commit(counts, num_columns)
        own_slots = first[0].unsqueeze(1) + torch.arange(num_columns, device=device)
        mask = self._sees(own_slots, torch.arange(num_slots, device=device).expand(len(counts), -1))
        features = self._fuse(states.to(device))
        return self.head.run(tokens.to(device), features, own_slots + first[1].unsqueeze(1), mask, keys)

    def _fuse(self, states: Float[Tensor, "B M Y"]) -> Float[Tensor, "B M H"]:
        """The head's features of the target's states."""
        return self.head.fuse(states)

    def _read_level(self, frontier: Frontier) -> Eagle3Output:
        """The head's output after nodes below the root. Padding reads the root's feature."""
        device = self.head.fc.weight.device
        num_nodes = frontier.tokens.shape[1]
        features = take_columns(self._features, frontier.parents.clamp(min=0).to(device))
        lengths = torch.tensor([self._keys.lengths, self._unread.offsets]).to(device, non_blocking=True)
        num_committed = self._keys.num_committed
        self._keys.begin_pending(num_nodes)
        slots = torch.arange(num_committed, device=device).expand(len(features), -1)
        # A node of depth d has the position of the d-th token after the root.
        all_nodes = lengths[0].unsqueeze(1) - 1 + frontier.expanded_depths.to(device)
        nodes = all_nodes[:, -num_nodes:]
        committed = (slots < lengths[0].unsqueeze(1))[:, None, None].expand(-1, -1, num_nodes, -1)
        mask = torch.cat([committed, frontier.ancestors[:, None, :, 1:].to(device)], -1)
        if self.head.config.layer.window is not None:
            mask = mask & self._sees(nodes, torch.cat([slots, all_nodes[:, 1:]], 1))
        positions = nodes + lengths[1].unsqueeze(1)
        return self.head.read(self.head.run(frontier.tokens.to(device), features, positions, mask, self._keys))

    def _sees(self, queries: Int[Tensor, "B F"], keys: Int[Tensor, "B S"]) -> Bool[Tensor, "B 1 F S"]:
        """Whether a key's slot is in the window that ends at a query's."""
        ahead = queries.unsqueeze(-1) - keys.unsqueeze(1)
        window = self.head.config.layer.window
        mask = ahead >= 0 if window is None else (ahead >= 0) & (ahead < window)
        return mask.unsqueeze(1)
