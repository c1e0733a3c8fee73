"""`HostTree`: one tree of selected children as plain lists, for drafters and policies that work node by node."""

from typing import NamedTuple


class HostTree(NamedTuple):
    """Tokens, parents and path values (see `TreeBatch`) of a tree's nodes, the root's first; `values` may be empty."""

    tokens: list[int]
    parents: list[int]
    values: list[float]

    def confidences(self) -> list[float]:
        """Per node the drafter's estimate that it is accepted if its parent is, in [0, 1]: its value over its parent's.

        1 for the root, without values, and below a node of value 0, where the values say nothing.
        """
        confidences = [1.0] * len(self.tokens)
        for node in range(1, len(self.values)):
            above = self.values[self.parents[node]]
            if above > 0:
                confidences[node] = min(max(self.values[node] / above, 0.0), 1.0)
        return confidences
