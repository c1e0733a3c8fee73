"""Several drafters in one tree: the union of their trees, pruned by calibrated values."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

from treespec.checks import AUTO, ShowsOptions, check_count
from treespec.drafters.base import policy_of_call
from treespec.drafters.merge.grafts import Rest, SmallerTrees, graft
from treespec.drafters.merge.opinion_pool import OpinionPool
from treespec.drafters.merge.union import UnionTree
from treespec.errors import ConfigError, InvalidTreeError
from treespec.policies import BestFirst
from treespec.policies.control.contract import StepControl
from treespec.policies.wrapping import is_chain
from treespec.protocols import Drafter, FeatureDrafter, ServingDrafter, Session, VerifiedStep
from treespec.tree import ROOT_PARENT, SELECTED, HostTree, TreeBatch

SELECTED_SHARE = 0.25
"""The largest share of a sampling call's nodes that selected children get."""


class Merge(ShowsOptions):
    """The union of several drafters' trees, pruned to the most valuable nodes.

    Every drafter's confidence in the nodes along the emitted tokens, pruned ones included, is compared with the
    outcome: P(right | parent right) is estimated by drafter, depth, sibling rank and confidence, and the drafters'
    weights are learned where they differ. This persists across calls in the attribute `pool`, an `OpinionPool`;
    sampling calls with drawn children learn in a copy of their own.

    The call's policy shapes every drafter's part; under a `Chain` the most valuable path is kept. Where the call
    samples, the drafter with most weights (`num_weights`) draws its children, by default of trees that are smaller by
    what the others propose, up to a quarter. No drawn child is pruned, and the others' best nodes are added as selected
    children; to a drawn chain nothing is added, and the others are not asked. One of the others that brings few
    tokens which the drawing one does not is asked in fewer steps, in one of sixteen at least. For the others, and
    without a drafter that has weights, "auto" selects.

    Args:
        num_nodes: the most nodes of a merged tree, root included; None: as many as the call's policy allows.
        pool: another merge's, of as many drafters in the same order; this one starts with a copy.

    Raises `ConfigError`: fewer than two drafters or one of them twice, a pool of another number, a budget below one.
    """

    def __init__(
        self, drafters: Sequence[Drafter], num_nodes: int | None = None, pool: OpinionPool | None = None
    ) -> None:
        is_list = isinstance(drafters, Sequence) and len(drafters) >= 2
        if not is_list or not all(isinstance(d, Drafter) and not isinstance(d, type) for d in drafters):
            raise ConfigError(f"Merge needs a list of two or more drafters, got {drafters!r}")
        if len({id(drafter) for drafter in drafters}) < len(drafters):
            raise ConfigError("one drafter is given to Merge twice: each serves one call and one tree at a time")
        self.drafters = list(drafters)
        """Those that are merged."""
        self.num_nodes = None if num_nodes is None else check_count("num_nodes", num_nodes)
        if pool is not None and len(pool.weights) != len(drafters):
            raise ConfigError(f"the pool is of {len(pool.weights)} drafters, the merge of {len(drafters)}")
        weights = [getattr(drafter, "confidence_weight", 1.0) for drafter in drafters]
        self.pool = OpinionPool(weights) if pool is None else deepcopy(pool)
        self._sampling_pool = deepcopy(self.pool)
        self._rests = [Rest() for _ in drafters]

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """See `FeatureDrafter`."""
        parts = [part for part in self.drafters if isinstance(part, FeatureDrafter)]
        return tuple(sorted({layer for part in parts for layer in part.hidden_layers}))

    @property
    def num_weights(self) -> int:
        """The number of weights that a draft pass of all parts reads."""
        return sum(getattr(part, "num_weights", 0) for part in self.drafters)

    def start(self, session: Session) -> None:
        """Start every part, all but one as if the call did not sample; what was learned stays."""
        self._session = session
        self._proposed: list[UnionTree] = []
        weights = [getattr(part, "num_weights", 0) for part in self.drafters]
        may_draw = session.is_sampling and getattr(session.policy, "children", AUTO) != SELECTED
        self._drawing = weights.index(max(weights)) if may_draw and max(weights) > 0 else None
        self._call_pool = self.pool if self._drawing is None else self._sampling_pool
        self._smaller = SmallerTrees(session)
        is_shared = isinstance(session.policy, (BestFirst, StepControl))
        for part, drafter in enumerate(self.drafters):
            own = replace(session, is_sampling=part == self._drawing)
            drafter.start(replace(own, policy=self._smaller) if part == self._drawing and is_shared else own)

    def propose(self, max_depth: int) -> TreeBatch:
        """See `Drafter`; for errors `read_trees`."""
        roots = self._session.history.last_tokens.tolist()
        num_nodes = self.num_nodes or policy_of_call(self._session).max_nodes
        nothing = [HostTree([root], [ROOT_PARENT], [1.0]) for root in roots]
        parts, drawn = [nothing] * len(self.drafters), None
        is_whole = is_chain(self._session.policy)
        self._asked = self._parts_to_ask(is_whole)
        for part in self._asked:
            is_drawing = part == self._drawing
            if is_drawing:
                self._smaller.num_reserved = self._num_reserved(parts, num_nodes)
            batch = self.drafters[part].propose(max_depth)
            parts[part] = read_trees(self.drafters[part], batch, is_drawing)
            drawn = batch if is_drawing and batch.draft_probs is not None else None
            if drawn is not None and is_whole:
                break
        self._proposed = [UnionTree(root, trees) for root, *trees in zip(roots, *parts, strict=True)]
        if drawn is None:
            return prune(self._proposed, self._call_pool, num_nodes, is_whole)
        is_alone = is_whole or not any(self._num_others(parts))
        return drawn if is_alone else graft(drawn, self._proposed, self._call_pool, num_nodes)

    def _parts_to_ask(self, is_whole: bool) -> list[int]:
        """In order. To a drawn chain nothing is added, so that nothing else has to be asked for where it is drawn."""
        drawing = self._drawing
        others = [part for part in range(len(self.drafters)) if part != drawing]
        if drawing is None:
            return others
        if is_whole:
            return [drawing, *others]
        return [*(part for part in others if self._rests[part].begin_step()), drawing]

    def _num_reserved(self, parts: Sequence[list[HostTree]], num_nodes: int) -> int:
        """By how many nodes the drawn trees are smaller than the policy's: known before anything is drawn."""
        others = max(self._num_others(parts))
        more = policy_of_call(self._session).max_nodes - num_nodes
        return max(more + min(int(SELECTED_SHARE * num_nodes), others), 0)

    def _num_others(self, parts: Sequence[list[HostTree]]) -> list[int]:
        """The nodes below the roots that all but the drawing drafter propose, by row."""
        others = [trees for part, trees in enumerate(parts) if part != self._drawing]
        return [sum(len(tree.tokens) - 1 for tree in trees) for trees in zip(*others, strict=True)]

    def update(self, step: VerifiedStep) -> None:
        """Compare every part's confidence along the emitted tokens with the outcome."""
        if self._proposed and self._drawing is not None:
            self._learn_rests(step.emitted)
        for union, emitted in zip(self._proposed, step.emitted, strict=False):
            for siblings, right in union.outcomes(emitted):
                self._call_pool.update(siblings, right)
        self._proposed = []
        for drafter in self.drafters:
            drafter.update(step)

    def _learn_rests(self, emitted: Sequence[Sequence[int]]) -> None:
        """Count the accepted tokens that drafters proposed and the drawing one did not."""
        paths = zip(self._proposed, emitted, strict=False)
        voters = [found for union, tokens in paths for found in union.voters(tokens[:-1])]
        for part in self._asked:
            num_added = sum(part in found and self._drawing not in found for found in voters)
            self._rests[part].learn(num_added / len(emitted))

    def select_rows(self, rows: Sequence[int]) -> None:
        self._proposed = [self._proposed[b] for b in rows] if self._proposed else []
        for drafter in self.drafters:
            drafter.select_rows(rows)

    def add_rows(self, num_rows: int) -> None:
        """See `ServingDrafter`. Raises `ConfigError`: a part cannot serve rows that join."""
        for drafter in self.drafters:
            if not isinstance(drafter, ServingDrafter):
                raise ConfigError(f"{type(drafter).__name__} cannot serve rows that join: it has no add_rows")
            drafter.add_rows(num_rows)

    def proposers(self, row: int, tokens: Sequence[int]) -> list[list[str]]:
        """The drafters that proposed each token along a path of the last trees; ends where the path leaves them.

        Until `update`, so that a streamer may ask while a step's tokens are emitted; empty where nothing was drafted.
        """
        if row >= len(self._proposed):
            return []
        names = [type(drafter).__name__ for drafter in self.drafters]
        return [[names[voter] for voter in voters] for voters in self._proposed[row].voters(tokens)]


