"""Lightning attention (MiniMax-01, arXiv 2501.08313) over trees: `linear.py` with one constant decay per head.

transformers' layer gets at its state by methods of a cache of its own kind, and computes the recurrence in its forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache

from treespec.hf.recurrent.layers import OwnStates, StateLayer, TreePass
from treespec.hf.recurrent.linear import scan_linear
from treespec.hf.thread_patches import replaced


class LightningStates(OwnStates):
    """The layers of a MiniMax model."""

    calls = frozenset({"get_linear_cache", "set_linear_cache"})
    is_continued = True

    def cache(self) -> Cache:
        """An empty cache, of the kind that the model asks for."""
        from transformers.models.minimax.modeling_minimax import MiniMaxCache

        kind = type("LightningCache", (_ByLayers, MiniMaxCache), {})
        made = kind()
        made.layers, made.layer_class_to_replicate = super().cache().layers, None
        return made

    @contextmanager
    def running(self, layers: Sequence[StateLayer], tree_pass: TreePass | None) -> Iterator[None]:
        """Prompts are read as the model does by itself."""
        with ExitStack() as stack:
            for module, layer in zip(self._modules, layers, strict=True) if tree_pass else ():
                stack.enter_context(replaced(module, "forward", partial(_forward, module, layer)))
            yield


class _ByLayers:
    """The methods that MiniMax calls on its cache, implemented by the cache's layers."""

    layers: list[Any]

    def __len__(self) -> int:
        return len(self.layers)

    def get_linear_cache(self, layer_idx: int) -> Float[Tensor, "B A d d"] | None:
        layer = self.layers[layer_idx]
        return layer.recurrent_states[0] if layer.has_previous_state[0] else None

    def set_linear_cache(self, layer_idx: int, linear_cache: Float[Tensor, "B A d d"]) -> None:
        layer = self.layers[layer_idx]
        layer.update_recurrent_state(linear_cache)
        layer.has_previous_state[0] = True


def _forward(
    module: Any, layer: StateLayer, hidden_states: Float[Tensor, "B F H"], **_: Any
) -> tuple[Float[Tensor, "B F H"], None]:
    """The layer's forward over nodes."""
    mixed = module.act_fn(module.qkv_proj(hidden_states)).unflatten(-1, (module.num_attention_heads, -1))
    parts = [part.transpose(1, 2) for part in mixed.float().split(module.head_dim, -1)]
    log_decays = -module.slope_rate.float().expand(len(mixed), -1, mixed.shape[1], 1)
    run = partial(scan_linear, *parts, log_decays)
    found = layer.scan(run, num_axes=4).transpose(1, 2).flatten(2).to(hidden_states.dtype)
    gate = torch.sigmoid(module.output_gate(hidden_states))
    return cast(Tensor, module.out_proj(gate * module.norm(found))), None
