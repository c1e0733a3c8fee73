"""Measured control: what to draft at every step, from what passes cost and what was accepted."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.policies.control.contract import StepControl as StepControl
    from treespec.policies.control.control import Control as Control

__getattr__, __dir__, __all__ = lazy(__name__)
