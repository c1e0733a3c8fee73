"""Block-parallel heads in training: blocks anchored at random places of the target's texts, nothing unrolled (DSpark).

The Markov bias is trained as what it is: logits W (h + B a(e)), a correction of the output h by the embedding e of the
token before, of low rank. Its tables, one row per token of either vocabulary, are made when the head is written: few
weights learn from few texts, and a(e) may be any function of e at no cost in drafting.

Axis letters: B texts, T tokens, C blocks per text, D depths, H the hidden size, R the Markov rank, V the target's
vocabulary, W the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.heads.modules.dflash import DFlashConfig, DFlashHead, Span
from treespec.hf.introspect import num_logits
from treespec.training.data import Batch
from treespec.training.head_learner import HeadLearner, fresh_head
from treespec.training.head_shape import head_layer
from treespec.training.objective import Draft
from treespec.training.options import TrainingConfig

WIDENING = 4
"""The Markov map's inner layer is so many times its rank."""


class MarkovMap(nn.Module):
    """The bias by the token before: `a` [.., H] to [.., R] of normed embeddings, `b` back to outputs."""

    def __init__(self, size: int, rank: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=1e-6)
        self.a = nn.Sequential(nn.Linear(size, WIDENING * rank), nn.SiLU(), nn.Linear(WIDENING * rank, rank))
        self.b = nn.Linear(rank, size, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Corrections [..., H] of outputs."""
        return self.b(self.read(embeddings))

    def read(self, embeddings: Tensor) -> Tensor:
        """[..., R]."""
        return self.a(self.norm(embeddings))


class BlockLearner(HeadLearner[DFlashHead]):
    """A DSpark head for `Objective`.

    Args:
        head: in float32, without a Markov head.
        hidden_layers, is_head_frozen: see `HeadLearner`.
        num_anchors: C.
        markov_rank: R, zero for none.
    """

    def __init__(
        self, head: DFlashHead, hidden_layers: Sequence[int], num_anchors: int, markov_rank: int, is_head_frozen: bool
    ) -> None:
        super().__init__(head, hidden_layers, head.config.num_depths, is_head_frozen)
        self._num_anchors = num_anchors
        self.markov = MarkovMap(head.config.layer.hidden_size, markov_rank) if markov_rank else None

    @property
    def reads(self) -> dict[str, Any]:
        """See `Learner`."""
        return super().reads | {"mask_token": self.head.config.mask_token}

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`."""
        if generator is not None:
            parts = [self._drafts(batch, draw_anchors(batch.is_asked, self._num_anchors, generator))]
        else:
            places = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
            parts = [
                self._drafts(batch, chunk.expand(len(batch.tokens), -1)) for chunk in places.split(self._num_anchors)
            ]
        return [Draft(*map(torch.cat, zip(*of_depth, strict=True))) for of_depth in zip(*parts, strict=True)]

    def _drafts(self, batch: Batch, anchors: Tensor) -> list[Draft]:
        """Drafts of blocks at anchors int64 [B, C], at places where the target wrote what comes next."""
        outputs = self.head(batch.tokens, batch.states.to(self.head.fc.weight.dtype), anchors)
        drafts, width = [], batch.tokens.shape[1]
        for depth in range(self.num_depths):
            places = anchors + depth
            is_asked = batch.is_asked.gather(1, places.clamp(max=width - 1)) & (places < width)
            texts, blocks = is_asked.nonzero(as_tuple=True)
            chosen, starts = outputs[texts, blocks, depth], anchors[texts, blocks]
            if self.markov is not None:
                before = nn.functional.embedding(batch.tokens[texts, starts + depth], self.head.embedding)
                chosen = chosen + self.markov(before)
            drafts.append(Draft(chosen, texts, starts))
        return drafts

    @torch.no_grad()
    def _whole_head(self) -> DFlashHead:
        """The head with its Markov head, W1 = a(embedding) and W2 = rows b."""
        if self.markov is None:
            return self.head
        rank = self.markov.b.in_features
        config = replace(self.head.config, markov_rank=rank)
        with torch.device("meta"):
            whole = DFlashHead(config, self.head.embedding, self.head.target_ids)
        tables = {
            "markov_head.markov_w1.weight": self.markov.read(self.head.embedding),
            "markov_head.markov_w2.weight": self.head.lm_head.weight @ self.markov.b.weight,
        }
        whole.load_state_dict(self.head.state_dict() | tables, assign=True)
        return whole


def draw_anchors(is_asked: Tensor, num_anchors: int, generator: torch.Generator) -> Tensor:
    """Places int64 [B, C] of every text where the target wrote what comes next, without repetition while there are any.

    Args:
        is_asked: bool [B, T].
    """
    draws = torch.rand(is_asked.shape, generator=generator, device=is_asked.device) + is_asked
    return draws.topk(min(num_anchors, is_asked.shape[1])).indices.sort().values


def make_block(
    model: PreTrainedModel, target_ids: Tensor, hidden_layers: Sequence[int], mask_token: int, config: TrainingConfig
) -> BlockLearner:
    """A fresh head for a target; draws from torch's default generator.

    Raises:
        UnsupportedModelError: see `fresh_head`.
    """
    layer = head_layer(model)
    shape = DFlashConfig(
        layer,
        vocab_size=num_logits(model),
        draft_vocab_size=len(target_ids),
        target_hidden_size=layer.hidden_size,
        num_features=len(hidden_layers),
        block_size=config.depths,
        mask_token=mask_token,
        spans=(Span(),) * config.layers,
        has_anchor_output=True,
        hidden_layers=tuple(hidden_layers),
    )
    head = fresh_head(DFlashHead, shape, model, target_ids, config.is_initialised)
    return BlockLearner(head, hidden_layers, config.num_anchors, config.markov_rank, config.is_head_frozen)
