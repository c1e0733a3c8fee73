"""From logits to tokens: processors along paths, distributions, draws from given uniforms or generators.

Nothing here touches a global random state.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from treespec.errors import TreespecError
from treespec.protocols import History, PathProcessors
from treespec.tree import Path
from treespec.tree.transfer import download, upload

LEAST_SPLIT = 1024
"""Smaller vocabularies are drawn from token by token; larger ones on a CPU by blocks first."""
LARGEST_UNIFORM = 1 - 2.0**-52
"""The product of this double, or a smaller one, with a normal total is below the total, however it is rounded."""
LEAST_UNIFORM = 2.0**-54
"""Stands for a uniform of zero, whose logarithm is infinite: a clock with any rate rings."""


def normalise(weights: Tensor, fallback: Tensor | None = None) -> Tensor:
    """`weights / sum(weights)` over the last axis; rows without any mass become `fallback` or stay zero."""
    total = weights.sum(-1, keepdim=True)
    has_mass = total > 0
    scaled = weights / torch.where(has_mass, total, 1.0)  # Not 0 / 0, which is NaN.
    return scaled if fallback is None else torch.where(has_mass, scaled, fallback)


def truncate_probs(probs: Tensor, num_tokens: int) -> Tensor:
    """The `num_tokens` most probable tokens of a distribution float [..., V], renormalised; zero elsewhere."""
    top = probs.topk(min(num_tokens, probs.shape[-1]), dim=-1)
    return normalise(torch.zeros_like(probs).scatter(-1, top.indices, top.values))


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw one index, int64 [...], from weights [..., V], not normalised, by uniforms [...] in [0, 1).

    The uniform is scaled by the last cumulative sum, so float32 distributions that sum to 1 - 8e-6 lose nothing, and an
    index of zero mass is never returned while any index has mass.
    """
    return _search(weights, uniform.unsqueeze(-1)).squeeze(-1)


def draw_on_host(
    weights: Float[Tensor, "*rows V"],
    uniform: Float[Tensor, "*rows"],
    *more: Shaped[Tensor, "..."],
    sums: Float[Tensor, "*rows"] | None = None,
) -> list[Tensor]:
    """`inverse_cdf` for uniforms float64 on the host: tokens int64 [*rows], then `more`, all on the host by one copy.

    `sums` are the weights', float64, where they are known.

    A device's sums, made in parallel, may rise by an ulp where there is no mass. Making them flat there costs more
    kernels than the draw: rows where such an index was found are drawn once more, by `inverse_cdf`.
    """
    if weights.device.type == "cpu":
        return [inverse_cdf(weights, uniform), *download(*more)]
    (uploaded,) = upload(weights.device, uniform.double())
    sums = weights.sum(-1, dtype=torch.float64) if sums is None else sums
    tokens, found, *rest = download(*find_tokens(weights, uploaded * sums), *more)
    is_empty = (found == 0).flatten()
    if is_empty.any():
        again = is_empty.nonzero().flatten()
        index, uploaded = upload(weights.device, again, uniform.double().flatten()[again])
        tokens.view(-1)[again] = download(inverse_cdf(weights.flatten(0, -2)[index], uploaded))[0]
    return [tokens, *rest]


