"""The caller's logits processors along paths of a tree."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import History, PathProcessors
from treespec.tree import Path


class NoProcessors:
    """The empty list of logits processors: scores are the logits in float32."""

    is_path_free = is_row_free = True

    def __call__(self, ids: Tensor, logits: Tensor, row: int) -> Tensor:
        return logits.float()


def path_scores(
    processors: PathProcessors,
    history: History,
    row_ids: Sequence[int],
    logits: Float[Tensor, "B N V"],
    read_paths: Callable[[], Sequence[Sequence[Path | None]]],
) -> Float[Tensor, "B N V"]:
    """Processed scores in float32 after N nodes per row; paths of one length go to the processors together.

    Args:
        processors: the caller's.
        history: the committed tokens, which end with the root.
        row_ids: the caller's batch row of every row.
        logits: raw logits.
        read_paths: gives, per row and node, the tokens on its path below the root, or None for padding, whose scores
            are zero. Called only where the processors look at tokens.
    """
    if processors.is_path_free:
        no_ids = torch.zeros(logits.shape[0] * logits.shape[1], 1, dtype=torch.int64, device=logits.device)
        return processors(no_ids, logits.flatten(0, 1), row_ids[0]).view(logits.shape)
    groups: dict[tuple[int, int, int], list[tuple[int, int, Path]]] = {}
    for row, paths in enumerate(read_paths()):
        row_id = 0 if processors.is_row_free else row_ids[row]
        for node, path in enumerate(paths):
            if path is not None:
                groups.setdefault((row_id, history.lengths[row], len(path)), []).append((row, node, path))
    scores = torch.zeros_like(logits, dtype=torch.float32)
    for (row_id, _, _), members in groups.items():
        # One upload per group: rows, nodes and paths as the columns of one tensor.
        columns = torch.tensor([(row, node, *path) for row, node, path in members]).to(logits.device)
        at = tuple(columns[:, :2].unbind(1))
        ids = torch.cat([history.rows([row for row, _, _ in members]), columns[:, 2:]], 1)
        scores[at] = processors(ids, logits[at], row_id)
    return scores
