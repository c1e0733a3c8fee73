"""Draft distributions of tree nodes under the caller's logits processors, applied along every node's path."""

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Frontier, Session
from treespec.sampling import path_scores


def path_probs(
    session: Session, logits: Float[Tensor, "B F V"], frontier: Frontier | None = None
) -> Float[Tensor, "B F V"]:
    """The distributions in float32 that children are drawn from.

    `logits` are raw, -inf where the draft has no token. `frontier` may be None for processors that look at no path.
    Nodes after which the processors leave none of the draft's tokens get the uniform distribution over these: any
    distribution is lossless.
    """
    read_paths = list if frontier is None else frontier.path_tokens
    scores = path_scores(session.processors, session.history, session.row_ids, logits, read_paths)
    if not session.processors.can_remove_all:
        return scores.softmax(-1, dtype=torch.float32)
    top = scores.amax(-1, keepdim=True)
    is_unknown = (top == -torch.inf) | top.isnan()  # Some warpers make the one from the other.
    # On a CPU reading a few flags is cheaper than copying all scores.
    if scores.device.type != "cpu" or bool(is_unknown.any()):
        scores = torch.where(is_unknown, torch.where(logits == -torch.inf, -torch.inf, logits * 0), scores)
    return scores.softmax(-1, dtype=torch.float32)
