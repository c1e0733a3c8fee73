"""Who is whose ancestor: what tree attention masks and the dense forms of the rules are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.tree.constants import PADDING_PARENT


def ancestor_mask(parents: Tensor) -> Tensor:
    """Ancestor relation of batched trees: parents int64 [B, N] to bool [B, N, N].

    Entry (b, i, j) tells whether j is i itself or an ancestor of i in row b; padding rows are all False.
    """
    num_rows, num_nodes = parents.shape
    mask = torch.eye(num_nodes, dtype=torch.bool, device=parents.device).repeat(num_rows, 1, 1)
    mask &= (parents != PADDING_PARENT).unsqueeze(-1)
    is_child = parents >= 0
    # Pointer doubling: after step t every node knows its 2^t nearest ancestors, so depth costs log2(N) steps.
    hop = parents.clamp(0, num_nodes - 1)
    known = torch.zeros_like(mask).scatter_(2, hop.unsqueeze(-1), is_child.unsqueeze(-1)) | mask
    for _ in range(max(num_nodes - 1, 1).bit_length()):
        known = known | (known.to(torch.float32) @ known.to(torch.float32) > 0)
    return known & mask.any(-1, keepdim=True)
