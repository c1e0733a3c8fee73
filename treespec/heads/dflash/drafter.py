"""DFlash and DSpark: one pass per step over a block of mask tokens gives the distributions at all depths.

Without a Markov head all nodes of a depth share one distribution, and the best trees are those of the depths' marginals
(DDTree). With one the children of a node at depth d that holds token u have the distribution softmax(U[d] + W2 W1[u])
(PCTree): a look-up per node and no second pass. DFlash 2's selector gives a node's children theirs in the same way.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.drafters.base import depth_room, single_nodes
from treespec.heads.dflash.files import KEYS, dflash_config, dflash_keys, is_meant
from treespec.heads.dflash.module import DFlashHead, Span
from treespec.heads.drafting.base import HeadDrafter
from treespec.heads.drafting.depths import After, DepthDrafts, useful_depth
from treespec.heads.files.kinds import HeadKind
from treespec.tree import TreeBatch
from treespec.tree.transfer import upload


class DFlash(HeadDrafter[DFlashHead]):
    """Drafts with a DFlash or DSpark head, no deeper than its block; see `HeadDrafter` and `Drafter`."""

    _head_type = DFlashHead

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone where the context is full."""
        room = depth_room(self._session.history, self._max_length)
        depth = useful_depth(self._session, max_depth, self.head.config.num_depths, room)
        if depth < 1:
            return single_nodes(self.root_tokens)
        with torch.no_grad():
            outputs = self._read_block(depth)
            head, logits = self.head, self.head.read(outputs)
            after: After | None = None
            if head.is_conditional:
                after = lambda at, tokens: head.after(at(logits), at(outputs), tokens)  # noqa: E731
            return DepthDrafts(self._session, head.target_ids, logits, after).grow(depth)

    def _read_block(self, num_depths: int) -> Float[Tensor, "B D H"]:
        """The outputs of the first depths below the roots."""
        head = self.head
        keys = self._keys
        for states, _, counts in self._unread.take():
            self._read_context(states.to(self.head.embedding), counts)
        lengths = torch.tensor([keys.lengths, self._unread.offsets], device="cpu").unsqueeze(-1)
        positions = lengths.sum(0) + torch.arange(head.config.block_size, device="cpu")
        tokens = head.block_tokens(self.root_tokens)
        spans = head.config.spans
        masks = {span: mask for span in spans if (mask := self._mask(span, lengths[0])) is not None}
        tokens, positions, *copies = upload(keys.device, tokens, positions, *masks.values())
        masks = dict(zip(masks, copies, strict=True))
        keys.begin_pending(head.config.block_size)
        outputs = head.run(tokens, positions, [masks.get(span) for span in spans], keys)
        keys.drop_pending()
        return head.by_depth(outputs)[:, :num_depths]

    def _read_context(self, states: Float[Tensor, "B M Y"], counts: list[int]) -> None:
        """Keep the keys of committed tokens' states for good."""
        keys = self._keys
        num_columns = states.shape[1]
        firsts = torch.tensor([keys.lengths, self._unread.offsets], device="cpu").sum(0)
        (positions,) = keys.begin_commit(
            counts, num_columns, firsts.unsqueeze(1) + torch.arange(num_columns, device="cpu")
        )
        self.head.add_context(self.head.fuse(states), positions, keys)

    def _mask(self, span: Span, ends: Int[Tensor, "B 1"]) -> Bool[Tensor, "B 1 Q S"] | None:
        """The mask of blocks after the context's ends in layers of a span, or None where they see everything."""
        num_committed = self._keys.num_committed
        size = self.head.config.block_size
        is_ragged = len(set(self._keys.lengths)) > 1
        window = num_committed if span.window is None else span.window
        if not is_ragged and not span.is_causal and window >= num_committed:
            return None
        slots = torch.arange(num_committed, device="cpu")
        context = slots < ends
        if span.window is not None:
            context = context & (slots >= ends - span.window)
        block = torch.ones(size, size, dtype=torch.bool, device="cpu")
        block = (block.tril() if span.is_causal else block).expand(len(ends), 1, -1, -1)
        return torch.cat([context[:, None, None].expand(-1, -1, size, -1), block], -1)


KIND = HeadKind(
    keys=KEYS, is_meant=is_meant, read_config=dflash_config, head=DFlashHead, drafter=DFlash, write_config=dflash_keys
)