def read_trees(drafter: Drafter, batch: TreeBatch, may_draw: bool = False) -> list[HostTree]:
    """A drafter's trees on the host, one per row; without values if the batch has none.

    Raises:
        ConfigError: they hold sampled children, unless it `may_draw`.
        InvalidTreeError: a node's value is NaN or infinite.
    """
    if batch.draft_probs is not None and not may_draw:
        raise ConfigError(
            f"{type(drafter).__name__} proposed sampled children, which cannot be merged without changing the "
            'output distribution: use a policy with children="selected"'
        )
    trees = batch.host_trees()
    if not all(math.isfinite(value) for tree in trees for value in tree.values):
        raise InvalidTreeError(
            f"{type(drafter).__name__} gave a node a value that is NaN or infinite: check its model's weights"
        )
    return trees


def prune(unions: Sequence[UnionTree], pool: OpinionPool, num_nodes: int, is_chain: bool) -> TreeBatch:
    """Each union's `num_nodes` most valuable nodes, or its most valuable path of at most as many."""
    whole = [HostTree(union.tokens, union.parents, union.values(pool)) for union in unions]
    batch = TreeBatch.from_host_trees(whole)
    if is_chain:
        return batch.limit_depth([num_nodes - 1] * len(unions)).best_chains()
    # A stable sort: a parent of equal value has a lower number.
    orders = [sorted(range(len(tree.values)), key=lambda node, tree=tree: -tree.values[node]) for tree in whole]
    return batch.select_nodes([order[:num_nodes] for order in orders])
