"""Target distributions of tree nodes, computed on demand under the caller's logits processors.

Axis letters: B rows, N nodes, V vocabulary, L path length in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from treespec.errors import LogitsError
from treespec.protocols import History, PathProcessors
from treespec.tree import TreeBatch


class TargetProbs:
    """The target's distribution after every node of one step's trees, each computed once, when it is asked for.

    Verification visits few nodes, and one node's top-p over 50k tokens costs milliseconds on a CPU: so nothing is
    computed for the nodes that no rule looks at. Accelerators ask for `dense` instead.

    Args:
        trees: B trees whose roots are the last committed tokens.
        logits: [B, N, V] raw logits of the target's pass over them.
        history: the committed tokens of the rows.
        processors: the caller's logits processors.
        row_ids: the caller's batch row of every row.
        is_sampling: False makes every distribution a point mass on the highest score (greedy decoding).
    """

    def __init__(
        self,
        trees: TreeBatch,
        logits: Tensor,
        history: History,
        processors: PathProcessors,
        row_ids: Sequence[int],
        is_sampling: bool,
    ) -> None:
        self.trees, self.logits, self.is_sampling = trees, logits, is_sampling
        self._history, self._processors, self._row_ids = history, processors, row_ids
        self._scores: dict[tuple[int, int], Tensor] = {}
        self._probs: dict[tuple[int, int], Tensor] = {}

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[-1]

    def scores(self, row: int, node: int) -> Tensor:
        """Processed scores after a node, float32 [V].

        Raises:
            LogitsError: NaN or +inf among them, or nothing but -inf.
        """
        key = (row, node)
        if key not in self._scores:
            raw = self.logits[row, node].unsqueeze(0)
            scores = self._processors(self._ids(row, node), raw, self._row_ids[row])[0]
            _check_scores(scores.amax(), self._row_ids[row], node)
            self._scores[key] = scores
        return self._scores[key]

    def probs(self, row: int, node: int) -> Tensor:
        """The target distribution after a node, float32 [V]; never to be written to."""
        key = (row, node)
        if key not in self._probs:
            scores = self.scores(row, node)
            self._probs[key] = scores.softmax(-1) if self.is_sampling else point_mass(scores)
        return self._probs[key]

    def dense(self) -> Tensor:
        """All distributions at once, float32 [B, N, V], without waiting for the device; padding nodes hold
        any distribution."""
        scores = self.dense_scores()
        return scores.softmax(-1) if self.is_sampling else point_mass(scores)

    def dense_scores(self) -> Tensor:
        """All processed scores at once, float32 [B, N, V], unchecked: NaN and infinity are flags of the dense rules."""
        trees, logits = self.trees, self.logits
        if self._processors.is_path_free:
            # Not `view`: a drafter's tokens may be a view themselves, whatever their strides.
            flat = self._processors(trees.tokens.reshape(-1, 1), logits.flatten(0, 1), 0)
            return flat.view(logits.shape)
        scores = torch.zeros_like(logits, dtype=torch.float32)
        for row, depth, rows, nodes in self._stackable():
            ids = torch.cat([self._history.rows(rows), self._drafted(rows, nodes, depth)], dim=1)
            scores[rows, nodes] = self._processors(ids, logits[rows, nodes], row)
        return scores

    def _stackable(self) -> Iterator[tuple[int, int, list[int], list[int]]]:
        """Groups of nodes whose paths have one length and may go to the processors together.

        Yields:
            The caller's row, the nodes' depth, and lists of M rows and M nodes.
        """
        groups: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
        for row, tree in enumerate(self.trees.trees):
            row_id = 0 if self._processors.is_row_free else self._row_ids[row]
            for node, depth in enumerate(tree.depths):
                rows, nodes = groups.setdefault((row_id, self._history.lengths[row], depth), ([], []))
                rows.append(row)
                nodes.append(node)
        for (row_id, _, depth), (rows, nodes) in groups.items():
            yield row_id, depth, rows, nodes

    def _drafted(self, rows: list[int], nodes: list[int], depth: int) -> Tensor:
        """The drafted tokens on the paths to M nodes of one depth, int64 [M, depth]."""
        index = torch.tensor([rows, nodes], device=self.trees.device)
        tokens = []
        for _ in range(depth):
            tokens.append(self.trees.tokens[index[0], index[1]])
            index = torch.stack([index[0], self.trees.parents[index[0], index[1]]])
        return torch.stack(tokens[::-1], dim=1) if tokens else index.new_empty(len(rows), 0)

    def _ids(self, row: int, node: int) -> Tensor:
        """The path's tokens as plain decoding would hold them, int64 [1, L]; the root stands in when none is needed."""
        if self._processors.is_path_free:
            return self.trees.tokens[row, :1].unsqueeze(0)
        committed = self._history.row(row)
        path = self.trees.trees[row].path_to(node)[1:]
        if not path:
            return committed.unsqueeze(0)
        return torch.cat([committed, self.trees.tokens[row, list(path)]]).unsqueeze(0)


def point_mass(scores: Tensor) -> Tensor:
    """One-hot distributions on the highest scores, float32 [..., V]; the first of equal scores wins, as in greedy
    decoding."""
    return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)


def _check_scores(top: Tensor, row: int, node: int) -> None:
    if not -torch.inf < float(top) < torch.inf:
        kind = "NaN" if bool(top.isnan()) else ("+inf" if float(top) > 0 else "no token above -inf")
        raise LogitsError(
            f"the processed logits of row {row} after tree node {node} hold {kind}: no probability distribution "
            f"can be made of "
            "them. Check the model's weights and dtype, and the logits processors."
        )
