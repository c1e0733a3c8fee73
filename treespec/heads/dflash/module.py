"""DFlash draft heads (z-lab 2026, arXiv 2602.06036), DSpark: DFlash with a Markov bias, and DFlash 2, see `second`.

One pass guesses the tokens at all depths. Its input is a block: the embeddings of the last committed token (the anchor)
and of mask tokens after it. Queries are those of the block, keys and values those of [context; block]. The context are
the target's fused hidden states before the anchor; they pass through no layer, so their keys and values are computed
once per committed token.

Position k > 0 of a DFlash block guesses the token k after the anchor, position k of a DSpark block the token k + 1.
Outputs here are by depth: those of depth d guess the token d + 1 after the anchor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treespec.heads.dflash.second import CandidateSelector, ConvolvedLayer
from treespec.heads.modules.base import DraftHead, HeadConfig
from treespec.heads.modules.kv_cache import TrainingCache
from treespec.heads.modules.layers import DecoderLayer, KeyValueCache, Mask
from treespec.heads.modules.sparse import AnchoredAttention


@dataclass(frozen=True)
class Span:
    """The attention span of a layer's blocks."""

    window: int | None = None  # This many context positions before the anchor, None for all.
    is_causal: bool = False  # A position sees no later one of its block.


@dataclass(frozen=True)
class DFlashConfig(HeadConfig):
    """The shape of a DFlash or DSpark head; see `HeadConfig`. The layer's own window is not used."""

    block_size: int  # Q
    mask_token: int  # The input id at positions whose token is to be guessed.
    spans: tuple[Span, ...] = (Span(), Span())  # One per layer.
    has_anchor_output: bool = False  # The block's first position drafts a token too (DSpark).
    markov_rank: int = 0  # r, zero without a Markov head.
    embedding_scale: float = 1.0  # Multiplies a block's embeddings.
    output_factor: float = 1.0  # Multiplies the logits, before the cap and a Markov head's bias.
    logit_cap: float | None = None  # c of c tanh(logits / c), before a Markov head's bias.
    has_mask_embedding: bool = False  # The mask token's embedding is the head's own.
    has_markov_gate: bool = False
    num_taps: int = 0  # The convolutions' in DFlash 2's layers, zero without.
    group_size: int = 1  # Channels that share what a token adds to a convolution's kernel.
    selector_rank: int = 0  # Zero without DFlash 2's selector.
    num_candidates: int = 0  # The tokens of a depth that the selector chooses from.

    @property
    def num_layers(self) -> int:
        return len(self.spans)

    @property
    def algorithm(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `HeadConfig`: dflash2 with any of DFlash 2's additions, dspark with any of DSpark's, else dflash."""
        if self.num_taps or self.selector_rank:
            return "dflash2"
        return "dspark" if self.has_anchor_output or self.markov_rank else "dflash"

    @property
    def num_depths(self) -> int:
        """D, how many tokens a block guesses."""
        return self.block_size if self.has_anchor_output else self.block_size - 1


class MarkovHead(nn.Module):
    """DSpark's bigram bias of low rank on the logits, B(u) = W2 W1[u].

    With `gate_size`, the size of outputs h: B(u) = W2 (sigmoid(G [h; W1[u]]) W1[u]).
    """

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int, gate_size: int = 0) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        self.gate_proj = nn.Linear(gate_size + rank, rank) if gate_size else None

    def forward(self, tokens: Tensor, outputs: Tensor) -> Tensor:
        """The bias [..., W] on the logits of outputs [..., H] after tokens int64 [...], the target's ids."""
        before = self.markov_w1(tokens)
        if self.gate_proj is not None:
            before = self.gate_proj(torch.cat([outputs, before], -1)).sigmoid() * before
        return self.markov_w2(before)


class DFlashHead(DraftHead[DFlashConfig]):
    """The head as a module; see `DraftHead` for the arguments. DSpark's confidence head is not part of it."""

    def __init__(self, config: DFlashConfig, embedding: Tensor, target_ids: Tensor) -> None:
        layer, sizes = config.layer, (config.vocab_size, config.draft_vocab_size)
        super().__init__(config, embedding, target_ids, [_layer(config, index) for index in range(config.num_layers)])
        self.hidden_norm = layer.norm()
        self.mask_embedding = (
            nn.Parameter(torch.zeros(layer.hidden_size, dtype=torch.float32, device="cpu"))
            if config.has_mask_embedding
            else None
        )
        self.markov_head = self.candidate_selector = None
        if config.markov_rank:
            gate_size = layer.hidden_size if config.has_markov_gate else 0
            self.markov_head = MarkovHead(*sizes, config.markov_rank, gate_size)
        if config.selector_rank:
            self.candidate_selector = CandidateSelector(config.vocab_size, layer.hidden_size, config.selector_rank)

    def forward(self, tokens: Tensor, states: Tensor, anchors: Tensor) -> Tensor:
        """Training's pass over texts: blocks anchored anywhere in them, each seeing the context before its anchor.

        Args:
            tokens: int64 [B, T], from position 0 on; padding may follow.
            states: [B, T, Y], the target's hidden states of these tokens, concatenated.
            anchors: int64 [B, U], positions in the texts.

        Returns outputs [B, U, D, H] for `read`; those of depth d guess the token at anchor + d + 1.
        """
        num_rows, num_tokens = tokens.shape
        size = self.config.block_size
        cache = TrainingCache()
        self.add_context(self.fuse(states), torch.arange(num_tokens, device=tokens.device).unsqueeze(0), cache)
        positions = (anchors.unsqueeze(-1) + torch.arange(size, device=tokens.device)).flatten(1)
        masks = anchored_masks(self.config, anchors, num_tokens)
        outputs = self.run(self.block_tokens(tokens.gather(1, anchors)).flatten(1), positions, masks, cache)
        return self.by_depth(outputs.view(num_rows, -1, size, outputs.shape[-1]))

    def fuse(self, states: Tensor) -> Tensor:
        """Context features [B, M, H] of the target's hidden states [B, M, Y]."""
        return self.hidden_norm(self.fc(states))

    def add_context(self, features: Tensor, positions: Tensor, cache: KeyValueCache) -> None:
        """Add features [B, M, H] at positions int64 [B or 1, M] to every layer's keys and values."""
        rotation = self.rotary(positions, features.dtype)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            cache.extend(index, *layer.self_attn.project_keys(features, rotation))

    def block_tokens(self, anchors: Tensor) -> Tensor:
        """Input tokens int64 [..., Q] of blocks after anchor tokens int64 [...]."""
        masks = anchors.new_full((*anchors.shape, self.config.block_size - 1), self.config.mask_token)
        return torch.cat([anchors.unsqueeze(-1), masks], -1)

    def run(self, tokens: Tensor, positions: Tensor, masks: Sequence[Mask], cache: KeyValueCache) -> Tensor:
        """Normed outputs [B, F, H] at all positions of one or more blocks.

        Args:
            tokens: int64 [B, F].
            positions: int64 [B or 1, F].
            masks: per layer, bool [B or 1, 1, F, S], True where one of the cache's S keys is attended; see `Mask`.
            cache: holds the context's keys, and gets the blocks'.
        """
        states = nn.functional.embedding(tokens, self.embedding)
        if self.mask_embedding is not None:
            states = torch.where((tokens == self.config.mask_token).unsqueeze(-1), self.mask_embedding, states)
        if self.config.embedding_scale != 1:
            states = states * self.config.embedding_scale
        rotation = self.rotary(positions, states.dtype)
        for layer, mask in zip(self.layers, masks, strict=True):
            states = layer(states, rotation, mask, cache)
        return self.norm(states)

    def by_depth(self, outputs: Tensor) -> Tensor:
        """Outputs [..., D, H] at the positions that draft, from those at all positions of a block [..., Q, H]."""
        return outputs if self.config.has_anchor_output else outputs[..., 1:, :]

    def read(self, outputs: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits [..., W] of outputs [..., H] and, where `is_conditional`, the tokens int64 [...] before them."""
        logits = self.lm_head(outputs)
        if self.config.output_factor != 1:
            logits = logits * self.config.output_factor
        if (cap := self.config.logit_cap) is not None:
            logits = (logits / cap).tanh() * cap
        return logits if tokens is None else self.after(logits, outputs, tokens)

    @property
    def is_conditional(self) -> bool:
        """Whether the token before one changes its distribution."""
        return self.markov_head is not None or self.candidate_selector is not None

    def after(self, logits: Tensor, outputs: Tensor, tokens: Tensor) -> Tensor:
        """Logits [..., W] after tokens int64 [...], from those without [..., W] and the outputs [..., H]."""
        if self.markov_head is not None:
            logits = logits + self.markov_head(tokens, outputs)
        if self.candidate_selector is not None:
            logits = self.candidate_selector(logits, outputs, tokens, self.config.num_candidates)
        return logits


def _layer(config: DFlashConfig, index: int) -> DecoderLayer:
    if not config.num_taps:
        return DecoderLayer(config.layer, index)
    return ConvolvedLayer(config.layer, index, config.block_size, config.num_taps, config.group_size)


def anchored_masks(config: DFlashConfig, anchors: Tensor, num_tokens: int) -> list[AnchoredAttention]:
    """Per layer, the attention of blocks at anchors int64 [B, U] over a text of T tokens and all blocks.

    A block sees the context before its anchor and itself, no other block.
    """
    size = config.block_size
    distances = anchors.unsqueeze(-1) - torch.arange(num_tokens, device=anchors.device)
    masks: dict[Span, AnchoredAttention] = {}
    for span in set(config.spans):
        context = distances > 0 if span.window is None else (distances > 0) & (distances <= span.window)
        masks[span] = AnchoredAttention(context.repeat_interleave(size, 1), size, span.is_causal)
    return [masks[span] for span in config.spans]
