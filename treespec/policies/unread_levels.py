"""Levels of trees of a fixed shape that stay on an accelerator: one copy brings them all to the host."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.policies.children import Children, PickedChildren, read_children
from treespec.tree.transfer import upload


class UnreadLevel(NamedTuple):
    """The picked children of `nodes`, of which those numbered `chosen` are the level, in columns from `first` on.

    `widths`: see `choose_children`.
    """

    picked: PickedChildren
    widths: Sequence[int]
    nodes: Int[np.ndarray, "B F"]
    chosen: Int[np.ndarray, " w"]
    first: int

    @property
    def columns(self) -> slice:
        return slice(self.first, self.first + len(self.chosen))

    def stand_in(self) -> Children:
        """The children that the host assumes before it has read them: all are there, with any tokens and values."""
        picked, shape = self.picked, self.picked.tokens.shape
        arrays = np.zeros(shape, np.int64), np.ones(shape, np.float32), np.ones(shape, np.bool_)
        return Children(*arrays, picked.draft_probs, picked.num_sampled, picked.is_without_replacement)

    def tokens_of(self, nodes: Int[np.ndarray, "B F"]) -> Int[Tensor, "B F"] | None:
        """The tokens of nodes of this level, on their device; None for others, or where rows' nodes differ."""
        offsets = nodes[0] - self.first
        if (nodes != nodes[0]).any() or offsets.min() < 0:
            return None
        tokens, index = self.picked.tokens.flatten(1), self.chosen[offsets]
        if np.array_equal(index, np.arange(tokens.shape[1])):
            return tokens
        return tokens.index_select(1, *upload(tokens.device, torch.from_numpy(index)))


class ReadLevel(NamedTuple):
    """A level on the host: its columns, the columns of the nodes' parents, and `Children`'s arrays of the nodes."""

    columns: slice
    parents: Int[np.ndarray, "B w"]
    tokens: Int[np.ndarray, "B w"]
    probs: Float[np.ndarray, "B w"]
    is_real: Bool[np.ndarray, "B w"]


def read_levels(levels: Sequence[UnreadLevel]) -> Iterator[ReadLevel]:
    """All levels, by one copy."""
    for level, children in zip(levels, read_children([level[:2] for level in levels]), strict=True):
        parents = level.nodes[:, level.chosen // children.tokens.shape[-1]]
        tokens, probs, is_real = (array.reshape(len(parents), -1)[:, level.chosen] for array in children[:3])
        yield ReadLevel(level.columns, parents, tokens, probs, is_real)
