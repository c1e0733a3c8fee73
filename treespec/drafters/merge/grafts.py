"""A merge of which one drafter draws its children: the others' nodes come after the drawn ones, as selected children.

Lossless, as any rule takes point masses after drawn siblings (of several drafters, SpecInfer): no drawn child is ever
left out, and what is added to a node may depend on everything drawn. Traversal and recursive rejection accept a
selected child by what its drawn siblings left of the target.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch

from treespec.drafters.base import policy_of_call
from treespec.drafters.merge.opinion_pool import OpinionPool
from treespec.drafters.merge.union import UnionTree
from treespec.policies import BestFirst
from treespec.protocols import DraftSource, Session
from treespec.tree import POINT_MASS, HostTree, TreeBatch

LEAST_ADDED, ADDED_RATE = 0.15, 0.1
"""The accepted tokens of a step by which asking another drafter pays, and the rate at which they are learned."""
LONGEST_REST = 16
"""Steps after which a drafter is asked again that brings nothing."""


class SmallerTrees:
    """The call's policy for the drafter that draws; best-first trees have `num_reserved` nodes fewer, but the root."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.num_reserved = 0

    @property
    def max_nodes(self) -> int:
        """See `TreePolicy`."""
        return policy_of_call(self._session).max_nodes

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """See `TreePolicy`."""
        policy = policy_of_call(self._session)
        if not isinstance(policy, BestFirst):
            return policy.grow(source, max_depth)
        smaller = copy(policy)
        smaller.num_nodes = max(policy.num_nodes - self.num_reserved, 1)
        return smaller.grow(source, max_depth)


class Rest:
    """In which steps a drafter is asked where another draws: in all while that pays, else in fewer, the less it brings.

    It pays by a step's accepted tokens that it proposed and the drawing one did not. Where one samples at T = 1 these
    are few, and the time of asking and fewer drawn nodes cost as much; where a text repeats itself they are many.
    """

    def __init__(self) -> None:
        self._mean, self._due = LEAST_ADDED, 0.0

    def begin_step(self) -> bool:
        """Whether the drafter is asked in this step."""
        self._due += min(max((self._mean / LEAST_ADDED) ** 2, 1 / LONGEST_REST), 1.0)
        is_asked = self._due >= 1.0
        self._due -= is_asked
        return is_asked

    def learn(self, num_added: float) -> None:
        """A step in which it was asked brought this many accepted tokens per row that the drawing one did not."""
        self._mean += (num_added - self._mean) * ADDED_RATE


def graft(drawn: TreeBatch, unions: Sequence[UnionTree], pool: OpinionPool, num_nodes: int) -> TreeBatch:
    """The drawn trees, filled up to `num_nodes` nodes per row with the most valuable others of the unions.

    The unions hold the drawn trees too.
    """
    trees = drawn.host_trees()
    grown = [add_best(tree, union, pool, num_nodes) for tree, union in zip(trees, unions, strict=True)]
    batch = TreeBatch.from_host_trees(grown)
    draft_index = torch.full_like(batch.tokens, POINT_MASS)
    is_without_replacement = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for row, tree in enumerate(trees):
        size = len(tree.tokens)
        if drawn.draft_index is not None:
            draft_index[row, :size] = drawn.draft_index[row, :size]
        if drawn.is_without_replacement is not None:
            is_without_replacement[row, :size] = drawn.is_without_replacement[row, :size]
    return replace(
        batch,
        draft_probs=drawn.draft_probs,
        draft_index=draft_index,
        is_without_replacement=is_without_replacement,
        is_width_fixed=drawn.is_width_fixed and bool((batch.num_nodes == drawn.num_nodes).all()),
    )


def add_best(drawn: HostTree, union: UnionTree, pool: OpinionPool, num_nodes: int) -> HostTree:
    """One row of `graft`: the drawn nodes keep their numbers, the others follow; with the union's values."""
    values, numbers = union.values(pool), union.find(drawn)
    # Where drawn siblings have the same token, the first gets the others' children.
    nodes = {number: node for node, number in reversed(list(enumerate(numbers)))}
    others = sorted((number for number in range(len(values)) if number not in nodes), key=lambda n: -values[n])
    grown = HostTree(list(drawn.tokens), list(drawn.parents), [values[number] for number in numbers])
    for number in others[: max(num_nodes - len(numbers), 0)]:
        nodes[number] = len(grown.tokens)
        grown.tokens.append(union.tokens[number])
        grown.parents.append(nodes[union.parents[number]])
        grown.values.append(values[number])
    return grown
