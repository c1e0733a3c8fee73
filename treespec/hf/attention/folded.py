"""Attention of few queries without expanded keys and values: grouped query heads become rows of their key's head.

With g query heads per key head, PyTorch's CPU attention needs keys and values copied g times; at a few nodes and a few
hundred slots the copies cost more than the attention. Here queries [B, G * g, F, d] are read as [B, G, g * F, d] and
attended in one call of the same kernel, with the mask repeated g times: the sums are the same. Models that
`treespec.optimize` serves attend by its native function, which reads a mask in an order of its own.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from treespec.hf.introspect import CACHE_ARGUMENTS

NAME = "treespec_folded"
"""The value of `config._attn_implementation` while a pass runs."""

_KNOWN_ARGUMENTS = frozenset({"position_ids", *CACHE_ARGUMENTS, "use_cache", "output_hidden_states", "sliding_window"})
"""Arguments that sdpa does not read either; with any other one that is set, sdpa itself is called."""


class ServingAttention(Protocol):
    """Attention of few queries, with a mask as it reads it."""

    def serves(
        self, query: Float[Tensor, "B A F d"], key: Float[Tensor, "B G S d"], value: Float[Tensor, "B G S d"]
    ) -> bool:
        """Whether it takes such states."""
        ...

    def as_panels(self, mask: Float[Tensor, "B 1 F S"], num_groups: int) -> Float[Tensor, "B _ S _"]:
        """An additive mask as it reads it, for this many query heads per key head."""
        ...

    def run(
        self,
        query: Float[Tensor, "B A F d"],
        key: Float[Tensor, "B G S d"],
        value: Float[Tensor, "B G S d"],
        panels: Float[Tensor, "B _ S _"] | None,
        scale: float,
    ) -> Float[Tensor, "B F A d"]:
        """The queries' attention outputs; `panels` as from `as_panels`, None: no mask."""
        ...


_served: WeakKeyDictionary[nn.Module, ServingAttention] = WeakKeyDictionary()


def serve_attention(model: nn.Module, attention: ServingAttention) -> None:
    """Let tree passes of a model attend by this one, until `leave_attention`."""
    _served[model] = attention


def leave_attention(model: nn.Module) -> None:
    """Undo `serve_attention`; a model that is not served is left unchanged."""
    _served.pop(model, None)


class _Pass:
    """The state of one pass: its masks, and the native attention that serves its model."""

    def __init__(self, native: ServingAttention | None = None) -> None:
        self.native = native
        self.masks: dict[tuple[int, int, bool], tuple[Tensor, Tensor]] = {}
        """By a mask's id, the query heads per key head and who reads it: the mask, so that its id stays its own, and
        what was made of it."""


_lock = threading.Lock()
_num_passes: dict[int, int] = {}
_local = threading.local()


def plain_implementation(text: PreTrainedConfig) -> str:
    """The name of a model's own attention implementation, also while another thread runs a folded pass."""
    name = getattr(text, "_attn_implementation", None) or "eager"
    return "sdpa" if name == NAME else name


class FoldedAttention:
    """Runs the passes of one model with folded attention; a model it does not serve runs unchanged.

    Served are models on the CPU that use transformers' attention interface with `sdpa`. Calls of their layers that need
    more than a mask (sinks, soft caps, position biases, heads of unequal sizes) go to `sdpa` itself, as do passes of
    other threads.
    """

    def __init__(self, model: PreTrainedModel, modules: Mapping[str, nn.Module] | None = None) -> None:
        self._model, self._config = model, model.config.get_text_config()
        found = model.modules() if modules is None else modules.values()
        weights = (weight for one in found for weight in one._parameters.values() if weight is not None)
        is_on_cpu = all(weight.device.type == "cpu" for weight in weights)
        # Models without this mark choose their attention's code themselves, by the name that is to be replaced.
        has_interface = getattr(model, "_supports_attention_backend", False)
        self.is_supported = is_on_cpu and has_interface and plain_implementation(self._config) == "sdpa"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside this context the model's passes in this thread use folded attention."""
        if not self.is_supported:
            yield
            return
        config = self._config
        outer = getattr(_local, "current", None)
        with _lock:
            _num_passes[id(config)] = _num_passes.get(id(config), 0) + 1
            # The property's setter would change the configurations of a model's other parts too.
            config._attn_implementation_internal = NAME
        _local.current = _Pass(_served.get(self._model))
        try:
            yield
        finally:
            _local.current = outer
            with _lock:
                _num_passes[id(config)] -= 1
                if _num_passes[id(config)] == 0:
                    del _num_passes[id(config)]
                    config._attn_implementation_internal = "sdpa"


