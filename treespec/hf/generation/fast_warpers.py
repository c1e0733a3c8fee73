"""transformers' warpers that sort the vocabulary, faster on a CPU."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessor, TopPLogitsWarper, TypicalLogitsWarper


class FastTopP(LogitsProcessor):
    """`TopPLogitsWarper` without sorting the vocabulary: the kept tokens are found among the few highest scores.

    Keeps exactly the tokens whose more probable tokens have a mass below `top_p`, which is the library's rule. Sums are
    in float64; a row is sorted as in the library where rounding might decide, or the order of equal scores.
    """

    widths = (128, 2048)
    margin = 1e-5

    def __init__(self, warper: TopPLogitsWarper) -> None:
        self._warper = warper
        self._top_p = warper.top_p
        self._min_kept = max(warper.min_tokens_to_keep, 1)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if scores.device.type != "cpu":  # Sorting is cheap on an accelerator, and reading the outcome is not.
            return self._filter_sorted(input_ids, scores)
        return self._filter(input_ids, scores, scores.softmax(-1), self.widths)

    def _filter(self, ids: Tensor, scores: Tensor, probs: Tensor, widths: tuple[int, ...]) -> Tensor:
        """Scores [M, V] without the unlikely tokens: each row by the first of `widths` that is enough for it."""
        width = max(widths[0], self._min_kept) if widths else scores.shape[-1]
        if width * 4 > scores.shape[-1]:
            return self._filter_all(ids, scores)
        top = scores.topk(width, dim=-1)
        mass = probs.gather(-1, top.indices).to(torch.float64)
        before = mass.cumsum(-1) - mass
        is_kept = before < self._top_p
        is_kept[:, : self._min_kept] = True
        best = top.values.masked_fill(~is_kept, self._warper.filter_value)
        kept = torch.full_like(scores, self._warper.filter_value).scatter_(-1, top.indices, best)
        last = top.values.gather(-1, is_kept.sum(-1, keepdim=True) - 1)
        is_cut = ((scores >= last).sum(-1) > is_kept.sum(-1)) & (last[:, 0] > -torch.inf)
        is_close = ((before - self._top_p).abs() < self.margin).any(-1)
        for rows, wider in ((is_kept[:, -1], widths[1:]), (~is_kept[:, -1] & (is_cut | is_close), ())):
            if bool(rows.any()):
                kept[rows] = self._filter(ids[rows], scores[rows], probs[rows], wider)
        return kept

    def _filter_sorted(self, ids: Tensor, scores: Tensor) -> Tensor:
        """The library's computation in fewer kernels: tokens are removed in sorted order and put back once."""
        if self._min_kept > 1 or self._top_p < self.margin:
            return self._warper(ids, scores)  # pyright: ignore[reportArgumentType]
        in_order, order = scores.sort(-1)
        is_removed = in_order.softmax(-1).cumsum(-1) <= 1 - self._top_p
        return scores.scatter(-1, order, in_order.masked_fill_(is_removed, self._warper.filter_value))

    def _filter_all(self, ids: Tensor, scores: Tensor) -> Tensor:
        """The library's computation, step by step, with another sort; the library's own where equal scores are cut."""
        order = stable_order(scores)
        in_order = scores.gather(-1, order)
        is_removed = in_order.softmax(-1).cumsum(-1) <= 1 - self._top_p
        is_removed[:, -self._min_kept :] = False
        least = is_removed.sum(-1, keepdim=True)
        around = in_order.gather(-1, torch.cat([(least - 1).clamp(min=0), least], -1))
        if bool(((around[:, 0] == around[:, 1]) & (least[:, 0] > 0)).any()):
            return self._warper(ids, scores)  # pyright: ignore[reportArgumentType]
        return scores.masked_fill(is_removed.scatter(-1, order, is_removed), self._warper.filter_value)


class FastTypical(LogitsProcessor):
    """`TypicalLogitsWarper` bit for bit: the library's computation, step by step, with another sort.

    For `min_tokens_to_keep=1`, as in `generate`: which of several equal tokens a minimum keeps depends on the sort.
    """

    def __init__(self, warper: TypicalLogitsWarper) -> None:
        self._warper = warper

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        warper = self._warper
        if scores.device.type != "cpu" or scores.dtype != torch.float32:
            return warper(input_ids, scores)  # pyright: ignore[reportArgumentType]
        log_probs = scores.log_softmax(-1)
        entropy = -(log_probs * log_probs.exp()).nansum(-1, keepdim=True)
        distance = (-log_probs - entropy).abs()
        order = stable_order(distance)
        mass = scores.gather(-1, order).softmax(-1).cumsum(-1)
        last = (mass < warper.mass).sum(-1, keepdim=True).clamp_(max=scores.shape[-1] - 1)
        farthest = distance.gather(-1, order.gather(-1, last))
        return scores.masked_fill(distance > farthest, warper.filter_value)


FAST = (FastTopP, FastTypical)


def fast(processor: Any) -> Any:
    """The processor, or what stands for it here."""
    if type(processor) is TopPLogitsWarper:
        return FastTopP(processor)
    if type(processor) is TypicalLogitsWarper and processor.min_tokens_to_keep == 1:
        return FastTypical(processor)
    return processor


def stable_order(values: Float[Tensor, "M V"]) -> Int[Tensor, "M V"]:
    """The ascending order of float32 on a CPU, as of a stable `torch.sort`, in a fraction of its time.

    numpy sorts integers with vector instructions: each value's bits, made monotone, above its index.
    """
    bits = (values + 0.0).numpy().view(np.uint32)  # Adding zero makes -0.0 equal to 0.0.
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= np.arange(values.shape[-1], dtype=np.uint64)
    keys.sort(axis=-1)
    keys &= np.uint64(0xFFFFFFFF)
    return torch.from_numpy(keys.view(np.int64))
