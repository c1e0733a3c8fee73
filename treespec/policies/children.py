"""How the children of expanded nodes are chosen, and the distribution that each was really chosen from."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from treespec.checks import AUTO
from treespec.errors import ConfigError
from treespec.protocols import Proposal
from treespec.sampling import draw_independent, normalise, race
from treespec.tree import MIXED, SELECTED, WITHOUT_REPLACEMENT
from treespec.tree.transfer import download, upload


class Children(NamedTuple):
    """Children of F nodes per row, in verification order: arrays on the host, distributions on the draft's device.

    `probs` are the draft's, `is_real` is False where there is no such child; `draft_probs` is what the first
    `num_sampled` of a node's children were drawn from, `squares` the sums of the squares of these.
    """

    tokens: Int[np.ndarray, "B F k"]
    probs: Float[np.ndarray, "B F k"]
    is_real: Bool[np.ndarray, "B F k"]
    draft_probs: Float[Tensor, "B F V"] | None = None
    num_sampled: int = 0
    is_without_replacement: bool = False
    squares: Float[np.ndarray, "B F 1"] | None = None


def resolve_children(children: str, proposal: Proposal, is_sampling: bool) -> str:
    """Resolve `children`: "auto" is selected unless there is a distribution and a reason to sample from it.

    Raises `ConfigError`: sampled children of a drafter that gives candidates without a distribution.
    """
    is_selected_only = proposal.tokens is not None
    if children == AUTO:
        return SELECTED if is_selected_only or not is_sampling else WITHOUT_REPLACEMENT
    if is_selected_only and children != SELECTED:
        raise ConfigError(f"this drafter has no distribution to draw from: children must be selected, got {children!r}")
    return children


class PickedChildren(NamedTuple):
    """`Children` on the draft's device, before `read_children` brings them to the host.

    `evidence` is positive where there is such a child; None: where `probs` are, of draws everywhere. `norms` are the
    square roots of `squares`.
    """

    tokens: Int[Tensor, "B F k"]
    probs: Float[Tensor, "B F k"]
    evidence: Shaped[Tensor, "B F k"] | None = None
    draft_probs: Float[Tensor, "B F V"] | None = None
    num_sampled: int = 0
    is_without_replacement: bool = False
    norms: Float[Tensor, "B F 1"] | None = None


def choose_children(
    proposal: Proposal, widths: Sequence[int], children: str, generator: torch.Generator, has_squares: bool = False
) -> Children:
    """Choose `widths[f]` children of every node f (a single width stands for all), not by "auto".

    Widths are fixed before anything is drawn and draws keep their order, so the stored distributions stay exact. One
    copy brings the children to the host, with `squares` if these are wanted.
    """
    return read_children([(pick_children(proposal, widths, children, generator, has_squares), widths)])[0]


def pick_children(
    proposal: Proposal, widths: Sequence[int], children: str, generator: torch.Generator, has_squares: bool = False
) -> PickedChildren:
    """`choose_children` without the copy."""
    k = max(widths)
    if children == SELECTED:
        return _select(proposal, k)
    if children == MIXED:
        return _mix(proposal.probs, widths, generator)
    return _draw(proposal.probs, k, children == WITHOUT_REPLACEMENT and k > 1, generator, has_squares)


def read_children(levels: Sequence[tuple[PickedChildren, Sequence[int]]]) -> list[Children]:
    """The children of levels with their widths, by one copy."""
    arrays = iter(on_host(*(tensor for picked, _ in levels for tensor in _parts(picked))))
    return [_as_children(picked, [next(arrays) for _ in _parts(picked)], widths) for picked, widths in levels]


def _parts(picked: PickedChildren) -> list[Tensor]:
    """The tensors that the host reads, in the order in which `_as_children` takes them."""
    found = (picked.tokens, picked.probs, picked.evidence, picked.norms)
    return [tensor for tensor in found if tensor is not None]


def _as_children(picked: PickedChildren, arrays: list[np.ndarray], widths: Sequence[int]) -> Children:
    tokens, probs, *more = arrays
    is_real = np.ones_like(tokens, np.bool_) if picked.num_sampled else probs > 0
    if picked.evidence is not None:
        is_real = more[0] > 0
    k = max(widths)
    if (missing := k - tokens.shape[-1]) > 0:  # The distribution or the candidates had fewer.
        tokens, probs, is_real = (np.pad(x, ((0, 0), (0, 0), (0, missing))) for x in (tokens, probs, is_real))
    return Children(
        tokens,
        probs,
        is_real & _is_within(widths, k),
        picked.draft_probs,
        picked.num_sampled,
        picked.is_without_replacement,
        None if picked.norms is None else np.square(more[-1]),
    )


def on_host(*tensors: Shaped[Tensor, "..."]) -> list[np.ndarray]:
    """Arrays of tensors, by one copy; NumPy has no bfloat16."""
    return [copy.float().numpy() if copy.dtype == torch.bfloat16 else copy.numpy() for copy in download(*tensors)]


def _is_within(widths: Sequence[int], k: int) -> Bool[np.ndarray, "_ k"]:
    """Whether a rank is below its node's width; one row for all nodes where all have one width."""
    return np.arange(k) < np.array(widths)[:, None]


def _select(proposal: Proposal, k: int) -> PickedChildren:
    if proposal.tokens is None:
        probs, tokens = proposal.probs.topk(min(k, proposal.probs.shape[-1]), dim=-1)
        return PickedChildren(tokens, probs)
    return PickedChildren(proposal.tokens[..., :k], proposal.probs[..., :k])


def _draw(
    probs: Float[Tensor, "B F V"], k: int, is_without_replacement: bool, generator: torch.Generator, has_squares: bool
) -> PickedChildren:
    """Independent draws, or draws without replacement."""
    if is_without_replacement:
        tokens, speeds = race(probs, k, generator)
    else:
        tokens, speeds = draw_independent(probs, k, generator), None
    norms = torch.linalg.vector_norm(probs, dim=-1, keepdim=True) if has_squares else None  # One kernel.
    return PickedChildren(tokens, probs.gather(-1, tokens), speeds, probs, k, is_without_replacement, norms)


def _mix(distribution: Float[Tensor, "B F V"], widths: Sequence[int], generator: torch.Generator) -> PickedChildren:
    """One sample of the rest first, then the top: verified in that order the sample's distribution needs no change."""
    num_selected = min(max(widths), distribution.shape[-1]) - 1
    probs, tokens = distribution.topk(num_selected, dim=-1)
    (is_wanted,) = upload(probs.device, torch.from_numpy(_is_within([w - 1 for w in widths], num_selected)))
    is_selected = (probs > 0) & is_wanted
    rest = distribution.scatter(-1, tokens, torch.where(is_selected, 0.0, probs))
    has_rest = rest.sum(-1, keepdim=True) > 0
    rest = normalise(rest, fallback=distribution)
    sampled = draw_independent(rest, 1, generator)
    return PickedChildren(
        torch.cat([sampled, tokens], -1),
        torch.cat([distribution.gather(-1, sampled), probs], -1),
        torch.cat([has_rest, is_selected], -1),
        rest,
        num_sampled=1,
    )
