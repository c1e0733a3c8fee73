"""Measured control: what to draft at every step, from what passes cost and what was accepted."""

from treespec.policies.control.control import Call, Choice, Control

__all__ = ["Call", "Choice", "Control"]
