"""DSpark's two small heads: what the token before says about the next one, and how likely a draft token is right.

Axis letters: V the target's vocabulary, W the draft vocabulary, H hidden size, R rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MarkovHead(nn.Module):
    """A bigram bias of low rank on the logits, B(u) = W2 W1[u]."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The bias [..., W] on the logits after tokens int64 [...], the target's ids."""
        return self.markov_w2(self.markov_w1(tokens))


class ConfidenceHead(nn.Module):
    """A logit of acceptance, from a draft slot's output and, in some files, from the row W1[u] of the token before it.

    Path probabilities rank the nodes of trees; this head is for chains that stop early, and for training on.
    """

    def __init__(self, hidden_size: int, rank: int, has_bias: bool = True) -> None:
        """rank: R, zero where the token before is not looked at."""
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1, bias=has_bias)

    def forward(self, states: Tensor, embedded: Tensor | None = None) -> Tensor:
        """Logits [...] of outputs [..., H] and rows of W1 [..., R]."""
        return self.proj(states if embedded is None else torch.cat([states, embedded], -1)).squeeze(-1)
