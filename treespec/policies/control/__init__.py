"""Measured control: what to draft at every step, from what passes cost and what was accepted."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.policies.control.contract import CallFacts, Choice, StepControl
    from treespec.policies.control.control import Control

__all__ = ["CallFacts", "Choice", "Control", "StepControl"]
__getattr__, __dir__ = lazy(__name__, {"contract": "CallFacts Choice StepControl", "control": "Control"})
