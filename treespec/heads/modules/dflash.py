"""Block-parallel draft heads: DFlash (z-lab 2026, arXiv 2602.06036) and DSpark, DFlash with a Markov bias.

One pass guesses the tokens at all depths. Its input is a block, the embeddings of the last committed token (the anchor)
and of mask tokens behind it. Keys and values are those of [context; block], queries those of the block alone: the
context are features of the target, fused from several of its hidden states, before the anchor. They go through no
layer, so their keys and values are computed once per committed token.

DFlash's slot k > 0 guesses the token k places after the anchor, and slot 0 nothing; DSpark's slot k guesses the token
k + 1 places after it. Outputs are by depth here, so that this shift is seen nowhere else: those of depth d guess the
token d + 1 places after the anchor.

Axis letters: B rows, T tokens of a text, M context positions of a pass, C blocks per text, K slots of a block, D
depths, H the head's hidden size, J the target's, L features fused, V the target's vocabulary, W the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treespec.heads.modules.base import DraftHead, HeadConfig
from treespec.heads.modules.layers import AppendedKeys, DecoderLayer, KeyStore, Mask
from treespec.heads.modules.markov import ConfidenceHead, MarkovHead
from treespec.heads.modules.sparse import AnchoredMixing


@dataclass(frozen=True)
class Span:
    """What a layer's blocks see.

    Args:
        window: so many context positions before the anchor, None for all.
        is_causal: a slot sees no later slot of its block.
    """

    window: int | None = None
    is_causal: bool = False


@dataclass(frozen=True)
class DFlashConfig(HeadConfig):
    """The shape of a block-parallel head.

    Args:
        layer, vocab_size, draft_vocab_size, target_hidden_size, num_features: see `HeadConfig`; the layer's window is
            not used.
        block_size: K.
        mask_token: the id that stands where tokens are to be guessed.
        spans: one per layer.
        has_anchor_output: slot 0 guesses too, as in DSpark.
        markov_rank: of the Markov head, zero without one.
        has_confidence, has_markov_confidence, has_confidence_bias: a confidence head, whether it reads the token
            before, and whether it has a bias.
        hidden_layers: the target's hidden states that are fused, see `HiddenStates`.
    """

    block_size: int
    mask_token: int
    spans: tuple[Span, ...] = (Span(), Span())
    has_anchor_output: bool = False
    markov_rank: int = 0
    has_confidence: bool = False
    has_markov_confidence: bool = False
    has_confidence_bias: bool = True
    hidden_layers: tuple[int, ...] | None = None

    @property
    def num_layers(self) -> int:
        return len(self.spans)

    @property
    def is_dspark(self) -> bool:
        """Whether it has any of DSpark's additions."""
        return self.has_anchor_output or self.markov_rank > 0 or self.has_confidence

    @property
    def num_depths(self) -> int:
        """D, how many tokens a block guesses."""
        return self.block_size if self.has_anchor_output else self.block_size - 1


