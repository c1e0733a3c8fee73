"""Trees of heads whose one pass gives the distributions at all depths.

All nodes of a depth share one, which some heads change by the nodes' tokens.
"""

from collections.abc import Callable
from copy import copy
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from treespec.drafters.base import SessionSource, can_use_heap, policy_of_call
from treespec.heads.drafting.base import head_proposal, num_candidates
from treespec.policies import BestFirst
from treespec.policies.heap import grow_best_first
from treespec.policies.wrapping import shape_of
from treespec.protocols import Frontier, Proposal, Session, TreePolicy
from treespec.sampling import NoProcessors
from treespec.tree import TreeBatch
from treespec.tree.transfer import download, upload

Child = tuple[float, int, tuple[int, int]]
"""Its probability, its token, and its state: its depth and its token."""
After = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
"""From a function that picks nodes' rows [..., *] of tensors [B, D, *], and tokens int64 [...], to logits [..., W]."""


def useful_depth(session: Session, *limits: int) -> int:
    """The greatest depth of the call's trees, at most the limits."""
    policy = policy_of_call(session)
    depth = min(policy.max_nodes - 1, *limits)
    shape = shape_of(policy)
    return min(depth, shape.depth or depth) if isinstance(shape, BestFirst) else depth


def all_expanded(policy: TreePolicy) -> TreePolicy:
    """A policy that leaves out no node for a pass that it would take: here it takes none."""
    if not isinstance(policy, BestFirst) or not policy.min_value:
        return policy
    policy = copy(policy)
    policy.min_value = 0.0
    return policy


class DepthDrafts(SessionSource):
    """The `DraftSource` of one step.

    Args:
        target_ids: int64 [W], the target's id of every draft id.
        logits: raw, [B, D, W]; those at d are for the children of nodes at depth d.
        after: the logits after a token, where it changes them.
    """

    def __init__(
        self, session: Session, target_ids: Int[Tensor, "W"], logits: Float[Tensor, "B D W"], after: After | None = None
    ) -> None:
        self._session = session
        self._target_ids = target_ids
        self._logits = logits
        self._after = after
        self._known: dict[tuple[int, int, int], list[Child]] = {}
        # The distributions of depths, where neither a path's tokens nor its draws change them.
        self._shared: Proposal | None = None
        if after is None and session.processors.is_path_free:
            self._shared = head_proposal(session, target_ids, logits, None)
            if self._shared.tokens is not None:  # One wait for all depths.
                self._shared = Proposal(*download(self._shared.probs, self._shared.tokens))

    def grow(self, max_depth: int) -> TreeBatch:
        """Trees by the call's policy; the best nodes by a heap on the host, which reads the children of no others."""
        policy = all_expanded(self._policy)
        if not (self._has_candidates_on_host and can_use_heap(policy)):
            return policy.grow(self, max_depth)
        sizes = policy.num_nodes, min(max_depth, policy.depth or max_depth)
        trees = [
            grow_best_first(root, (0, root), partial(self._children, row), *sizes)
            for row, root in enumerate(self.root_tokens.tolist())
        ]
        return TreeBatch.from_host_trees(trees)

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`."""
        if self._shared is not None:
            probs, ids = self._shared
            ids = None if ids is None else _at_depths(ids, frontier.depths)
            return Proposal(_at_depths(probs, frontier.depths), ids)
        if self._after is None:
            logits = _at_depths(self._logits, frontier.depths)
        else:
            (tokens,) = upload(self._logits.device, frontier.tokens)
            logits = self._after(partial(_at_depths, depths=frontier.depths), tokens)
        return head_proposal(self._session, self._target_ids, logits, frontier)

    @property
    def _has_candidates_on_host(self) -> bool:
        """Whether children are read without a wait for each."""
        if num_candidates(self._session) is None:
            return False
        is_plain = isinstance(self._session.processors, NoProcessors) and self._session.device.type == "cpu"
        return self._shared is not None or is_plain

    def _children(self, row: int, state: tuple[int, int]) -> list[Child]:
        """The best children of a node in this state, most probable first."""
        depth, token = state
        key = (row, depth, token if self._shared is None else 0)
        if key not in self._known:
            probs, ids = self._look_up(row, depth, token) if self._shared is None else self._shared
            assert ids is not None
            if self._shared is not None:
                probs, ids = probs[row, depth], ids[row, depth]
            pairs = zip(probs.tolist(), ids.tolist(), strict=True)
            self._known[key] = [(p, t, (depth + 1, t)) for p, t in pairs if p > 0]
        return self._known[key]

    def _look_up(self, row: int, depth: int, token: int) -> Proposal:
        """The best children after a token, [k] each."""
        assert self._after is not None
        tokens = torch.tensor(token, device=self._logits.device)
        logits = self._after(lambda of_depths: of_depths[row, depth], tokens)
        return head_proposal(self._session, self._target_ids, logits, None)


def _at_depths(of_depths: Shaped[Tensor, "B D W"], depths: Int[Tensor, "B F"]) -> Shaped[Tensor, "B F W"]:
    """The rows of nodes' depths; a view where all nodes have one depth, as in a level of a fixed shape."""
    first = int(depths[0, 0])
    if bool((depths == first).all()):
        return of_depths[:, first : first + 1].expand(-1, depths.shape[1], -1)
    rows, depths = upload(of_depths.device, torch.arange(len(depths), device="cpu").unsqueeze(1), depths)
    return of_depths[rows, depths]
