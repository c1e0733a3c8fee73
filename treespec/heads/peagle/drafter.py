"""P-EAGLE: one pass over what was committed and mask tokens after it gives the distributions at all depths."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.drafters.base import depth_room, single_nodes
from treespec.heads.drafting.depths import DepthDrafts, useful_depth
from treespec.heads.eagle3.drafter import Eagle3
from treespec.heads.files.kinds import HeadKind
from treespec.heads.peagle.files import KEYS, is_meant, peagle_config, peagle_keys
from treespec.heads.peagle.module import PEagleHead
from treespec.tree import TreeBatch
from treespec.tree.transfer import upload


class PEagle(Eagle3):
    """Drafts with a P-EAGLE head, no deeper than its file says; see `HeadDrafter` and `Drafter`."""

    _head_type = PEagleHead
    head: PEagleHead  # pyright: ignore[reportIncompatibleVariableOverride]

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone where a root's feature is not known or the context is full."""
        room = depth_room(self._session.history, self._max_length)
        depth = useful_depth(self._session, max_depth, self.head.config.num_depths, room)
        if not self._unread.reaches_roots or depth < 1:
            return single_nodes(self.root_tokens)
        with torch.no_grad():
            outputs = self._catch_up()
            if depth > 1:
                outputs = torch.cat([outputs, self._run_masks(depth - 1)], 1)
            logits, _ = self._read_all(outputs)
            return DepthDrafts(self._session, self._ids_of(logits), logits).grow(depth)

    def _run_masks(self, count: int) -> Float[Tensor, "B M H"]:
        """The head's outputs at this many mask tokens after the roots."""
        keys, head = self._keys, self.head
        lengths, offsets = np.array([keys.lengths, self._unread.offsets])[..., None]
        nodes, committed = lengths + np.arange(count), np.arange(keys.num_committed)
        slots = np.concatenate([np.broadcast_to(committed, (len(nodes), len(committed))), nodes], -1)
        is_filled = np.concatenate([committed < lengths, nodes >= lengths], -1)
        mask = self._mask(self._sees(nodes[..., None], slots[:, None]) & is_filled[:, None], nodes, slots)
        positions, mask = upload(keys.device, *map(torch.from_numpy, (nodes + offsets, mask)))
        tokens = torch.full(positions.shape, head.config.mask_token, device=keys.device)
        features = head.fuse(head.mask_hidden).expand(*positions.shape, -1)
        keys.begin_pending(count)
        outputs = head.run(tokens, features, positions, mask, keys)
        keys.drop_pending()
        return outputs


KIND = HeadKind(
    keys=KEYS, is_meant=is_meant, read_config=peagle_config, head=PEagleHead, drafter=PEagle, write_config=peagle_keys
)
