"""Attention of few queries on a CPU by one function, for the models that `optimize` serves.

The queries of a group of heads are the lanes of vectors: a tree's nodes are scored, normalised and summed with neither
copies of keys and values nor sums across a vector.
"""

import ctypes
import functools
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.cpu.native import load_library


class NativeAttention:
    """The compiled attention.

    Raises `NativeError`: it cannot be compiled or loaded here.
    """

    def __init__(self, folder: Path) -> None:
        library = load_library(folder)
        library.treespec_columns.restype = ctypes.c_int64
        self._columns = int(library.treespec_columns())
        self._functions = {
            torch.float32: library.treespec_attention,
            torch.bfloat16: library.treespec_attention_bfloat16,
        }
        for function in self._functions.values():
            function.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_float, ctypes.c_int32]
            function.restype = None

    def serves(
        self, query: Float[Tensor, "B A F d"], key: Float[Tensor, "B G S d"], value: Float[Tensor, "B G S d"]
    ) -> bool:
        """Whether dtype, size of the heads and strides are such as the function reads."""
        states = (query, key, value)
        is_known = query.dtype in self._functions and query.shape[-1] % self._columns == 0
        if not is_known or any(s.dtype != query.dtype or not s.is_cpu or s.stride(-1) != 1 for s in states):
            return False
        steps = (step for s in states for step in (*s.stride()[:3], s.storage_offset()))
        return query.dtype == torch.float32 or all(step % 2 == 0 for step in steps)  # bfloat16 is read in pairs.

    def as_panels(self, mask: Float[Tensor, "B 1 F S"], num_groups: int) -> Float[Tensor, "B panels S columns"]:
        """An additive mask as the function reads it, for this many query heads per key head."""
        queries = mask[:, 0].repeat(1, num_groups, 1)
        padded = torch.nn.functional.pad(queries, (0, 0, 0, -queries.shape[1] % self._columns))
        return padded.unflatten(1, (-1, self._columns)).transpose(2, 3).contiguous()

    def run(
        self,
        query: Float[Tensor, "B A F d"],
        key: Float[Tensor, "B G S d"],
        value: Float[Tensor, "B G S d"],
        panels: Float[Tensor, "B panels S columns"] | None,
        scale: float,
    ) -> Float[Tensor, "B F A d"]:
        """What the queries read, in their dtype by float32 sums; a query that may attend to nothing reads zeros."""
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


@functools.cache
def native_attention(folder: Path) -> NativeAttention:
    """The attention, compiled once per machine into `folder`. Raises `NativeError`: it cannot be compiled or loaded."""
    return NativeAttention(folder)
