"""The recurrence of RWKV-4 (arXiv 2305.13048) over trees, by levels; each node's inputs are mixed with its parent's.

transformers' model hands its states on as arguments, with shapes for one text. Passes of a scorer run without them: the
two functions that look back, the shift and the recurrence, read the layers of a cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache

from treespec.hf.recurrent.layers import OwnStates, StateLayer, TreePass
from treespec.hf.recurrent.levels import scan_levels
from treespec.hf.recurrent.nodes import TreeNodes, along
from treespec.hf.thread_patches import current, replaced

_LEAST = -1e38
"""The largest exponent of a state without tokens, as transformers has it."""


@dataclass
class _Run:
    """A pass over nodes or a prompt (None), and the layer that it is in: the one that shifted last."""

    nodes: TreeNodes | None
    layer: StateLayer | None = None


class WeightedKeyValueStates(OwnStates):
    """The blocks of an RWKV model."""

    calls = frozenset({"attention", "feed_forward", "ln1", "ln2"})

    def cache(self) -> Cache:
        return Cache(layers=[StateLayer(2) for _ in self._modules])

    @contextmanager
    def running(self, layers: Sequence[StateLayer], tree_pass: TreePass | None) -> Iterator[None]:
        run = _Run(None if tree_pass is None else tree_pass.nodes)
        base = self._model.base_model
        file: Any = sys.modules[type(base).__module__]
        with ExitStack() as stack:
            stateless = partial(_stateless, current(base, "forward"))
            stack.enter_context(replaced(base, "forward", stateless))
            own = current(file, "rwkv_linear_attention")
            recurrence = partial(_recurrence, run, own, file.rwkv_linear_attention_cpu)
            stack.enter_context(replaced(file, "rwkv_linear_attention", recurrence))
            for module, layer in zip(self._modules, layers, strict=True):
                block: Any = module
                for number, part in enumerate((block.attention, block.feed_forward)):
                    shift = partial(_shifted, run, layer, number, current(part.time_shift, "forward"))
                    stack.enter_context(replaced(part.time_shift, "forward", shift))
            yield


def _stateless(forward: Any, *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs | {"use_cache": False})


def _shifted(
    run: _Run, layer: StateLayer, number: int, own: Any, hidden: Float[Tensor, "B F H"]
) -> Float[Tensor, "B F H"]:
    """Replaces `time_shift`: every node gets its parent's hidden state in place of the token's before it."""
    run.layer, nodes = layer, run.nodes
    seen = layer.update_conv_state(hidden.transpose(1, 2), number, conv_kernel_size=1)
    if nodes is None:
        return own(hidden)
    return along(seen, nodes.windows(2)[..., 0] + 1, -1).transpose(1, 2)


def _recurrence(
    run: _Run,
    own: Any,
    step: Any,
    time_decay: Float[Tensor, " H"],
    time_first: Float[Tensor, " H"],
    key: Float[Tensor, "B F H"],
    value: Float[Tensor, "B F H"],
    **_: Any,
) -> tuple[Float[Tensor, "B F H"], None]:
    """Replaces `rwkv_linear_attention`; a layer's state are numerators, denominators and exponents [B, 3, H]."""
    assert run.layer is not None
    if run.nodes is None:
        result, state = own(time_decay, time_first, key, value, return_state=True)
        run.layer.update_recurrent_state(torch.stack(state, 1))
        return result, None
    start = key.new_zeros(len(key), 3, key.shape[2], dtype=torch.float32)
    start[:, 2] = _LEAST
    return scan_levels(run.layer, partial(_step, partial(step, time_decay, time_first)), start, key, value), None


def _step(
    step: Any, key: Float[Tensor, "M H"], value: Float[Tensor, "M H"], states: Float[Tensor, "M 3 H"]
) -> tuple[Float[Tensor, "M H"], Float[Tensor, "M 3 H"]]:
    result, state = step(key.unsqueeze(1), value.unsqueeze(1), state=states.unbind(1), return_state=True)
    return result.squeeze(1), torch.stack(state, 1).to(states.dtype)
