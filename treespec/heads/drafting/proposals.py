"""What a draft head's logits propose: distributions over the target's vocabulary, or the best tokens if they do."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import AUTO
from treespec.drafters.base import policy_of_call
from treespec.drafters.path_probs import path_probs
from treespec.errors import LogitsError
from treespec.policies import BestFirst, Chain, Paths
from treespec.protocols import Frontier, Proposal, Session
from treespec.sampling import NoProcessors
from treespec.tree import SELECTED


def num_candidates(session: Session) -> int | None:
    """How many of the best tokens after a node are enough; None where whole distributions are needed."""
    policy = policy_of_call(session)
    is_selecting = isinstance(policy, (BestFirst, Chain, Paths)) and policy.children in (AUTO, SELECTED)
    needs_all = session.is_sampling or not session.processors.is_path_free or not is_selecting
    return None if needs_all else max(policy.max_nodes - 1, 1)


def head_proposal(
    session: Session, target_ids: Int[Tensor, "W"], logits: Float[Tensor, "*nodes W"], frontier: Frontier | None
) -> Proposal:
    """What raw logits propose after nodes, under the caller's processors: see `num_candidates`, else distributions.

    `frontier` may be None for processors that look at no path, see `path_probs`.

    Raises `LogitsError`: the distributions hold NaN; not checked on an accelerator, where values are not read.
    """
    count = num_candidates(session)
    if isinstance(session.processors, NoProcessors):
        probs, ids = logits.softmax(-1, dtype=torch.float32), target_ids
        if count is None:
            return Proposal(_spread(probs, ids, session.vocab_size, 0.0).to(session.device))
    else:
        logits = _spread(logits, target_ids, session.vocab_size, -torch.inf)
        probs, ids = path_probs(session, logits.to(session.device), frontier), None
        if count is None:
            return Proposal(probs)
    top = probs.topk(min(count, probs.shape[-1]), dim=-1)
    # NaN comes first in `topk`, and makes a distribution's every probability NaN.
    if top.values.device.type == "cpu" and bool(top.values[..., 0].isnan().any()):
        raise LogitsError("the draft head's distributions hold NaN: check the head's weights and its dtype")
    tokens = top.indices if ids is None else ids[top.indices]
    return Proposal(top.values.to(session.device), tokens.to(session.device))


def _spread(values: Float[Tensor, "B F W"], ids: Int[Tensor, "W"], vocab_size: int, rest: float) -> Tensor:
    """Values at the target's ids [B, F, V], `rest` at tokens that are not drafted."""
    if len(ids) == vocab_size:
        return values
    full = values.new_full((*values.shape[:-1], vocab_size), rest)
    return full.scatter_(-1, ids.expand_as(values), values)  # A CPU takes half of `index_copy_`'s time.
