"""Attention of few queries on a CPU by one function, for the models that `optimize` serves.

The queries of a group of heads are the lanes of vectors: a tree's nodes are scored, normalised and summed with neither
copies of keys and values nor sums across a vector.
"""

import ctypes
import functools
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from treespec.cpu.native import NativePart
from treespec.heads.modules.layers import Attention, KeyValueCache, Mask
from treespec.heads.modules.rotary import Rotation


class NativeAttention(NativePart):
    """The compiled attention."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        library = self._library
        self._functions = {
            torch.float32: library.treespec_attention,
            torch.bfloat16: library.treespec_attention_bfloat16,
        }
        self._rotate, self._mask = library.treespec_rotate, library.treespec_mask

    def serves(
        self, query: Float[Tensor, "B A F d"], key: Float[Tensor, "B G S d"], value: Float[Tensor, "B G S d"]
    ) -> bool:
        """Whether dtype, size of the heads and strides are such as the function reads."""
        states = (query, key, value)
        is_known = query.dtype in self._functions and self.serves_size(query.shape[-1])
        if not is_known or any(s.dtype != query.dtype or not s.is_cpu or s.stride(-1) != 1 for s in states):
            return False
        steps = (step for s in states for step in (*s.stride()[:3], s.storage_offset()))
        return query.dtype == torch.float32 or all(step % 2 == 0 for step in steps)  # bfloat16 is read in pairs.

    def serves_size(self, size: int) -> bool:
        """Whether heads of this size are whole vectors."""
        return size % self._columns == 0

    def as_panels(
        self, mask: Float[Tensor, "B 1 F S"] | Bool[Tensor, "B 1 F S"], num_groups: int
    ) -> Float[Tensor, "B panels S columns"]:
        """A mask, additive or of seen keys, as the function reads it, for this many query heads per key head."""
        if mask.dtype == torch.bool:
            return self._bool_panels(mask.contiguous(), num_groups)
        queries = mask[:, 0].repeat(1, num_groups, 1)
        padded = torch.nn.functional.pad(queries, (0, 0, 0, -queries.shape[1] % self._columns))
        return padded.unflatten(1, (-1, self._columns)).transpose(2, 3).contiguous()

    def _bool_panels(self, seen: Bool[Tensor, "B 1 F S"], num_groups: int) -> Float[Tensor, "B panels S columns"]:
        num_rows, _, num_nodes, num_slots = seen.shape
        num_queries = num_groups * num_nodes
        shape = (num_rows, -(-num_queries // self._columns), num_slots, self._columns)
        panels = torch.zeros(shape, dtype=torch.float32, device="cpu")
        self._mask(seen.data_ptr(), panels.data_ptr(), num_rows, num_nodes, num_slots, num_queries)
        return panels

    def run(
        self,
        query: Float[Tensor, "B A F d"],
        key: Float[Tensor, "B G S d"],
        value: Float[Tensor, "B G S d"],
        panels: Float[Tensor, "B panels S columns"] | None,
        scale: float,
    ) -> Float[Tensor, "B F A d"]:
        """Outputs of the queries, in their dtype by float32 sums; zeros for a query that may attend to nothing."""
        num_rows, num_heads, num_nodes, size = query.shape
        num_groups, num_slots = key.shape[1:3]
        outputs = query.new_empty(num_rows, num_nodes, num_heads, size)
        strides = (stride for state in (query, key, value) for stride in state.stride()[:3])
        mask_step = 0 if panels is None or len(panels) == 1 else panels.stride(0)
        shape = (ctypes.c_int64 * 16)(num_rows, num_groups, num_heads, num_nodes, num_slots, size, mask_step, *strides)
        mask = None if panels is None else panels.data_ptr()
        states = query.data_ptr(), key.data_ptr(), value.data_ptr()
        self._functions[query.dtype](*states, mask, outputs.data_ptr(), shape, scale, torch.get_num_threads())
        return outputs

    def rotate(self, states: Float[Tensor, "B F heads d"], rotation: Rotation, num_heads: int) -> None:
        """Rotate the first heads of contiguous float32 states in place."""
        cos, sin = (angles.expand(len(states), -1, -1, -1).contiguous() for angles in rotation)
        num_rows, num_tokens, _, size = states.shape
        pointers = states.data_ptr(), cos.data_ptr(), sin.data_ptr()
        self._rotate(*pointers, num_rows * num_tokens, states.stride(1), num_heads, size, cos.shape[-1])


class FastAttention:
    """Replaces the `forward` of a head's attention; calls that it does not serve run as they would without it."""

    def __init__(self, module: Attention, native: NativeAttention) -> None:
        self._module, self._native = module, native

    def __call__(self, states: Tensor, rotation: Rotation, mask: Mask, cache: KeyValueCache) -> Tensor:
        module, native = self._module, self._native
        is_plain = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        if is_plain or callable(mask) or states.dtype != torch.float32 or not states.is_cpu:
            return Attention.forward(module, states, rotation, mask, cache)
        num_heads, num_groups, size = module.num_heads, module.num_key_heads, module.head_dim
        projected = module.qkv_proj(states).unflatten(-1, (-1, size))
        native.rotate(projected, rotation, num_heads + num_groups)
        queries, keys, values = projected.transpose(1, 2).split([num_heads, num_groups, num_groups], 1)
        keys, values = cache.extend(module.index, keys, values)
        panels = native.as_panels(mask, num_heads // num_groups) if isinstance(mask, Tensor) else None
        return module.o_proj(native.run(queries, keys, values, panels, size**-0.5).flatten(2))


def serve_heads(model: nn.Module, native: NativeAttention) -> None:
    """Run the attention of a head's layers, without norms of their heads and without sinks, until `restore`."""
    for module in model.modules():
        if not isinstance(module, Attention):
            continue
        is_plain = module.q_norm is None and module.attention_sink_bias is None
        if is_plain and native.serves_size(module.head_dim):
            vars(module)["forward"] = FastAttention(module, native)


native_attention = functools.cache(NativeAttention)
"""One for a folder, into which the library is compiled once per machine."""
