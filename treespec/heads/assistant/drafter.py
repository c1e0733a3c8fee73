"""Drafts with an assistant: a tree's levels by its own outputs, over the target's keys and values."""

from typing import Any

import torch
from torch import Tensor

from treespec.drafters.base import single_nodes
from treespec.errors import UnsupportedModelError
from treespec.heads.assistant.module import AssistantHead
from treespec.heads.drafting.base import HeadSource, head_proposal, level_depth
from treespec.heads.drafting.unread_features import RootReader, take_columns
from treespec.protocols import Frontier, Proposal
from treespec.tree import TreeBatch
from treespec.tree.transfer import upload


class Assistant(RootReader, HeadSource[AssistantHead]):
    """Drafts with an assistant; see `Drafter` and `FeatureDrafter` for its methods.

    Sampled children are drawn from the softmax of its logits after the caller's processors, which is kept for
    verification.

    Args:
        head: see `load_drafter`.
        max_length: the longest text that it reads, in tokens, after which the target decodes alone; None: no end.

    Raises `ConfigError`: another kind of head, or `max_length` is not a positive int.
    """

    _head_type = AssistantHead

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone when the text is too long.

        Raises `UnsupportedModelError`: the target's cache cannot be read.
        """
        depth = level_depth(self._session, max_depth, self._max_length)
        if depth < 1:
            return single_nodes(self.root_tokens)
        target: Any = self._session.target
        if not hasattr(target, "slots"):
            raise UnsupportedModelError("an assistant attends the target's cache, which this target keeps to itself")
        self._text = self.head.read_text(target.cache, target.slots.mask)
        return self._policy.grow(self, depth)

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`; the root reads the target's state before it, every other node its parent's output."""
        device, dtype = self.head.target_ids.device, self.head.assistant.pre_projection.weight.dtype
        tokens, parents = upload(device, frontier.tokens, frontier.parents.clamp(min=0))
        with torch.no_grad():
            if frontier.is_root:
                before = self._root_states.to(device, dtype).unsqueeze(1)
            else:
                before = take_columns(self._outputs, parents)
            logits, outputs = self.head.run(tokens, before, self._text)
            self._outputs = outputs if frontier.is_root else torch.cat([self._outputs, outputs], 1)
            return head_proposal(self._session, self.head.target_ids, logits, frontier)

    _outputs: Tensor
    """[B, E, H] of the nodes that were expanded so far, by their expanded numbers."""
