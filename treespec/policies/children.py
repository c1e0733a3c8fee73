"""How the children of expanded nodes are chosen, and the distribution that each was really chosen from."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from treespec.checks import AUTO
from treespec.errors import ConfigError
from treespec.protocols import Proposal
from treespec.sampling import draw_independent, draw_without_replacement, normalise
from treespec.tree import MIXED, SELECTED, WITHOUT_REPLACEMENT


class Children(NamedTuple):
    """Children of F nodes per row, in verification order.

    `tokens` int64, `probs` float (the draft's) and `is_real` bool (False where there is no such child), each [B, F, k];
    `draft_probs` float [B, F, V], what the first `num_sampled` of a node's children were drawn from.
    """

    tokens: Tensor
    probs: Tensor
    is_real: Tensor
    draft_probs: Tensor | None = None
    num_sampled: int = 0
    is_without_replacement: bool = False


def resolve_children(children: str, proposal: Proposal, is_sampling: bool) -> str:
    """What "auto" means for this proposal: selected unless there is a distribution and a reason to sample from it.

    Raises ConfigError: sampled children of a drafter that gives candidates without a distribution.
    """
    is_selected_only = proposal.tokens is not None
    if children == AUTO:
        return SELECTED if is_selected_only or not is_sampling else WITHOUT_REPLACEMENT
    if is_selected_only and children != SELECTED:
        raise ConfigError(f"this drafter has no distribution to draw from: children must be selected, got {children!r}")
    return children


def choose_children(proposal: Proposal, widths: Sequence[int], children: str, generator: torch.Generator) -> Children:
    """Choose `widths[f]` children of every node f (a single width stands for all), not by "auto".

    Widths are fixed before anything is drawn and draws keep their order, so the stored distributions stay exact.
    """
    k = max(widths)
    if children == SELECTED:
        chosen = _select(proposal, k)
    elif children == MIXED:
        chosen = _mix(proposal.probs, widths, generator)
    elif children == WITHOUT_REPLACEMENT and k > 1:
        tokens, is_drawn = draw_without_replacement(proposal.probs, k, generator)
        probs = proposal.probs.gather(-1, tokens)
        chosen = Children(tokens, probs, is_drawn, proposal.probs, k, is_without_replacement=True)
    else:
        tokens = draw_independent(proposal.probs, k, generator)
        probs = proposal.probs.gather(-1, tokens)
        chosen = Children(tokens, probs, torch.ones_like(tokens, dtype=torch.bool), proposal.probs, k)
    missing = k - chosen.tokens.shape[-1]
    if missing > 0:  # The distribution or the candidates had fewer.
        tokens, probs, is_real = (torch.nn.functional.pad(x, (0, missing)) for x in chosen[:3])
        chosen = chosen._replace(tokens=tokens, probs=probs, is_real=is_real)
    return chosen._replace(is_real=chosen.is_real & _is_within(widths, chosen.tokens))


def _is_within(widths: Sequence[int], like: Tensor) -> Bool[Tensor, "F k"]:
    """Whether a rank is below its node's width."""
    limits = torch.tensor(widths, device=like.device).unsqueeze(-1)
    return torch.arange(like.shape[-1], device=like.device) < limits


def _select(proposal: Proposal, k: int) -> Children:
    if proposal.tokens is None:
        probs, tokens = proposal.probs.topk(min(k, proposal.probs.shape[-1]), dim=-1)
    else:
        probs, tokens = proposal.probs[..., :k], proposal.tokens[..., :k]
    return Children(tokens, probs, probs > 0)


def _mix(distribution: Float[Tensor, "B F V"], widths: Sequence[int], generator: torch.Generator) -> Children:
    """One sample of the rest first, then the top: verified in that order the sample's distribution needs no change."""
    num_selected = min(max(widths), distribution.shape[-1]) - 1
    probs, tokens = distribution.topk(num_selected, dim=-1)
    is_selected = (probs > 0) & _is_within([w - 1 for w in widths], tokens)
    rest = distribution.scatter(-1, tokens, torch.where(is_selected, 0.0, probs))
    has_rest = rest.sum(-1, keepdim=True) > 0
    rest = normalise(rest, fallback=distribution)
    sampled = draw_independent(rest, 1, generator)
    return Children(
        tokens=torch.cat([sampled, tokens], -1),
        probs=torch.cat([distribution.gather(-1, sampled), probs], -1),
        is_real=torch.cat([has_rest, is_selected], -1),
        draft_probs=rest,
        num_sampled=1,
    )
