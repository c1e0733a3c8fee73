"""What is told of a step once it is verified."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.protocols.scorers import Scores
from treespec.tree import TreeBatch, Verdict


@dataclass(frozen=True)
class VerifiedStep:
    """One verified step, as drafters and statistics see it. The history already holds the emitted tokens."""

    trees: TreeBatch
    verdicts: list[Verdict]
    scores: Scores
    emitted: list[list[int]]
    """Tokens appended to each row: the accepted draft tokens and the next token, cut where generation stopped."""
