"""EAGLE-3's draft head (Li et al. 2025, section 3): one decoder layer over fused features of the target.

The feature at position t, fused from hidden states of three of the target's layers, and the token at t + 1 together
predict the token at t + 2. Deeper in a draft the target's features are not known yet: the head's own output before its
last norm takes their role.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treespec.heads.modules.base import DraftHead, HeadConfig
from treespec.heads.modules.kv_cache import TrainingCache
from treespec.heads.modules.layers import Attention, DecoderLayer, GatedMlp, KeyValueCache, LayerConfig, Mask
from treespec.heads.modules.rotary import Rotation
from treespec.heads.modules.sparse import UnrolledAttention


@dataclass(frozen=True)
class Eagle3Config(HeadConfig):
    """The shape of an EAGLE-3 head; see `HeadConfig`.

    Args:
        num_layers: decoder layers; those after the first are plain ones.
        has_norm_before_residual: the first layer's residual is the normed feature.
        has_norm_before_fc: one RMS norm over the Y inputs of `fc`.
        has_feature_norms: an RMS norm per fused hidden state (EAGLE-3.1).
        has_norm_output: the next feature is the output after the last norm (EAGLE-3.1).
    """

    num_features: int = 3
    num_layers: int = 1
    has_norm_before_residual: bool = False
    has_norm_before_fc: bool = False
    has_feature_norms: bool = False
    has_norm_output: bool = False

    algorithm = "eagle3"


class Eagle3Layer(nn.Module):
    """EAGLE-3's first decoder layer: q, k and v read the normed embedding and the normed feature, concatenated."""

    def __init__(self, config: LayerConfig, has_norm_before_residual: bool) -> None:
        super().__init__()
        self._has_norm_before_residual = has_norm_before_residual
        self.input_layernorm, self.hidden_norm = config.norm(), config.norm()
        self.post_attention_layernorm = config.norm()
        self.self_attn = Attention(config, 0, 2 * config.hidden_size)
        self.mlp = GatedMlp(config)

    def forward(
        self, embedded: Tensor, features: Tensor, rotation: Rotation, mask: Mask, cache: KeyValueCache
    ) -> Tensor:
        """Embedded tokens and features [B, F, H] to [B, F, H]."""
        normed = self.hidden_norm(features)
        residual = normed if self._has_norm_before_residual else features
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        states = residual + self.self_attn(both, rotation, mask, cache)
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3Head(DraftHead[Eagle3Config]):
    """The head as a module; see `DraftHead` for the arguments."""

    def __init__(self, config: Eagle3Config, embedding: Tensor, target_ids: Tensor) -> None:
        rest = [DecoderLayer(config.layer, index) for index in range(1, config.num_layers)]
        layers = [Eagle3Layer(config.layer, config.has_norm_before_residual), *rest]
        super().__init__(config, embedding, target_ids, layers)
        layer = config.layer
        size = config.target_hidden_size
        count = config.num_features
        self.fc_norm = nn.ModuleList([layer.norm(size) for _ in range(count)]) if config.has_feature_norms else None
        self.input_norm = layer.norm(count * size) if config.has_norm_before_fc else None

    def fuse(self, states: Tensor) -> Tensor:
        """The features [B, F, H] of the target's hidden states [B, F, Y], concatenated."""
        if self.fc_norm is not None:
            parts = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(states if self.input_norm is None else self.input_norm(states))

    def run(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Mask, cache: KeyValueCache) -> Tensor:
        """The layers' output before the last norm, [B, F, H].

        Args:
            tokens: int64 [B, F], each the token after its feature's.
            features: [B, F, H].
            positions: int64 [B or 1, F].
            mask: bool [B or 1, 1, F, S], True where one of the cache's S keys is attended; see `Mask`.
            cache: holds the keys of earlier passes, and gets this one's.
        """
        rotation = self.rotary(positions, features.dtype)
        embeddings = nn.functional.embedding(tokens, self.embedding)
        first, *rest = self.layers
        states = first(embeddings, features, rotation, mask, cache)
        for layer in rest:
            states = layer(states, rotation, mask, cache)
        return states

    def read(self, states: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits [B, F, W] and next features [B, F, H] of outputs [B, F, H] of `run`; `rows`: see `logits`."""
        normed = self.norm(states)
        return self.logits(normed, rows), normed if self.config.has_norm_output else states


def unroll(head: Eagle3Head, tokens: Tensor, features: Tensor, num_steps: int) -> list[Tensor]:
    """The inputs of `lm_head` along a training text, then along drafts on the head's own features.

    This is EAGLE-3's training-time test: step i pairs the token at t + i with the features that step i - 1 computed at
    t, as at depth i of a draft that starts at t, with the target's features up to t and the head's own after it.

    Args:
        tokens: int64 [B, T], each the token after its feature's.
        features: [B, T, H], from `fuse`.
        num_steps: 1 to T.

    Returns:
        Normed outputs [B, T - i, H] of every step i; those at t predict the token after `tokens[:, t + i]`.
    """
    num_tokens = tokens.shape[1]
    cache = TrainingCache()
    outputs = []
    for step in range(num_steps):
        positions = torch.arange(step, num_tokens, device=tokens.device).unsqueeze(0)
        mask = UnrolledAttention(step, num_tokens)
        states = head.run(tokens[:, step:], features[:, : num_tokens - step], positions, mask, cache)
        normed = head.norm(states)
        outputs.append(normed)
        features = normed if head.config.has_norm_output else states
    return outputs
