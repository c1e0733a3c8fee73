"""What a cause is, and what counts as attainable instead: a convention, what well-chosen settings usually reach.

A cause counts where its removal makes the run at least `LEAST_GAIN` times as fast.
"""

from dataclasses import dataclass

LEAST_GAIN = 1.15
USUAL_ACCEPTANCE = 0.6
"""The acceptance of a good drafter's children below an accepted node, at every depth."""
LOW_ACCEPTANCE = 0.4
USUAL_DRAFT, EXPENSIVE_DRAFT = 0.25, 0.5
"""The time of drafting, in passes of the target over one node per row."""
USUAL_HOST, EXPENSIVE_HOST = 0.1, 0.3
"""The time of the host's other work, of processors, and of a rule: each in plain passes too."""
FLAT = 1.4
"""A pass over a tree may take this many times a pass over one node."""
LARGE_BATCH = 4
LEAST_COUNT = 10
"""The fewest drafts from which a share is computed."""


@dataclass(frozen=True)
class Cause:
    """One thing that holds a run back.

    `name` is short and always the same; `evidence` has the numbers that speak for it; `change` is what to do;
    `speedup` is the run's speed with the change, in today's plain decoding.
    """

    name: str
    evidence: str
    change: str
    speedup: float