def folded_attention(
    module: nn.Module,
    query: Float[Tensor, "_ A F _"],
    key: Float[Tensor, "_ G K _"],
    value: Float[Tensor, "_ G K _"],
    attention_mask: Shaped[Tensor, "..."] | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "_ F A _"], None]:
    """transformers' attention interface, A = G * g. What is shaped otherwise goes to `sdpa`."""
    current: _Pass | None = getattr(_local, "current", None)
    if current is None or not _can_fold(query, key, value, attention_mask, dropout, kwargs):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
    num_rows, num_heads, num_nodes, size = query.shape
    num_groups = num_heads // key.shape[1]
    native = current.native
    # One node would leave most SIMD lanes idle.
    if native is not None and num_nodes > 1 and native.serves(query, key, value):
        panels = None if attention_mask is None else _made_of(attention_mask, num_groups, query.dtype, current, native)
        return native.run(query, key, value, panels, size**-0.5 if scaling is None else scaling), None
    folded = query.reshape(num_rows, key.shape[1], num_groups * num_nodes, size)
    mask = None if attention_mask is None else _made_of(attention_mask, num_groups, query.dtype, current)
    output = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return output.view(num_rows, num_heads, num_nodes, size).transpose(1, 2).contiguous(), None


def _can_fold(
    query: Float[Tensor, "_ A F _"],
    key: Float[Tensor, "_ G K _"],
    value: Float[Tensor, "_ G K _"],
    mask: Shaped[Tensor, "..."] | None,
    dropout: float,
    kwargs: dict[str, Any],
) -> bool:
    is_set = (kwargs[name] is not None and kwargs[name] is not False for name in kwargs.keys() - _KNOWN_ARGUMENTS)
    if dropout or any(is_set):
        return False
    is_grouped = query.shape[1] % key.shape[1] == 0 and query.shape[0] == key.shape[0]
    if not is_grouped or not query.shape[-1] == key.shape[-1] == value.shape[-1] or key.shape != value.shape:
        return False
    if mask is None:
        return query.shape[2] == 1  # A longer query without a mask is causal.
    return mask.ndim == 4 and tuple(mask.shape[1:]) == (1, query.shape[2], key.shape[2])


def _made_of(
    mask: Shaped[Tensor, "B 1 F K"],
    num_groups: int,
    dtype: torch.dtype,
    current: _Pass,
    native: ServingAttention | None = None,
) -> Float[Tensor, "B _ _ _"]:
    """A mask for folded queries, made once per pass, not per layer: [B, 1, g F, K], or as native attention reads it."""
    key = (id(mask), num_groups, native is not None)
    if key not in current.masks:
        if native is None:
            made = _additive(mask, dtype).repeat(1, 1, num_groups, 1)  # PyTorch converts a bool one in every layer.
        else:
            made = native.as_panels(_additive(mask, torch.float32), num_groups)
        current.masks[key] = mask, made
    return current.masks[key][1]


def _additive(mask: Shaped[Tensor, "B 1 F K"], dtype: torch.dtype) -> Float[Tensor, "B 1 F K"]:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


ALL_ATTENTION_FUNCTIONS.register(NAME, folded_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
