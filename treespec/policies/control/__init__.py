"""Measured control: what to draft at every step, from what passes cost and what was accepted."""

from treespec.policies.control.contract import CallFacts, Choice, StepControl
from treespec.policies.control.control import Control

__all__ = ["CallFacts", "Choice", "Control", "StepControl"]