def find_tokens(
    weights: Float[Tensor, "*rows V"], goal: Float[Tensor, "*rows"]
) -> tuple[Int[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """Tokens at which cumulative sums, added in any order, pass a goal, and their weights; one of zero is not drawn."""
    # Without the last sum, so that every index found is a token's, even where weights are NaN.
    cdf = weights[..., :-1].cumsum(-1, dtype=torch.float64)
    tokens = torch.searchsorted(cdf, goal.unsqueeze(-1), right=True)
    return tokens.squeeze(-1), weights.gather(-1, tokens).squeeze(-1)


def draw_independent(probs: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k independent draws per distribution with mass, duplicates kept, in drawing order: int64 [..., k]."""
    if k == 1:  # Needs no sum over the vocabulary.
        return race(probs, 1, generator)[0]
    uniform = torch.rand(*probs.shape[:-1], k, dtype=torch.float64, device=probs.device, generator=generator)
    return _search(probs, uniform)


def _search(weights: Tensor, uniform: Tensor) -> Tensor:
    """The indices at which uniforms [..., k] fall in the cumulative sums of weights [..., V]: int64 [..., k]."""
    cdf = weights.cumsum(-1, dtype=torch.float64)
    if cdf.device.type != "cpu":
        cdf = flatten_at_zeros(cdf, weights)
    uniform, total = uniform.to(torch.float64), cdf[..., -1:]
    # u * total could round up to total itself: then the last index with mass is the right one.
    if weights.dtype == torch.float64:  # Sums may be subnormal.
        goal = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    else:
        goal = uniform.clamp(max=LARGEST_UNIFORM) * total
    return torch.searchsorted(cdf, goal, right=True).clamp(max=weights.shape[-1] - 1)  # Without mass no sum is above.


def flatten_at_zeros(cdf: Tensor, weights: Tensor) -> Tensor:
    """Cumulative sums [..., V] made monotone, and flat where the weight is zero, so that no such index is ever found.

    A CPU adds in order and has both properties; a parallel scan may be off by an ulp.
    """
    return cdf.masked_fill(weights == 0, 0.0).cummax(-1).values


def race(probs: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """k draws without replacement (at most V): the first arrivals of exponential clocks with rates `probs` [..., V].

    They have exactly the distribution of successive draws from the renormalised rest: Gumbel top-k (Kool et al. 2019)
    on another scale, `exp(-Gumbel)`. Returns tokens int64 [..., k], first arrival first, and speeds float64 [..., k],
    one over the arrival times: zero where a clock never rings.
    """
    size = probs.shape[-1]
    if probs.device.type == "cpu" and size >= max(LEAST_SPLIT, 16 * k):
        # Blocks of sqrt(V / k) tokens need the fewest clocks: V / size + k size.
        return race_of_blocks(probs, k, 1 << round(math.log2(size / k) / 2), generator)
    speeds = probs / _exponential(probs, generator)  # Not times: a rate of zero gives 0, the last one.
    first = speeds.max(-1, keepdim=True) if k == 1 else speeds.topk(min(k, size), dim=-1)
    return first.indices, first.values


def race_of_blocks(probs: Tensor, k: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`race` with clocks for the blocks of `size` tokens, then for the tokens of the first k blocks.

    The first arrival of a block has its sum as rate, and the first k tokens are in the first k blocks. Which token of a
    block arrives first does not depend on when, and the others' clocks start again at that moment. So each of the k
    blocks draws one clock per token, and all of them are moved so that the first one rings when the block's does.
    """
    missing = -probs.shape[-1] % size
    blocks = (torch.nn.functional.pad(probs, (0, missing)) if missing else probs).unflatten(-1, (-1, size))
    first = _clocks(blocks.sum(-1), generator).topk(k, dim=-1, largest=False)
    chosen = first.indices.unsqueeze(-1).expand(*first.indices.shape, size)
    clocks = _clocks(blocks.gather(-2, chosen), generator)
    later = (clocks - clocks.amin(-1, keepdim=True)).nan_to_num_(torch.inf, torch.inf)  # inf - inf without mass.
    best = (first.values.unsqueeze(-1) + later).flatten(-2).reciprocal_().topk(k, dim=-1)
    return first.indices.gather(-1, best.indices // size) * size + best.indices % size, best.values


def _clocks(rates: Tensor, generator: torch.Generator) -> Tensor:
    """Exponential arrival times float64, infinite at rate zero."""
    return _exponential(rates, generator).div_(rates)


def _exponential(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard exponentials float64, neither zero nor infinite."""
    if like.device.type != "cpu":  # One kernel; a CPU takes three times as long for it.
        return torch.empty(like.shape, dtype=torch.float64, device=like.device).exponential_(generator=generator)
    uniform = torch.rand(like.shape, dtype=torch.float64, generator=generator, device="cpu")
    return uniform.clamp_(min=LEAST_UNIFORM).log_().neg_()


class NoProcessors:
    """The empty list of logits processors: scores are the logits in float32."""

    is_path_free = is_row_free = is_order_free = True
    can_remove_all = ignores_padding = False

    def __call__(self, ids: Tensor, logits: Tensor, row: int) -> Tensor:
        return logits.float()


def path_scores(
    processors: PathProcessors,
    history: History,
    row_ids: Sequence[int],
    logits: Float[Tensor, "B N V"],
    read_paths: Callable[[], Sequence[Sequence[Path | None]]],
) -> Float[Tensor, "B N V"]:
    """Processed scores in float32 after N nodes per row; texts of one length go to the processors together.

    The history's tokens end with the root; `row_ids` are the caller's batch rows. `read_paths` gives, per row and node,
    the tokens on its path below the root, or None for padding, which gets the root's text; it is called only where the
    processors look at tokens.
    """
    flat = logits.flatten(0, 1)
    if processors.is_path_free:
        no_ids = torch.empty(len(flat), 1, dtype=torch.int64, device=logits.device)  # Nobody reads them.
        return processors(no_ids, flat, row_ids[0]).view(logits.shape)
    padded = ([*paths, *[None] * (logits.shape[1] - len(paths))] for paths in read_paths())
    texts = [(row, path or ()) for row, paths in enumerate(padded) for path in paths]
    groups: dict[tuple[int, int], list[int]] = {}
    for number, (row, path) in enumerate(texts):
        length = 0 if processors.is_order_free else history.lengths[row] + len(path)
        groups.setdefault((0 if processors.is_row_free else row_ids[row], length), []).append(number)
    show = history.tokens if processors.ignores_padding else history.row
    ids = [_stack_texts(show, [texts[number] for number in members]) for members in groups.values()]
    are_roots = [[not texts[number][1] for number in members] for members in groups.values()]
    if len(groups) == 1:
        (part_ids,) = upload(logits.device, *ids)
        return process_texts(processors, part_ids, flat, row_ids[0], are_roots[0]).view(logits.shape)
    order = torch.tensor([number for members in groups.values() for number in members], device="cpu")
    first, *uploaded = upload(logits.device, torch.stack([order, order.argsort()]), *ids)
    parts = zip(groups, first[0].split([len(part) for part in ids]), uploaded, are_roots, strict=True)
    scores = [process_texts(processors, part, flat[numbers], row, roots) for (row, _), numbers, part, roots in parts]
    return torch.cat(scores)[first[1]].view(logits.shape)


def process_texts(
    processors: PathProcessors,
    ids: Int[Tensor, "M L"],
    logits: Float[Tensor, "M V"],
    row: int,
    are_roots: Sequence[bool],
) -> Float[Tensor, "M V"]:
    """Processed scores in float32, NaN after drafted branches on which a processor raises: plain decoding may never
    reach them. What it raises after a root, which is in the text, is raised here too, and so are treespec's own errors.
    """
    try:
        return processors(ids, logits, row)
    except (TreespecError, torch.OutOfMemoryError):
        raise
    except Exception:
        if list(are_roots) == [True]:
            raise
        if list(are_roots) == [False]:
            return torch.full_like(logits, torch.nan, dtype=torch.float32, device=logits.device)
    one_by_one = zip(ids.split(1), logits.split(1), are_roots, strict=True)
    return torch.cat([process_texts(processors, text, raw, row, [is_root]) for text, raw, is_root in one_by_one])


def _stack_texts(show: Callable[[int], Tensor], texts: Sequence[tuple[int, Path]]) -> Int[Tensor, "M L"]:
    """Texts of rows, each continued by a path; shorter ones repeat their first token before it."""
    rows = {row: show(row).numpy() for row in {row for row, _ in texts}}
    width = max(len(rows[row]) + len(path) for row, path in texts)
    stacked = np.empty((len(texts), width), np.int64)
    for target, (row, path) in zip(stacked, texts, strict=True):
        start, end = width - len(path) - len(rows[row]), width - len(path)
        target[:start], target[start:end], target[end:] = rows[row][0], rows[row], path  # Their set stays the same.
    return torch.from_numpy(stacked)
