"""One line to the fastest speculation that is at hand for a model, and the memory that it takes."""

from treespec.speedup.memory import Memory, estimate_memory
from treespec.speedup.sped_up import SpedUp, speed_up

__all__ = ["Memory", "SpedUp", "estimate_memory", "speed_up"]
