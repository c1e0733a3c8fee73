"""What a step of given trees costs: given tables, or fitted to measured steps of other trees on other prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

HEAD, RECYCLING, SUFFIX = range(3)
DRAFTERS = {"merged": (HEAD, RECYCLING, SUFFIX), "head": (HEAD,), "lookups": (RECYCLING, SUFFIX)}
"""The parts of each drafter."""


@dataclass(frozen=True)
class Costs:
    """Milliseconds.

    Attributes:
        pass_ms: of a pass over so many nodes, everything else in a step but drafting included.
        draft_ms: by part, of a draft, of each of its draft passes, of each of its nodes.
        merge_ms: of each node of a merged tree.
    """

    pass_ms: Mapping[int, float]
    draft_ms: Mapping[int, tuple[float, float, float]]
    merge_ms: float = 0.0

    def of_pass(self, num_nodes: int) -> float:
        """Beyond the last entry along the last slope."""
        nodes, times = list(self.pass_ms), list(self.pass_ms.values())
        slope = (times[-1] - times[-2]) / (nodes[-1] - nodes[-2])
        return float(np.interp(num_nodes, nodes, times)) + slope * max(num_nodes - nodes[-1], 0)

    @property
    def level_share(self) -> float:
        """A draft pass of the head by a pass of the target over one node."""
        return self.draft_ms.get(HEAD, (0.0, 0.0, 0.0))[1] / self.of_pass(1)


EXAMPLE = Costs(
    pass_ms={1: 60.0, 2: 64.0, 4: 66.0, 8: 72.0, 16: 85.0, 32: 120.0, 64: 200.0},
    draft_ms={HEAD: (3.0, 6.0, 0.1), RECYCLING: (0.4, 0.0, 0.02), SUFFIX: (0.6, 0.0, 0.03)},
    merge_ms=0.05,
)
"""About what SmolLM2-135M takes on two cores: for comparisons that need no more than a plausible table."""


@dataclass(frozen=True)
class MeanStep:
    """Means over the steps of a run: what was drafted, and the milliseconds that it took."""

    num_nodes: float
    num_passes: float
    draft_ms: float
    rest_ms: float


def fit_passes(profile: Mapping[int, float], steps: Sequence[MeanStep]) -> dict[int, float]:
    """A profile of passes scaled to what steps took besides drafting: one factor and a constant, neither negative."""
    nodes, times = list(profile), list(profile.values())
    shape = [float(np.interp(step.num_nodes, nodes, times)) for step in steps]
    features = np.array([[ms, 1.0] for ms in shape])
    (factor, constant), _ = nnls(features, np.array([step.rest_ms for step in steps]))
    return {count: factor * ms + constant for count, ms in profile.items()}


def fit_draft(steps: Sequence[MeanStep], has_passes: bool) -> tuple[float, float, float]:
    """The time of a draft, a draft pass and a node, none negative."""
    features = np.array([[1.0, step.num_passes * has_passes, step.num_nodes] for step in steps])
    found, _ = nnls(features, np.array([step.draft_ms for step in steps]))
    start, level, node = found.tolist()
    return start, level, node


def fit_merge(costs: Costs, predicted_ms: Sequence[float], steps: Sequence[MeanStep]) -> Costs:
    """The costs of parts with the time per merged node that drafts took beyond them."""
    beyond = sum(step.draft_ms for step in steps) - sum(predicted_ms)
    return replace(costs, merge_ms=max(beyond / sum(step.num_nodes for step in steps), 0.0))
