"""The linear draft of classic speculative decoding: a tree of width one."""

from treespec.policies.checks import AUTO, check_children, check_count
from treespec.policies.paths import Level, grow_shape
from treespec.protocols import DraftSource
from treespec.tree import TreeBatch


class Chain:
    """k draft tokens, one after the other.

    Args:
        k: number of draft tokens.
        children: see `Paths`; all that are sampled mean one draw here.

    Raises:
        ConfigError: k is not a positive int, or unknown children.
    """

    def __init__(self, k: int, children: str = AUTO) -> None:
        self.k = check_count("k", k)
        self._children = check_children(children)

    @property
    def max_nodes(self) -> int:
        return self.k + 1

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        return grow_shape([Level((0,), (1,))] * self.k, self._children, source, max_depth)
