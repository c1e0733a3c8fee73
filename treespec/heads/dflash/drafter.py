"""DFlash and DSpark: one pass per step over a block of mask tokens gives the distributions at all depths.

Without a Markov head all nodes of a depth share one distribution, and the best trees are those of the depths' marginals
(DDTree). With one the children of a node at depth d that holds token u have the distribution softmax(U[d] + W2 W1[u])
(PCTree): a look-up per node and no second pass.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from treespec.drafters.base import depth_room, single_nodes
from treespec.drafters.host_trees import can_use_heap, grow_on_host
from treespec.heads.dflash.files import KEYS, dflash_config, dflash_keys, is_meant
from treespec.heads.dflash.module import DFlashHead, Span
from treespec.heads.drafting.base import HeadDrafter
from treespec.heads.drafting.proposals import candidates, head_proposal
from treespec.heads.files.kinds import HeadKind, register
from treespec.policies import BestFirst
from treespec.policies.wrapping import shape_of
from treespec.protocols import Frontier, Proposal, Session
from treespec.tree import TreeBatch
from treespec.tree.transfer import download, upload


class DFlash(HeadDrafter[DFlashHead]):
    """Drafts with a DFlash or DSpark head, no deeper than its block; see `HeadDrafter` and `Drafter`."""

    _head_type = DFlashHead
    _block: _Block | None

    def _forget_tree(self) -> None:
        self._block = None

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone where the context is full."""
        policy = self._policy
        depth = min(max_depth, self.head.config.num_depths, policy.max_nodes - 1)
        depth = min(depth, depth_room(self._session.history, self._max_length))
        if isinstance(shape := shape_of(policy), BestFirst):
            depth = min(depth, shape.depth or depth)
        if depth < 1:
            return single_nodes(self.root_tokens)
        with torch.no_grad():
            logits = self._read_block(depth)
            self._block = _Block(self._session, self.head, logits, self._num_candidates)
            if self._block.is_on_host and can_use_heap(policy):
                return self._block.grow(policy, depth)
            return policy.grow(self, depth)

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`."""
        assert self._block is not None
        with torch.no_grad():
            return self._block.expand(frontier)

    def _read_block(self, num_depths: int) -> Float[Tensor, "B D W"]:
        """Logits of the first depths below the roots, without what a Markov head adds."""
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
        return head.read(head.by_depth(outputs)[:, :num_depths])

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
        """What blocks behind the context's ends see in layers of a span, or None where that is everything."""
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


class _Block:
    """What one pass gives: the distributions of the depths and, for nodes, what a Markov head adds."""

    def __init__(
        self, session: Session, head: DFlashHead, logits: Float[Tensor, "B D W"], num_candidates: int | None
    ) -> None:
        self._session = session
        self._head = head
        self._logits = logits
        self._num_candidates = num_candidates
        self._known: dict[tuple[int, int, int], list[tuple[float, int, tuple[int, int]]]] = {}
        # The distributions of depths, where neither a path's tokens nor its draws change them.
        self._shared: Proposal | None = None
        if head.markov_head is None and session.processors.is_path_free:
            self._shared = self._propose(logits, None)
            if self._shared.tokens is not None:  # One wait for all depths.
                self._shared = Proposal(*download(self._shared.probs, self._shared.tokens))

    @property
    def is_on_host(self) -> bool:
        """Whether candidates are read without a wait."""
        is_read = self._shared is not None or self._session.device.type == "cpu"
        return is_read and self._num_candidates is not None

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`."""
        if self._shared is not None:
            probs, ids = self._shared
            ids = None if ids is None else _at_depths(ids, frontier.depths)
            return Proposal(_at_depths(probs, frontier.depths), ids)
        logits = _at_depths(self._logits, frontier.depths)
        if self._head.markov_head is not None:
            logits = logits + self._head.markov_head(upload(logits.device, frontier.tokens)[0])
        return self._propose(logits, frontier)

    def _propose(self, logits: Tensor, frontier: Frontier | None) -> Proposal:
        return head_proposal(self._session, self._head.target_ids, self._num_candidates, logits, frontier)

    def grow(self, policy: BestFirst, max_depth: int) -> TreeBatch:
        """The best nodes by a heap on the host, which reads the children of no other nodes."""
        trees = [
            grow_on_host(policy, root, (0, root), partial(self._children, row), max_depth)
            for row, root in enumerate(self._session.history.last_tokens.tolist())
        ]
        return TreeBatch.from_host_trees(trees)

    def _children(self, row: int, state: tuple[int, int]) -> list[tuple[float, int, tuple[int, int]]]:
        """The best children of a node in this state (depth, token): probability, token and state of each."""
        depth, token = state
        key = (row, depth, token if self._shared is None else 0)
        if key not in self._known:
            probs, ids = self._shared or self._look_up(row, depth, token)
            assert ids is not None
            if self._shared is not None:
                probs, ids = probs[row, depth], ids[row, depth]
            pairs = zip(probs.tolist(), ids.tolist(), strict=True)
            self._known[key] = [(p, t, (depth + 1, t)) for p, t in pairs if p > 0]
        return self._known[key]

    def _look_up(self, row: int, depth: int, token: int) -> Proposal:
        """The best children after a Markov bias, [k] each."""
        assert self._head.markov_head is not None
        assert self._num_candidates is not None
        bias = self._head.markov_head(torch.tensor([token], device=self._logits.device))
        logits = self._logits[row, depth] + bias[0]
        return candidates(logits, self._head.target_ids, self._num_candidates, self._session.device)


def _at_depths(of_depths: Shaped[Tensor, "B D W"], depths: Int[Tensor, "B F"]) -> Shaped[Tensor, "B F W"]:
    """The rows of nodes' depths; a view where all nodes have one depth, as in a level of a fixed shape."""
    first = int(depths[0, 0])
    if bool((depths == first).all()):
        return of_depths[:, first : first + 1].expand(-1, depths.shape[1], -1)
    rows, depths = upload(of_depths.device, torch.arange(len(depths), device="cpu").unsqueeze(1), depths)
    return of_depths[rows, depths]


register(
    HeadKind(
        names=("dflash", "dspark"),
        keys=KEYS,
        is_meant=is_meant,
        read_config=dflash_config,
        head=DFlashHead,
        drafter=DFlash,
        write_config=dflash_keys,
        shares_lm_head=True,
    )
)
