"""The layers of draft heads; projections of the same input are one matrix here, see `split_fused`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from treespec.heads.modules.rotary import Rotary, Rotation, rotate
from treespec.heads.modules.sparse import shares_of

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_pytorch_tanh": partial(nn.functional.gelu, approximate="tanh"),
}
"""The activations of MLPs, by transformers' names."""


@dataclass(frozen=True)
class LayerConfig:
    """The shape of a decoder layer, in llama's terms.

    Args:
        hidden_size, intermediate_size, num_heads, num_key_heads, head_dim: H, the MLP's width, A, G, d.
        norm_eps: of all RMS norms.
        rope: see `Rotary`.
        max_positions: the positions that the checkpoint was made for; not a limit.
        has_attention_bias, has_output_bias, has_mlp_bias: biases of q, k and v, of the attention's output, of the MLP.
        has_head_norms: RMS norms over every query's and key's head, as in Qwen3.
        has_sinks: a learned score per head that takes a share of the attention and gives nothing, as in gpt-oss.
        activation: of the MLP, one of `ACTIVATIONS`.
        window: how many positions a token sees, itself included; None for all.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    norm_eps: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    max_positions: int = 2048
    has_attention_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False
    has_sinks: bool = False
    activation: str = "silu"
    window: int | None = None

    def rotary(self) -> Rotary:
        return Rotary(self.head_dim, self.rope, self.max_positions)

    def norm(self, size: int | None = None) -> nn.RMSNorm:
        """An RMS norm over `size`, H by default."""
        return nn.RMSNorm(size or self.hidden_size, eps=self.norm_eps)


class KeyValueCache(Protocol):
    """Keeps keys and values of one pass for the next ones."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [B, G, F, d] of a layer; returns all that the pass may attend, [B, G, S, d] each."""
        ...


Mask = Tensor | Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] | None
"""bool [B or 1, 1, F, S], True where a key is attended; None: every key is attended. Or a function that computes the
attention where a mask would hide most keys: queries [B, G, g F, d], g query heads per key head stacked; keys and values
[B, G, S, d]; the scores of sinks [1, G, g F, 1] or None."""


class Attention(nn.Module):
    """Grouped-query attention; query heads that share a key head are stacked, so that no key is copied.

    Args:
        config: the layer's shape.
        index: the layer's number in the cache.
        input_size: what q, k and v read, H by default.
    """

    def __init__(self, config: LayerConfig, index: int, input_size: int | None = None) -> None:
        super().__init__()
        self.index = index
        self.head_dim = config.head_dim
        self.num_heads, self.num_key_heads = config.num_heads, config.num_key_heads
        num_projected = config.num_heads + 2 * config.num_key_heads
        size = input_size or config.hidden_size
        self.qkv_proj = nn.Linear(size, num_projected * config.head_dim, bias=config.has_attention_bias)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=config.has_output_bias)
        self.q_norm = config.norm(config.head_dim) if config.has_head_norms else None
        self.k_norm = config.norm(config.head_dim) if config.has_head_norms else None
        self.attention_sink_bias = (
            nn.Parameter(torch.zeros(config.num_heads, dtype=torch.float32, device="cpu")) if config.has_sinks else None
        )

    def forward(self, states: Tensor, rotation: Rotation, mask: Mask, cache: KeyValueCache) -> Tensor:
        """states [B, F, input_size] to [B, F, H]; `mask` says which of the cache's keys are attended."""
        queries, keys, values = self.project(states, rotation)
        return self.attend(queries, *cache.extend(self.index, keys, values), mask)

    def project(self, states: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, F, A, d], rotated keys and values [B, G, F, d]."""
        num_rows, num_tokens, _ = states.shape
        projected = self.qkv_proj(states).view(num_rows, num_tokens, -1, self.head_dim)
        num_heads, num_key_heads = self.num_heads, self.num_key_heads
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys, values = projected.split([num_heads, num_key_heads, num_key_heads], 2)
            rotated = torch.cat([self.q_norm(queries), self.k_norm(keys)], 2)
        else:
            rotated, values = projected.split([num_heads + num_key_heads, num_key_heads], 2)
        queries, keys = rotate(rotated, rotation).split([num_heads, num_key_heads], 2)
        return queries, keys.transpose(1, 2), values.transpose(1, 2)

    def project_keys(self, states: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [B, G, F, d] of states [B, F, input_size], without queries."""
        first = self.num_heads * self.head_dim
        bias = self.qkv_proj.bias
        projected = nn.functional.linear(states, self.qkv_proj.weight[first:], None if bias is None else bias[first:])
        keys, values = projected.view(*states.shape[:2], -1, self.head_dim).chunk(2, 2)
        keys = rotate(keys if self.k_norm is None else self.k_norm(keys), rotation)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask) -> Tensor:
        """Queries [B, F, A, d] over keys and values [B, G, S, d]: [B, F, H]."""
        num_rows, num_tokens, _, size = queries.shape
        share = self.num_heads // self.num_key_heads
        stacked = queries.view(num_rows, num_tokens, -1, share, size).permute(0, 2, 3, 1, 4)
        stacked = stacked.reshape(num_rows, -1, share * num_tokens, size)
        sinks = self.attention_sink_bias
        if sinks is not None:
            sinks = sinks.view(-1, share).repeat_interleave(num_tokens, 1)[None, ..., None]
        if mask is None or isinstance(mask, Tensor):
            mask = mask if mask is None or share == 1 else torch.cat([mask] * share, 2)
            mixed = _attend(stacked, keys, values, mask, sinks)
        else:
            mixed = mask(stacked, keys, values, sinks)
        mixed = mixed.view(num_rows, -1, share, num_tokens, size).permute(0, 3, 1, 2, 4)
        return self.o_proj(mixed.reshape(num_rows, num_tokens, -1))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Attention outputs of stacked queries; torch's own attention knows no sinks."""
    if sinks is None:
        return nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    scores = torch.matmul(queries * queries.shape[-1] ** -0.5, keys.transpose(2, 3))
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return torch.matmul(shares_of(scores, sinks), values)


class GatedMlp(nn.Module):
    """`down(activation(gate(x)) * up(x))` over [..., H]."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.has_mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.has_mlp_bias)
        self._activation = ACTIVATIONS[config.activation]

    def forward(self, states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(states).chunk(2, -1)
        return self.down_proj(self._activation(gate) * up)


class DecoderLayer(nn.Module):
    """A pre-norm decoder layer over [B, F, H], as in llama."""

    def __init__(self, config: LayerConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm: nn.Module = config.norm()
        self.post_attention_layernorm = config.norm()
        self.self_attn = Attention(config, index)
        self.mlp = GatedMlp(config)

    def forward(self, states: Tensor, rotation: Rotation, mask: Mask, cache: KeyValueCache) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), rotation, mask, cache)
        return states + self.mlp(self.post_attention_layernorm(states))
