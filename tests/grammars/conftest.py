"""The models that most tests of `generate` decode with."""

from helpers.pair import draft, target

__all__ = ["draft", "target"]
