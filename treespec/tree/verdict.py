"""The verdict on one tree."""

from __future__ import annotations

from typing import NamedTuple

from treespec.tree.paths import Path


class Verdict(NamedTuple):
    """What a verification rule decided about one tree."""

    path: Path
    """The accepted node ids from the root, root included."""
    next_token: int
    """The token that follows the path, drawn from what is left of the target distribution."""
    is_bonus: bool
    """True for a bonus token (drawn at a leaf), False for a residual token (every child of the path's last node was
    rejected)."""

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens: the path without its root."""
        return len(self.path) - 1
