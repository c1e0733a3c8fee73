"""The real-gated linear recurrent unit of Griffin (arXiv 2402.19427) over trees: h <- a h + x per channel, by levels.

transformers' RecurrentGemma keeps its states in attributes of its modules. Passes of a scorer run the same modules with
the states of a cache: those of the modules stay what plain passes made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from transformers import Cache

from treespec.errors import UnsupportedModelError
from treespec.hf.recurrent.convolution import tree_convolution
from treespec.hf.recurrent.layers import OwnStates, StateLayer, TreePass
from treespec.hf.recurrent.levels import scan_levels
from treespec.hf.thread_patches import current, replaced


class GatedUnitStates(OwnStates):
    """The recurrent blocks of a RecurrentGemma model."""

    calls = frozenset({"conv1d_state", "rg_lru"})
    reads_padding = True

    def cache(self) -> Cache:
        """An empty cache. Raises `UnsupportedModelError`: transformers' has no layers for these states."""
        made = super().cache()
        if sum(isinstance(layer, StateLayer) for layer in made.layers) != len(self._modules):
            raise UnsupportedModelError(f"trees of {self._model.config.model_type} need transformers 5.23 or newer")
        return made

    @contextmanager
    def running(self, layers: Sequence[StateLayer], tree_pass: TreePass | None) -> Iterator[None]:
        with ExitStack() as stack:
            for module, layer in zip(self._modules, layers, strict=True):
                block: Any = module
                scan = partial(_scan, layer, tree_pass, current(block.rg_lru, "_rnn_scan"))
                stack.enter_context(replaced(block, "forward", partial(_forward, block, layer, tree_pass)))
                stack.enter_context(replaced(block.rg_lru, "_rnn_scan", scan))
            yield


def _forward(
    block: Any,
    layer: StateLayer,
    tree_pass: TreePass | None,
    input_states: Float[Tensor, "B F H"],
    position_ids: Any,
    **_: Any,
) -> tuple[Float[Tensor, "B F H"], None]:
    gates, inputs = block.act_fn(block.linear_y(input_states)), block.linear_x(input_states).transpose(1, 2)
    seen = layer.update_conv_state(inputs, conv_kernel_size=block.conv1d_width - 1)
    if tree_pass is None:
        mixed = block.conv_1d(inputs)[..., : inputs.shape[-1]]
    else:
        mixed = tree_convolution(tree_pass, seen, block.conv_1d.weight.squeeze(1), block.conv_1d.bias)
    return block.linear_out(block.rg_lru(mixed.transpose(1, 2), position_ids) * gates), None


def _scan(
    layer: StateLayer,
    tree_pass: TreePass | None,
    own: Any,
    hidden_states: Float[Tensor, "B F channels"],
    recurrent_gate: Float[Tensor, "B F channels"],
    reset: Bool[Tensor, "B F 1"],
    recurrent_states: Any,
) -> tuple[Float[Tensor, "B F channels"], Any]:
    """Replaces `_rnn_scan`; the second is what the module keeps, unchanged."""
    if tree_pass is None:
        result, state = own(hidden_states, recurrent_gate, reset, None)
        layer.update_recurrent_state(state)
        return result, recurrent_states
    start = hidden_states[:, 0].float().mul(0)
    return scan_levels(layer, _step, start, hidden_states, recurrent_gate * ~reset), recurrent_states


def _step(
    inputs: Float[Tensor, "M channels"], gates: Float[Tensor, "M channels"], states: Float[Tensor, "M channels"]
) -> tuple[Float[Tensor, "M channels"], Float[Tensor, "M channels"]]:
    states = gates.float() * states + inputs.float()
    return states.to(inputs.dtype), states
