"""The arrays that a tree and a batch of trees have in common, and what their shapes must be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.errors import InvalidTreeError


@dataclass(frozen=True, eq=False)
class TreeArrays:
    """Drafted nodes and their distributions; `TokenTree` says what each array means.

    Shapes are [N] in one tree and [B, N] in a batch, but for `draft_probs`.
    """

    tokens: Tensor
    parents: Tensor
    draft_probs: Tensor | None = None
    draft_index: Tensor | None = None
    is_without_replacement: Tensor | None = None
    is_width_fixed: bool = True


def check_shapes(tree: TreeArrays, num_axes: int) -> None:
    """Raise for arrays that do not fit together. Only shapes and dtypes are looked at, which waits for no device.

    Raises:
        InvalidTreeError: no tensor, a wrong shape or dtype, or distributions without their index.
    """
    for name in ("tokens", "parents", "draft_probs", "draft_index", "is_without_replacement"):
        value = getattr(tree, name)
        if not isinstance(value, Tensor) and (value is not None or name in ("tokens", "parents")):
            raise InvalidTreeError(f"{name} must be a tensor, got {type(value).__name__}")
    shape = tree.tokens.shape
    letters = "[N]" if num_axes == 1 else "[B, N]"
    if len(shape) != num_axes or 0 in shape:
        raise InvalidTreeError(f"tokens must be int64 {letters} with at least a root, got shape {list(shape)}")
    expected = {"tokens": torch.int64, "parents": torch.int64, "draft_index": torch.int64}
    for name, dtype in {**expected, "is_without_replacement": torch.bool}.items():
        value = getattr(tree, name)
        if value is not None and (value.shape != shape or value.dtype != dtype):
            got = f"{value.dtype} {list(value.shape)}"
            raise InvalidTreeError(f"{name} must be {dtype} of tokens' shape {list(shape)}, got {got}")
    probs = tree.draft_probs
    if probs is not None and (probs.ndim != 2 or 0 in probs.shape or not probs.is_floating_point()):
        raise InvalidTreeError(
            f"draft_probs must be float [R, V] with R >= 1, or None: got {probs.dtype} {list(probs.shape)}"
        )
    if (probs is None) != (tree.draft_index is None):
        raise InvalidTreeError(
            "draft_probs and draft_index come together: give both, or neither for a tree of point masses"
        )
