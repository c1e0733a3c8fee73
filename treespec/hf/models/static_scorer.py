"""`StaticScorer`: passes over new nodes in few shapes, for models that are compiled or replayed shape by shape.

A compiled model is compiled again for every new shape of its inputs, often for minutes. With a static cache only the
number of rows and the number of nodes of a pass vary, and the latter is rounded up to a power of two here.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.protocols import CausalScorer, Scores
from treespec.tree import PADDING_PARENT


class StaticScorer:
    """A `CausalScorer` that pads the passes of another to 1, 2, 4, 8, ... nodes.

    Padding takes slots of the cache until the next commit. The other one scores trees, e.g.
    `TreeScorer(torch.compile(model, dynamic=False), max_cache_len=2048)`.
    """

    def __init__(self, scorer: CausalScorer) -> None:
        self._scorer = scorer
        self.capability = scorer.capability
        self.vocab_size = scorer.vocab_size
        self.device = scorer.device
        self.max_positions = scorer.max_positions
        self.hidden_layers = scorer.hidden_layers
        self._inner_ids: list[int] = []  # The padded scorer's pending ids, by ours.
        self._num_inner = 0

    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> Scores:
        """See `CausalScorer`; a prompt is one pass, without padding."""
        self._drop_pending()
        return self._scorer.prefill(ids, mask)

    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Scores:
        """See `CausalScorer`; a static cache without room for the padding raises `ContextFullError`."""
        count = tokens.shape[1]
        missing = (1 << max(count - 1, 0).bit_length()) - count
        if is_replayed := self.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        scores = self._scorer.extend(
            torch.nn.functional.pad(tokens, (0, missing)),
            torch.nn.functional.pad(self._renumber(parents), (0, missing), value=PADDING_PARENT),
        )
        self._inner_ids += range(self._num_inner, self._num_inner + count)
        self._num_inner += count + missing
        # The next replay of a CUDA graph overwrites what this one returned.
        outputs = {layer: hidden.clone() if is_replayed else hidden for layer, hidden in scores.hidden_states.items()}
        logits = scores.logits.clone() if is_replayed else scores.logits
        return Scores(logits[:, :count], {layer: hidden[:, :count] for layer, hidden in outputs.items()})

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self._scorer.commit([[self._inner_ids[node] for node in path] for path in paths])
        self._drop_pending()

    def select_rows(self, rows: Sequence[int]) -> None:
        self._scorer.select_rows(rows)

    def _renumber(self, parents: Int[Tensor, "B F"]) -> Int[Tensor, "B F"]:
        """The padded scorer's ids; parents may be of this pass, whose nodes follow all earlier ones and padding."""
        known = [*self._inner_ids, *range(self._num_inner, self._num_inner + parents.shape[1])]
        inner_ids = torch.tensor(known, device="cpu")
        return torch.where(parents >= 0, inner_ids[parents.clamp(min=0)], parents)

    def _drop_pending(self) -> None:
        self._inner_ids = []
        self._num_inner = 0
