"""Target distributions of tree nodes, computed on demand under the caller's logits processors."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.errors import LogitsError
from treespec.protocols import History, PathProcessors, Scores
from treespec.sampling import path_scores, process_texts
from treespec.tree import Path, TreeBatch
from treespec.tree.transfer import upload


class TargetProbs:
    """The target's distribution after every node of one step's trees, each computed once, when it is asked for.

    Verification visits few nodes, and one node's top-p over 50k tokens costs milliseconds on a CPU: so nothing is
    computed for the nodes that no rule looks at. Accelerators ask for `dense` instead. `raw`: what the target returned
    for the nodes. Where `is_sampling` is False every distribution is a point mass on the highest score.
    """

    def __init__(
        self,
        trees: TreeBatch,
        raw: Scores,
        history: History,
        processors: PathProcessors,
        row_ids: Sequence[int],
        is_sampling: bool,
    ) -> None:
        self.trees = trees
        self.logits, self.hidden_states = raw
        self.is_sampling = is_sampling
        self._history = history
        self._processors = processors
        self._row_ids = row_ids
        self._show = history.tokens if processors.ignores_padding else history.row
        self._scores: dict[tuple[int, int], tuple[Tensor, float]] = {}
        self._probs: dict[tuple[int, int], Tensor] = {}

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[-1]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def scores(self, row: int, node: int) -> Float[Tensor, " V"]:
        """Processed scores after a node, float32.

        Raises `LogitsError`: NaN or +inf among them, or nothing but -inf.
        """
        scores, top = self._scored(row, node)
        if not math.isfinite(top):
            kind = "NaN" if math.isnan(top) else ("+inf" if top > 0 else "no token above -inf")
            raise LogitsError(
                f"the processed logits of row {self._row_ids[row]} after tree node {node} hold {kind}: no probability "
                "distribution can be made of them. Check the model's weights and dtype, and the logits processors."
            )
        return scores

    def has_probs(self, row: int, node: int) -> bool:
        """Whether the scores after a node make a distribution; `scores` and `probs` raise where they do not."""
        return math.isfinite(self._scored(row, node)[1])

    def _scored(self, row: int, node: int) -> tuple[Tensor, float]:
        """Processed scores after a node, and the highest of them."""
        key = (row, node)
        if key not in self._scores:
            raw = self.logits[row, node].unsqueeze(0)
            scores = process_texts(self._processors, self._ids(row, node), raw, self._row_ids[row], [node == 0])[0]
            self._scores[key] = scores, float(scores.amax())  # NaN where any is: one number shows every fault.
        return self._scores[key]

    def probs(self, row: int, node: int) -> Float[Tensor, " V"]:
        """The target distribution after a node, float32; never to be written to."""
        key = (row, node)
        if key not in self._probs:
            self._probs[key] = self._as_probs(self.scores(row, node))
        return self._probs[key]

    def dense(self) -> Float[Tensor, "B N V"]:
        """All distributions at once, float32; any at padding."""
        return self._as_probs(self.dense_scores())

    def dense_scores(self) -> Float[Tensor, "B N V"]:
        """All processed scores at once, float32; unchecked, for dense rules flag NaN and infinity."""
        return path_scores(self._processors, self._history, self._row_ids, self.logits, self._paths)

    def _as_probs(self, scores: Tensor) -> Tensor:
        if self.is_sampling:
            return scores.softmax(-1)
        # The first of equal scores wins, as in greedy decoding.
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)

    def _paths(self) -> list[list[Path]]:
        """The drafted tokens on the path to every node."""
        return [tree.token_paths for tree in self.trees.trees]

    def _ids(self, row: int, node: int) -> Tensor:
        """The path's tokens as plain decoding would hold them, int64 [1, L]; the root's alone where none is read."""
        if self._processors.is_path_free:
            ids = self.trees.tokens[row, :1]
        else:
            path = list(self.trees.trees[row].path_to(node)[1:])
            ids = torch.cat([self._show(row), self.trees.tokens[row, path]])
        return upload(self.device, ids.unsqueeze(0))[0]
