"""Draft distributions of tree nodes under the caller's logits processors, applied along every node's path.

Axis letters: B rows, F expanded nodes, V the target's vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.protocols import Session
from treespec.tree import ROOT_PARENT, Path


class PathProbs:
    """The distributions that children are drawn from, for the trees of one step; must see every expansion, in order."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._paths: list[list[Path | None]] = [[] for _ in session.row_ids]

    def __call__(self, logits: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
        """Distributions float32 [B, F, V] of raw logits [B, F, V], -inf where the draft has no token.

        Where the processors leave none of the draft's tokens, and for padding, the distribution is uniform: any
        distribution is lossless.

        Args:
            tokens, parents: int64 [B, F], as `DraftSource.expand` gets them.
        """
        scores = self.scores(logits, tokens, parents)
        is_empty = scores.amax(-1, keepdim=True) == -torch.inf
        # On a CPU a look at a few flags is cheaper than a copy of all scores.
        if scores.device.type != "cpu" or bool(is_empty.any()):
            scores = scores.masked_fill(is_empty, 0.0)
        return scores.softmax(-1, dtype=torch.float32)

    def scores(self, logits: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
        """Processed scores float32 [B, F, V], from what the distributions themselves are made of."""
        session = self._session
        if session.processors.is_path_free:
            scores = session.processors(tokens.reshape(-1, 1), logits.flatten(0, 1), session.row_ids[0])
            return scores.view(logits.shape)
        return self._path_scores(logits, self._extend_paths(tokens, parents))

    def _extend_paths(self, tokens: Tensor, parents: Tensor) -> list[list[Path | None]]:
        """The tokens below the root on the paths to the nodes, None for padding; waits for the device."""
        fresh: list[list[Path | None]] = []
        for known, row_tokens, row_parents in zip(self._paths, tokens.tolist(), parents.tolist(), strict=True):
            above = [known[parent] if parent >= 0 else None for parent in row_parents]
            paths = [None if path is None else (*path, token) for path, token in zip(above, row_tokens, strict=True)]
            level: list[Path | None] = [
                () if p == ROOT_PARENT else path for p, path in zip(row_parents, paths, strict=True)
            ]
            known += level
            fresh.append(level)
        return fresh

    def _path_scores(self, logits: Tensor, paths: list[list[Path | None]]) -> Tensor:
        """Processed scores float32 [B, F, V]; ids of one length go to the processors together."""
        session, history = self._session, self._session.history
        groups: dict[tuple[int, int, int], list[tuple[int, int, Path]]] = {}
        for row, level in enumerate(paths):
            row_id = 0 if session.processors.is_row_free else session.row_ids[row]
            for slot, path in enumerate(level):
                if path is not None:
                    groups.setdefault((row_id, history.lengths[row], len(path)), []).append((row, slot, path))
        scores = torch.zeros_like(logits, dtype=torch.float32)
        for (row_id, _, length), members in groups.items():
            rows, slots = [row for row, _, _ in members], [slot for _, slot, _ in members]
            drafted = torch.tensor([path for _, _, path in members], dtype=torch.int64).view(len(members), length)
            ids = torch.cat([history.rows(rows), drafted.to(logits.device)], 1)
            scores[rows, slots] = session.processors(ids, logits[rows, slots], row_id)
        return scores
