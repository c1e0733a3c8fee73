"""What a draft head's logits propose: distributions over the target's vocabulary, or where they are not needed the best
tokens.

Axis letters: B rows, F expanded nodes, V the target's vocabulary, W the draft vocabulary, K candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.checks import AUTO
from treespec.drafters.path_probs import path_probs
from treespec.errors import LogitsError
from treespec.policies import BestFirst, Chain, Paths
from treespec.protocols import Frontier, Proposal, Session, TreePolicy
from treespec.tree import SELECTED


def needs_full_probs(session: Session, policy: TreePolicy) -> bool:
    """Whether children may be drawn or the caller's processors ask for the whole distribution; else candidates
    are enough."""
    is_selecting = isinstance(policy, (BestFirst, Chain, Paths)) and policy.children in (AUTO, SELECTED)
    return session.is_sampling or not session.processors.is_path_free or not is_selecting


def head_proposal(
    session: Session, target_ids: Tensor, num_candidates: int | None, logits: Tensor, frontier: Frontier | None
) -> Proposal:
    """What raw logits [B, F, W] propose after F nodes.

    Args:
        session: of the call.
        target_ids: int64 [W], the target's id of every draft id, where the head is.
        num_candidates: K where candidates are enough, None for distributions.
        logits: the head's.
        frontier: the nodes; None where nothing depends on them, see `path_probs`.
    """
    if num_candidates is not None:
        return candidates(logits, target_ids, num_candidates, session.device)
    if len(target_ids) < session.vocab_size:
        shape = (*logits.shape[:-1], session.vocab_size)
        logits = logits.new_full(shape, -torch.inf).index_copy_(-1, target_ids, logits)
    return Proposal(path_probs(session, logits.to(session.device), frontier))


def candidates(logits: Tensor, target_ids: Tensor, num_candidates: int, device: torch.device) -> Proposal:
    """The most probable tokens of logits [B, F, W] and their probabilities, at most `num_candidates` of each
    distribution.

    Raises:
        LogitsError: the distributions hold NaN; not checked on an accelerator, where values are not read.
    """
    top = logits.softmax(-1, dtype=torch.float32).topk(min(max(num_candidates, 1), logits.shape[-1]), dim=-1)
    # NaN comes first in `topk`, and makes a distribution's every probability NaN.
    if top.values.device.type == "cpu" and bool(top.values[..., 0].isnan().any()):
        raise LogitsError("the draft head's distributions hold NaN: check the head's weights and its dtype")
    return Proposal(top.values.to(device), target_ids[top.indices].to(device))
