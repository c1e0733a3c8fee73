"""What a draft head's logits propose: distributions over the target's vocabulary, or the best tokens if they do."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import AUTO
from treespec.drafters.path_probs import path_probs
from treespec.errors import LogitsError
from treespec.policies import BestFirst, Chain, Paths
from treespec.protocols import Frontier, Proposal, Session, TreePolicy
from treespec.sampling import NoProcessors
from treespec.tree import SELECTED


def needs_full_probs(session: Session, policy: TreePolicy) -> bool:
    """Whether children may be drawn or processors read the whole distribution; else candidates are enough."""
    is_selecting = isinstance(policy, (BestFirst, Chain, Paths)) and policy.children in (AUTO, SELECTED)
    return session.is_sampling or not session.processors.is_path_free or not is_selecting


def head_proposal(
    session: Session,
    target_ids: Int[Tensor, "W"],
    num_candidates: int | None,
    logits: Float[Tensor, "B F W"],
    frontier: Frontier | None,
) -> Proposal:
    """What raw logits propose after F nodes: `num_candidates` of the target's tokens each, distributions where None.

    `frontier` may be None for processors that look at no path, see `path_probs`.
    """
    if num_candidates is not None:
        return candidates(logits, target_ids, num_candidates, session.device)
    if isinstance(session.processors, NoProcessors):
        probs = logits.softmax(-1, dtype=torch.float32)
        return Proposal(_spread(probs, target_ids, session.vocab_size, 0.0).to(session.device))
    logits = _spread(logits, target_ids, session.vocab_size, -torch.inf)
    return Proposal(path_probs(session, logits.to(session.device), frontier))


def _spread(values: Float[Tensor, "B F W"], ids: Int[Tensor, "W"], vocab_size: int, rest: float) -> Tensor:
    """Values at the target's ids [B, F, V], `rest` at tokens that are not drafted."""
    if len(ids) == vocab_size:
        return values
    full = values.new_full((*values.shape[:-1], vocab_size), rest)
    return full.scatter_(-1, ids.expand_as(values), values)  # A CPU takes half of `index_copy_`'s time.


def candidates(
    logits: Float[Tensor, "*nodes W"], target_ids: Int[Tensor, "W"], num_candidates: int, device: torch.device
) -> Proposal:
    """The `num_candidates` most probable tokens after each node and their probabilities.

    Raises `LogitsError`: the distributions hold NaN; not checked on an accelerator, where values are not read.
    """
    top = logits.softmax(-1, dtype=torch.float32).topk(min(max(num_candidates, 1), logits.shape[-1]), dim=-1)
    # NaN comes first in `topk`, and makes a distribution's every probability NaN.
    if top.values.device.type == "cpu" and bool(top.values[..., 0].isnan().any()):
        raise LogitsError("the draft head's distributions hold NaN: check the head's weights and its dtype")
    return Proposal(top.values.to(device), target_ids[top.indices].to(device))
