"""The caller's logits processors along paths of a tree."""

from __future__ import annotations

from torch import Tensor


class NoProcessors:
    """The empty list of logits processors: scores are the logits in float32."""

    is_path_free = is_row_free = True

    def __call__(self, ids: Tensor, logits: Tensor, row: int) -> Tensor:
        return logits.float()
