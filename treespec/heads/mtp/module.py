"""Multi-token-prediction layers (DeepSeek-V3, 2024, section 2.2) around decoder layers of the target's own class.

Layer l combines the token after next with what layer l - 1 gave for the token before it, at l = 0 with the target's
state there: h'(t, l) = Projection[Norm(Embedding(t)); Norm(h(t - 1, l - 1))], and h(t, l) = Norm(Block(h'(t, l))). So
h(t, 0) predicts the token after t from the target's state before t, h(t, l) from the target's state l tokens earlier.

Axis letters: J layers, Z the outputs of all layers one after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from treespec.heads.modules.base import StateReader
from treespec.heads.modules.kv_cache import TrainingCache
from treespec.heads.modules.layers import KeyValueCache


@dataclass(frozen=True)
class MtpConfig:
    """The shape of a checkpoint's MTP layers.

    Args:
        layout: the name of the files' layout.
        vocab_size, hidden_size: V and H, the target's.
        num_layers: J.
        window: how many positions a token sees, itself included; None for all.
        layer_type: what the target's rotary positions ask for, where they depend on it.
    """

    layout: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    window: int | None = None
    layer_type: str | None = None
    num_features: int = 1  # Hidden states of the target that are read.


class MtpLayer(nn.Module):
    """One MTP layer.

    Args:
        embedding_norm, hidden_norm, norm: of the token's embedding, of the state, and of the output.
        projection: [H, 2H], reads the embedding and the state, in the other order if `is_hidden_first`.
        blocks: decoder layers with the interface of transformers.
        cache_argument: what they call their cache.
    """

    def __init__(
        self,
        embedding_norm: nn.Module,
        hidden_norm: nn.Module,
        projection: nn.Linear,
        blocks: Sequence[nn.Module],
        norm: nn.Module,
        *,
        is_hidden_first: bool,
        cache_argument: str,
    ) -> None:
        super().__init__()
        self.embedding_norm, self.hidden_norm, self.norm = embedding_norm, hidden_norm, norm
        self.projection = projection
        self.blocks = nn.ModuleList(blocks)
        self.is_hidden_first = is_hidden_first
        self._cache_argument = cache_argument

    def forward(self, embedded: Tensor, states: Tensor, cache: "BlockCache", **inputs: Any) -> Tensor:
        """Embedded tokens and states before them [B, F, H] to [B, F, H]; `inputs` go to the decoder layers."""
        parts = [self.embedding_norm(embedded), self.hidden_norm(states)]
        states = self.projection(torch.cat(parts[::-1] if self.is_hidden_first else parts, -1))
        for block in self.blocks:
            states = block(states, **{self._cache_argument: cache}, **inputs)
        return self.norm(states)


class BlockCache:
    """A `KeyValueCache` with the method of transformers' caches that decoder layers call."""

    def __init__(self, cache: KeyValueCache) -> None:
        self._cache = cache

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache.extend`."""
        return self._cache.extend(layer_idx, keys, values)


@dataclass(frozen=True)
class NormScales:
    """The scales [H] of last norms, where layers read the states before these; `hidden_norm` undoes any other factor.

    Args:
        target: of the target's last norm; None: its states are read as they are given, after it.
        own: of each MTP layer's; None likewise.
    """

    target: Tensor | None = None
    own: Sequence[Tensor] | None = None

    def before_targets(self, states: Tensor) -> Tensor:
        """The first layer's input from the target's normed states [..., H]."""
        return states if self.target is None else states / self.target.to(states)

    def before_own(self, states: Tensor, number: int) -> Tensor:
        """The next layer's input from layer `number`'s normed outputs [..., H]."""
        return states if self.own is None else states / self.own[number].to(states)


class MtpHead(StateReader):
    """The layers of a checkpoint with the target's embedding and output layer, which they share.

    Those two are not submodules: what is done to a head, such as `treespec.optimize`, leaves the target alone.

    Args:
        layers: J of them; every decoder layer in them has another index in the cache.
        rotary: from states and positions int64 [B, F] to what decoder layers call `position_embeddings`, or None.
        embedding: the target's, of tokens int64 [B, F]: [B, F, H].
        output: the target's, logits [B, F, V] of normed outputs [B, F, H].
        target_ids: int64 [W], the target's id of every draft id.
        rows: the output layer of a part of the vocabulary, logits [B, F, W]; None where W is V.

    Attributes:
        scales: where the layers read states before last norms.
    """

    config: MtpConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        config: MtpConfig,
        layers: Sequence[MtpLayer],
        rotary: nn.Module | None,
        embedding: nn.Module,
        output: nn.Module,
        target_ids: Tensor,
        rows: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(layers)
        self.rotary = rotary
        self.rows = rows
        self._targets = (embedding, output)
        self.scales = NormScales()
        self.register_buffer("target_ids", target_ids, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the states that the layers read."""
        return self.get_submodule("layers.0.projection").get_parameter("weight").dtype

    def read(self, states: Tensor) -> Tensor:
        """Logits [B, F, W] of normed outputs [B, F, H]."""
        output = self._targets[1] if self.rows is None else self.rows
        weight = next(output.parameters(), states)
        return output(states.to(weight.dtype) if weight.is_floating_point() else states)

    def run(self, tokens: Tensor, states: Tensor, positions: Tensor, mask: Tensor, cache: KeyValueCache) -> Tensor:
        """All layers over drafted tokens, each next to a state that is known: [B, F, Z].

        Args:
            tokens: int64 [B, F].
            states: [B, F, Z], what each layer reads.
            positions: int64 [B, F].
            mask: bool [B, J or 1, F, S], True where a layer attends one of the cache's S keys.
            cache: holds the keys of earlier passes, and gets this one's.
        """
        run = self._begin(tokens, positions, mask, states.dtype, cache)
        parts = states.chunk(self.config.num_layers, -1)
        return torch.cat(
            [run(number, self.scales.before_own(part, number - 1)) for number, part in enumerate(parts)], -1
        )

    def run_text(
        self, tokens: Tensor, states: Tensor, before: Tensor, positions: Tensor, mask: Tensor, cache: KeyValueCache
    ) -> Tensor:
        """All layers over consecutive tokens: each reads the one before it, one token earlier; see `run`.

        Args:
            states: [B, F, H], the target's before the tokens.
            before: [B, 1, Z], the outputs at the token before the first.
        """
        run = self._begin(tokens, positions, mask, states.dtype, cache)
        outputs: list[Tensor] = []
        states = self.scales.before_targets(states)
        for number, first in enumerate(before.chunk(self.config.num_layers, -1)):
            outputs.append(run(number, states))
            states = self.scales.before_own(torch.cat([first, outputs[-1][:, :-1]], 1), number)
        return torch.cat(outputs, -1)

    def _begin(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, dtype: torch.dtype, cache: KeyValueCache
    ) -> Callable[[int, Tensor], Tensor]:
        """A function that runs a layer, given its number and the states that it reads."""
        embedded = self._targets[0](tokens).to(dtype)
        inputs = {"position_ids": positions, "use_cache": True}
        if self.rotary is not None:
            # Rotary positions in time, height and width: of text they are one.
            is_of_images = hasattr(self.rotary, "mrope_section")
            grid = positions.expand(3, *positions.shape) if is_of_images else positions
            of_type = {} if self.config.layer_type is None else {"layer_type": self.config.layer_type}
            inputs["position_embeddings"] = self.rotary(embedded, grid, **of_type)
        # Added to the scores: eager attention of decoder layers knows no bool.
        added = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
        keys = BlockCache(cache)

        def run(number: int, states: Tensor) -> Tensor:
            column = min(number, added.shape[1] - 1)
            return self.layers[number](embedded, states, keys, attention_mask=added[:, column : column + 1], **inputs)

        return run


def unroll(head: MtpHead, tokens: Tensor, states: Tensor, num_steps: int) -> list[Tensor]:
    """The inputs of the output layer along a training text, then along drafts on the layer's own outputs.

    As `treespec.heads.eagle3.module.unroll`, with the target's states [B, T, H] as features; `head` is of one layer.
    """
    num_tokens = tokens.shape[1]
    cache = TrainingCache()
    columns = torch.arange(num_tokens, device=tokens.device)
    seen = columns[:, None] >= columns
    outputs = []
    for step in range(num_steps):
        length = num_tokens - step
        own = columns[:length, None] == columns[:length]
        seen = seen[:length] if step == 0 else torch.cat([seen[:length], own], 1)
        mask, positions = seen[None, None], columns[step:].unsqueeze(0)
        states = head.run(tokens[:, step:], states[:, :length], positions, mask, cache)
        outputs.append(states)
    return outputs
