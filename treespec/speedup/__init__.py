"""One line to the fastest speculation that is at hand for a model."""

from treespec.speedup.sped_up import SpedUp, speed_up

__all__ = ["SpedUp", "speed_up"]
