"""Faster linear layers on CPUs: packed weights, and the fastest kernel by number of rows."""

from treespec.hf.cpu.optimized_model import OptimizedModel, optimize, restore
from treespec.hf.cpu.packed import prepack_linears

__all__ = ["OptimizedModel", "optimize", "prepack_linears", "restore"]
