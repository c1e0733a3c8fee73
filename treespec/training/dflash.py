"""DSpark heads in training: blocks anchored at random positions of the target's texts, nothing unrolled.

The Markov bias is trained in low-rank form: logits W (h + B a(e)), with the output h and the embedding e of the token
before. That has few weights, so few texts suffice. When the head is saved, the bias is computed for every token of both
vocabularies and kept as tables: drafting looks it up, whatever function a(e) is.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError
from treespec.heads.dflash.module import DFlashConfig, DFlashHead, Span
from treespec.training.data import Batch
from treespec.training.heads import HeadLearner, draft_ids, fresh_head, head_sizes, read_layers
from treespec.training.objective import Draft
from treespec.training.options import TrainingConfig, TrainingKind
from treespec.training.text.texts import Texts

WIDENING = 4
"""The width of the Markov map's inner layer, in units of its rank."""


class MarkovMap(nn.Module):
    """The bias by the token before: `a` maps normed embeddings [..., H] to [..., r], `b` maps those to outputs."""

    def __init__(self, size: int, rank: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=1e-6)
        self.a = nn.Sequential(nn.Linear(size, WIDENING * rank), nn.SiLU(), nn.Linear(WIDENING * rank, rank))
        self.b = nn.Linear(rank, size, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Corrections [..., H] of outputs."""
        return self.b(self.a(self.norm(embeddings)))


class DFlashLearner(HeadLearner[DFlashHead]):
    """A DSpark head, in float32 and without a Markov head, for `Objective`; with rank zero it learns no Markov bias."""

    def __init__(self, head: DFlashHead, num_anchors: int, markov_rank: int) -> None:
        super().__init__(head, head.config.num_depths)
        self.reads["mask_token"] = head.config.mask_token
        self._num_anchors = num_anchors
        self.markov = MarkovMap(head.config.layer.hidden_size, markov_rank) if markov_rank else None

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`."""
        if generator is not None:
            return self._drafts(batch, draw_anchors(batch.is_generated, self._num_anchors, generator))
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        chunks = positions.split(self._num_anchors)
        parts = [self._drafts(batch, chunk.expand(len(batch.tokens), -1)) for chunk in chunks]
        return [Draft(*map(torch.cat, zip(*of_depth, strict=True))) for of_depth in zip(*parts, strict=True)]

    def _drafts(self, batch: Batch, anchors: Tensor) -> list[Draft]:
        """Drafts of blocks at anchors int64 [B, U], where the target generated the token."""
        outputs = self.head(batch.tokens, batch.states.to(self.head.fc.weight.dtype), anchors)
        drafts = []
        length = batch.tokens.shape[1]
        for depth in range(self.num_depths):
            positions = anchors + depth
            is_generated = batch.is_generated.gather(1, positions.clamp(max=length - 1)) & (positions < length)
            texts, blocks = is_generated.nonzero(as_tuple=True)
            chosen = outputs[texts, blocks, depth]
            starts = anchors[texts, blocks]
            if self.markov is not None:
                before = nn.functional.embedding(batch.tokens[texts, starts + depth], self.head.embedding)
                chosen = chosen + self.markov(before)
            drafts.append(Draft(chosen, texts, starts))
        return drafts

    @torch.no_grad()
    def _complete_head(self) -> DFlashHead:
        """The head with the Markov head's tables, W1 = a(embedding) and W2 = lm_head b."""
        if self.markov is None:
            return self.head
        config = replace(self.head.config, markov_rank=self.markov.b.in_features)
        with torch.device("meta"):
            complete = DFlashHead(config, self.head.embedding, self.head.target_ids)
        tables = {
            "markov_head.markov_w1.weight": self.markov.a(self.markov.norm(self.head.embedding)),
            "markov_head.markov_w2.weight": self.head.lm_head.weight @ self.markov.b.weight,
        }
        complete.load_state_dict(self.head.state_dict() | tables, assign=True)
        return complete


def draw_anchors(is_generated: Tensor, num_anchors: int, generator: torch.Generator) -> Tensor:
    """Distinct positions int64 [B, U] of every text, those with `is_generated` bool [B, T] before all others."""
    draws = (
        torch.rand(is_generated.shape, generator=generator, dtype=torch.float32, device=is_generated.device)
        + is_generated
    )
    return draws.topk(min(num_anchors, is_generated.shape[1])).indices.sort().values


def _make(model: PreTrainedModel, texts: Texts, config: TrainingConfig) -> DFlashLearner:
    target_ids, mask_token = draft_ids(model, texts, config), config.mask_token
    shape = head_sizes(model, len(target_ids), read_layers(model, config))
    if mask_token is None:  # The last of the least used ones.
        counts = texts.tokens.bincount(minlength=shape["vocab_size"])
        mask_token = int((counts == counts.min()).nonzero()[-1])
    if not 0 <= mask_token < shape["vocab_size"]:
        raise ConfigError(f"mask_token must be one of {shape['vocab_size']} tokens, got {mask_token}")
    spans = (Span(),) * config.layers
    own = DFlashConfig(**shape, block_size=config.depths, mask_token=mask_token, spans=spans, has_anchor_output=True)
    head = fresh_head(DFlashHead, own, model, target_ids, config.is_initialised)
    return DFlashLearner(head, config.num_anchors, config.markov_rank)


KIND = TrainingKind("DSpark head", _make, num_depths=7, num_layers=2, unused=(), is_block=True)
