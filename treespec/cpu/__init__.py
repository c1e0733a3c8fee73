"""Faster linear layers on CPUs: packed weights, and the fastest kernel by number of rows."""

from treespec.cpu.optimized_model import OptimizedModel, optimize, prepack_linears, restore

__all__ = ["OptimizedModel", "optimize", "prepack_linears", "restore"]
