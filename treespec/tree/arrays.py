"""The arrays that a tree and a batch of trees have in common, their special values, and ancestry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.errors import InvalidTreeError

Item = TypeVar("Item")

ROOT_PARENT = -1
"""The parent of every root."""

PADDING_PARENT = -2
"""The parent of padding: rows of a batch are padded to the size of the largest."""

POINT_MASS = -1
"""The draft index of a child that was selected, not drawn."""

SELECTED = "selected"
"""A sampling scheme of siblings: the most probable tokens, point masses."""
IID = "iid"
"""A sampling scheme of siblings: drawn independently from one distribution."""
WITHOUT_REPLACEMENT = "without_replacement"
"""A sampling scheme of siblings: each drawn after the earlier ones were taken out."""
MIXED = "mixed"
"""A sampling scheme of siblings: several of the others together."""


@dataclass(frozen=True, eq=False)
class TreeArrays:
    """Drafted nodes and their distributions; `TokenTree` says what each array means.

    Shapes are [N] in one tree and [B, N] in a batch, except for `draft_probs`.
    """

    tokens: Int[Tensor, "... N"]
    parents: Int[Tensor, "... N"]
    draft_probs: Float[Tensor, "R V"] | None = None
    draft_index: Int[Tensor, "... N"] | None = None
    is_without_replacement: Bool[Tensor, "... N"] | None = None
    is_width_fixed: bool = True


def check_shapes(tree: TreeArrays, num_axes: int) -> None:
    """Raises `InvalidTreeError`: for wrong shapes or dtypes or distributions without their index; reads no values."""
    for name in ("tokens", "parents", "draft_probs", "draft_index", "is_without_replacement"):
        value = getattr(tree, name)
        if not isinstance(value, Tensor) and (value is not None or name in ("tokens", "parents")):
            raise InvalidTreeError(f"{name} must be a tensor, got {type(value).__name__}")
    shape = tree.tokens.shape
    if len(shape) != num_axes or 0 in shape:
        letters = "[N]" if num_axes == 1 else "[B, N]"
        raise InvalidTreeError(f"tokens must be int64 {letters} with at least a root, got shape {list(shape)}")
    for name in ("tokens", "parents", "draft_index", "is_without_replacement"):
        value = getattr(tree, name)
        dtype = torch.bool if name == "is_without_replacement" else torch.int64
        if value is not None and (value.shape != shape or value.dtype != dtype):
            got = f"{value.dtype} {list(value.shape)}"
            raise InvalidTreeError(f"{name} must be {dtype} of tokens' shape {list(shape)}, got {got}")
    probs = tree.draft_probs
    if probs is not None and (probs.ndim != 2 or 0 in probs.shape or not probs.is_floating_point()):
        raise InvalidTreeError(f"draft_probs must be float [R, V], R >= 1, got {probs.dtype} {list(probs.shape)}")
    if (probs is None) != (tree.draft_index is None):
        raise InvalidTreeError("draft_probs and draft_index come together: give both, or neither (point masses)")


def pad_rows(rows: Sequence[Sequence[Item]], filler: Item) -> list[list[Item]]:
    """Rows of different lengths as rows of one length, filled up at their ends."""
    width = max(map(len, rows))
    return [[*row, *[filler] * (width - len(row))] for row in rows]


def ancestor_mask(parents: Int[Tensor, "B N"]) -> Bool[Tensor, "B N N"]:
    """Whether node j is node i itself or an ancestor of i, at (b, i, j); False in the rows of padding.

    `parents` is on the host, every parent before its children; ids outside of the tree count as no parent.
    """
    num_rows, num_nodes = parents.shape
    num_bytes = -(-num_nodes // 8)
    packed = bytearray()
    for row in parents.tolist():  # A set of nodes is an int here: one operation per node.
        sets: list[int] = []
        for node, parent in enumerate(row):
            above = sets[parent] if 0 <= parent < node else 0
            sets.append(0 if parent == PADDING_PARENT else above | 1 << node)
        packed += b"".join(nodes.to_bytes(num_bytes, "little") for nodes in sets)
    bits = np.frombuffer(packed, np.uint8).reshape(num_rows, num_nodes, num_bytes)
    mask = np.unpackbits(bits, axis=-1, count=num_nodes, bitorder="little")
    return torch.from_numpy(mask.view(np.bool_))
