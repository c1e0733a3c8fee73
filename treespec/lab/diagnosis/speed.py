"""How long a step takes and how fast a run is, compared with plain decoding, now and with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from treespec.lab.diagnosis.evidence import Evidence

LONGEST_DRAFT = 64
"""Tokens of the longest perfect draft that is considered."""


class Passes:
    """Milliseconds of the target's pass over n nodes: the measured curve, scaled to the passes of the run."""

    def __init__(self, pass_ms: Mapping[int, float], mean_nodes: float, mean_ms: float) -> None:
        points = sorted(pass_ms.items())
        self._nodes, measured = np.array([n for n, _ in points], float), np.array([ms for _, ms in points])
        # A pass over fewer nodes takes no longer: what says otherwise was measured while the machine was busy.
        self._ms = np.minimum.accumulate(measured[::-1])[::-1]
        self.scale = 1.0
        self.scale = mean_ms / self(mean_nodes)

    def __call__(self, nodes: float) -> float:
        slope = 0.0
        if len(self._nodes) > 1:
            slope = max(self._ms[-1] - self._ms[-2], 0.0) / (self._nodes[-1] - self._nodes[-2])
        inside = float(np.interp(nodes, self._nodes, self._ms))
        return self.scale * (inside + slope * max(nodes - self._nodes[-1], 0.0))


@dataclass(frozen=True)
class Speed:
    """A run's mean step in milliseconds, and what it emits.

    Plain decoding is modelled as a pass over one node per row with the same processors, stopping and streaming per
    token.
    """

    draft: float
    target: float
    verify: float
    commit: float
    other: float
    prefill: float
    """Per step, so that short answers have much of it."""
    tokens: float
    """Per row and step."""
    plain_pass: float
    plain_host: float
    """Per token of plain decoding, without the pass."""

    @property
    def step(self) -> float:
        """Without the prefill."""
        return self.draft + self.target + self.verify + self.commit + self.other

    @property
    def plain(self) -> float:
        """Milliseconds per token."""
        return self.plain_pass + self.plain_host

    @property
    def speedup(self) -> float:
        """Times as fast as plain decoding, prompts included."""
        return (self.prefill + self.tokens * self.plain) / (self.prefill + self.step)

    @property
    def decoding_speedup(self) -> float:
        """Without reading the prompt."""
        return self.tokens * self.plain / self.step

    def but(self, **changes: float) -> float:
        """The speed-up with some of the numbers changed."""
        return replace(self, **changes).speedup


def speed_of(run: Evidence, passes: Passes) -> Speed:
    steps, tokens = run.num_steps, run.tokens_per_step
    verify, commit = run.ms["verify"] / steps, run.ms["commit"] / steps
    return Speed(
        draft=run.ms["draft"] / steps,
        target=run.ms["target"] / steps,
        verify=verify,
        commit=commit,
        other=run.ms["other"] / steps,
        prefill=run.ms["prefill"] / steps,
        tokens=tokens,
        plain_pass=passes(run.rows_per_step),
        plain_host=(verify + commit) / tokens,
    )


def perfect_speedup(speed: Speed, passes: Passes, num_rows: float) -> float:
    """With drafts that are always right and cost nothing, of the best length."""
    best = 0.0
    for length in range(1, LONGEST_DRAFT + 1):
        tokens = length + 1
        host = speed.plain_host * tokens
        prefill = speed.prefill * tokens / speed.tokens
        pass_ms = passes(num_rows * tokens)
        best = max(best, (prefill + tokens * speed.plain) / (prefill + pass_ms + host))
    return best