class DFlashHead(DraftHead[DFlashConfig]):
    """The head as a module; see `DraftHead` for its arguments, of which it makes the layers."""

    def __init__(self, config: DFlashConfig, embedding: Tensor, target_ids: Tensor) -> None:
        layers = [DecoderLayer(config.layer, index) for index in range(config.num_layers)]
        super().__init__(config, embedding, target_ids, layers)
        self.hidden_norm = config.layer.norm()
        self.markov_head = self.confidence_head = None
        if config.markov_rank:
            self.markov_head = MarkovHead(config.vocab_size, config.draft_vocab_size, config.markov_rank)
        if config.has_confidence:
            rank = config.markov_rank if config.has_markov_confidence else 0
            self.confidence_head = ConfidenceHead(config.layer.hidden_size, rank, config.has_confidence_bias)

    def forward(self, tokens: Tensor, states: Tensor, anchors: Tensor, mask: Tensor | None = None) -> Tensor:
        """Training's pass over texts: blocks anchored anywhere in them, each seeing what stands before its anchor.

        Args:
            tokens: int64 [B, T], from position 0 on.
            states: [B, T, L J], the target's hidden states of the same tokens, one layer's beside the other's.
            anchors: int64 [B, C], positions in the texts.
            mask: bool [B, T], False where there is no text, behind the shorter ones; None: everywhere is.

        Returns:
            Outputs [B, C, D, H] for `read`; those of depth d guess the token at anchor + d + 1.
        """
        num_rows, num_tokens = tokens.shape
        size, store = self.config.block_size, AppendedKeys()
        self.add_context(self.fuse(states), torch.arange(num_tokens, device=tokens.device).unsqueeze(0), store)
        places = (anchors.unsqueeze(-1) + torch.arange(size, device=tokens.device)).flatten(1)
        mixings = anchored_mixings(self.config, anchors, num_tokens, mask)
        outputs = self.run(self.block_tokens(tokens.gather(1, anchors)).flatten(1), places, mixings, store)
        return self.by_depth(outputs.view(num_rows, -1, size, outputs.shape[-1]))

    def fuse(self, states: Tensor) -> Tensor:
        """Context features [B, M, H] of the target's hidden states [B, M, L J]."""
        return self.hidden_norm(self.fc(states))

    def add_context(self, features: Tensor, positions: Tensor, store: KeyStore) -> None:
        """Add features [B, M, H] at positions int64 [B or 1, M] to every layer's keys and values."""
        rotation = self.rotary(positions, features.dtype)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            store.extend(index, *layer.self_attn.project_keys(features, rotation))

    def block_tokens(self, anchors: Tensor) -> Tensor:
        """Input tokens int64 [..., K] of blocks behind anchor tokens int64 [...]."""
        masks = anchors.new_full((*anchors.shape, self.config.block_size - 1), self.config.mask_token)
        return torch.cat([anchors.unsqueeze(-1), masks], -1)

    def run(self, tokens: Tensor, positions: Tensor, masks: Sequence[Mask], store: KeyStore) -> Tensor:
        """Normed outputs [B, F, H] of all slots of blocks that lie side by side.

        Args:
            tokens: int64 [B, F].
            positions: int64 [B or 1, F].
            masks: per layer, bool [B or 1, 1, F, S], True where one of the store's S keys is attended; see `Mask`.
            store: holds the context's keys, and gets the blocks'.
        """
        states = nn.functional.embedding(tokens, self.embedding)
        rotation = self.rotary(positions, states.dtype)
        for layer, mask in zip(self.layers, masks, strict=True):
            states = layer(states, rotation, mask, store)
        return self.norm(states)

    def by_depth(self, outputs: Tensor) -> Tensor:
        """Outputs [..., D, H] of those slots that guess, from all of a block's [..., K, H]."""
        return outputs if self.config.has_anchor_output else outputs[..., 1:, :]

    def read(self, outputs: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits [..., W] of outputs [..., H] and, where there is a Markov head, the tokens int64 [...] before."""
        logits = self.lm_head(outputs)
        return logits if self.markov_head is None or tokens is None else logits + self.markov_head(tokens)

    def confidence(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        """Logits [...] of acceptance; there must be a confidence head. See `read`.

        For callers who read a published file's confidence head: drafting here does not use it.
        """
        assert self.confidence_head is not None
        if not self.config.has_markov_confidence:
            return self.confidence_head(outputs)
        assert self.markov_head is not None
        return self.confidence_head(outputs, self.markov_head.markov_w1(tokens))


def anchored_mixings(
    config: DFlashConfig, anchors: Tensor, num_tokens: int, mask: Tensor | None = None
) -> list[AnchoredMixing]:
    """Per layer, the attention of blocks at anchors int64 [B, C] over a text of T tokens and all blocks.

    A block sees the context before its anchor, itself, and no other block. `mask` bool [B, T] is False beyond the text.
    """
    ahead = anchors.unsqueeze(-1) - torch.arange(num_tokens, device=anchors.device)
    mixings: dict[Span, AnchoredMixing] = {}
    for span in set(config.spans):
        context = ahead > 0 if span.window is None else (ahead > 0) & (ahead <= span.window)
        if mask is not None:
            context = context & mask.unsqueeze(1)
        slots = context.repeat_interleave(config.block_size, 1)
        mixings[span] = AnchoredMixing(slots, config.block_size, span.is_causal)
    return [mixings[span] for span in config.spans]
