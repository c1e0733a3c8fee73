"""`Control`: the candidate with the most predicted tokens per second at every step, from measured times and acceptance.

A step's rate is (1 + accepted tokens) / (draft + pass); both sides are estimated from verified steps only, so what is
drafted depends on the past and the output distribution is untouched. Trees of selected children also stop at the level,
and are cut to the nodes, that are worth their time: which ones depends on the draft's probabilities alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from treespec.checks import ShowsOptions, check_count, check_number
from treespec.errors import ConfigError
from treespec.policies.control.candidates import ACCELERATOR_SIZE, TREE_SIZES, Candidates, StoppedBestFirst
from treespec.policies.control.contract import MOST_AHEAD, CallFacts, Choice, StepControl
from treespec.policies.control.drafted import DraftedTrees
from treespec.policies.control.learned import Learned
from treespec.policies.control.times import MOST_NODES
from treespec.protocols import TreePolicy, VerifiedStep
from treespec.tree import TreeBatch

CUT_MS = 0.1
"""What it takes to cut a tree."""
MANY_UNREAD = 16
"""Tokens per row: where a drafter has to read more, a draft's time is mostly reading, and teaches that time only."""
EXPLORED_SHARE = 0.5
"""In exploring steps the gain that is required of another level is multiplied by this."""
NEXT_LEVEL_SHARE = 0.7
"""A level is expected to gain this share of what the last one gained."""


class Forecast(NamedTuple):
    """A candidate's prediction per row: tokens per second, milliseconds and emitted tokens of a step."""

    tokens_per_second: float
    step_ms: float
    tokens_per_pass: float


class Control(ShowsOptions, StepControl):
    """Chooses between plain decoding, chains and best-first trees at every step, by measured time and acceptance.

    What was learned stays from call to call. A call that samples with a seed learns nothing from other calls and reads
    no clock: its times are those of the profile, so that the same seed gives the same output.

    Args:
        max_nodes: the most nodes of a tree, root included; None: 32, on accelerators 64.
        max_latency_ms: the longest predicted step; plain decoding where even that takes longer.
        is_timed: learn times from the steps served; None: unless the call samples with a seed. False makes choices
            depend on nothing but the profile and the texts.
        pass_ms: milliseconds of the target's pass by number of nodes; None: measured once per model and machine and
            kept in the user's cache folder.

    Raises:
        ConfigError: a number out of range, `pass_ms` without times.
    """

    def __init__(
        self,
        max_nodes: int | None = None,
        max_latency_ms: float | None = None,
        is_timed: bool | None = None,
        pass_ms: Mapping[int, float] | None = None,
    ) -> None:
        self._max_nodes = None if max_nodes is None else min(check_count("max_nodes", max_nodes), MOST_NODES)
        self.max_latency_ms = max_latency_ms
        if max_latency_ms is not None:
            check_number("max_latency_ms", max_latency_ms, lambda ms: ms > 0, "be positive")
        self.is_timed, self.pass_ms = is_timed, pass_ms
        if pass_ms is not None:
            if not isinstance(pass_ms, Mapping) or not pass_ms:
                raise ConfigError(f"pass_ms must be milliseconds by number of nodes, as {{1: 30.0}}, got {pass_ms!r}")
            for nodes, ms in pass_ms.items():
                check_count("a number of nodes in pass_ms", nodes)
                check_number("a time in pass_ms", ms, lambda ms: ms > 0, "be positive")
        self._learned_by_call: dict[tuple, Learned] = {}
        self._drafter: Any = None
        self._is_selecting = False
        self.begin(CallFacts(None))

    @property
    def max_nodes(self) -> int:
        """See `TreePolicy`."""
        return self._max_nodes or MOST_NODES

    @property
    def given_max_nodes(self) -> int | None:
        """The argument `max_nodes`."""
        return self._max_nodes

    @property
    def needs_pass_times(self) -> bool:
        """See `StepControl`."""
        return self.pass_ms is None

    def begin(self, call: CallFacts) -> None:
        """See `StepControl`."""
        if call.is_repeatable or call.drafter is not self._drafter:
            self._is_selecting = False
        if call.drafter is not self._drafter and not call.is_repeatable:
            self._learned_by_call, self._drafter = {}, call.drafter
        self._call, self._repeatable = call, dict[tuple, Learned]()
        self._learned = self._learned_of_call()
        self._learned.num_repeats = 0
        self._is_timed = not call.is_repeatable if self.is_timed is None else self.is_timed
        self._drafted: DraftedTrees | None = None
        self._size, self._curve = (1, 1), self._learned.passes.curve(1, 1)
        self._num_unread: int | None = None  # Tokens of a row that the drafter has not read; all at first.
        self.current: TreePolicy = self._learned.first_policy
        self.choice, self.tokens_per_ms = Choice("plain", "no step yet", {}), 0.0

    def forecasts(self) -> dict[str, Forecast]:
        """What is expected of every candidate in steps like the last one, by name."""
        accepted = self._learned.acceptance.expected()[0]
        rates, times, _ = self._learned.predict(self._size[0], self._curve, 0.0)
        numbers = zip(1e3 * rates, times, 1 + accepted, strict=True)
        names = self._learned.candidates.names
        return {name: Forecast(*map(float, row)) for name, row in zip(names, numbers, strict=True)}

    def _learned_of_call(self) -> Learned:
        """What is known of such calls; of one that must be repeatable, what it has learned itself."""
        call, profile = self._call, self._call.pass_ms if self.pass_ms is None else self.pass_ms
        is_sampled = call.is_sampling and not self._is_selecting
        found = self._repeatable if call.is_repeatable else self._learned_by_call
        key = (call.is_sampling, is_sampled, call.is_chain_only, call.is_on_host, *(profile or {}).items())
        if key not in found:
            most = self._max_nodes or (TREE_SIZES[-1] if call.is_on_host else ACCELERATOR_SIZE)
            found[key] = Learned(Candidates(most, call.is_chain_only, is_sampled), profile, call.draft_share)
        return found[key]

    def choose(self, num_rows: int, context: int, room: int = MOST_AHEAD) -> bool:
        """See `StepControl`."""
        learned = self._learned
        self._drafted = None
        if room and num_rows == self._size[0] and learned.repeats_plain():
            self._size = num_rows, context
            self._num_unread = (self._num_unread or 0) + 1
            return False
        self._size = num_rows, context
        self._curve = learned.passes.curve(num_rows, context)
        self._num_read = num_rows * (context if self._num_unread is None else self._num_unread)
        reading_ms = learned.reading.predict(self._num_read)
        rates, times, draft_ms = learned.predict(num_rows, self._curve, reading_ms / max(min(room, MOST_AHEAD), 1))
        number, is_exploring, reason = 0, False, "no room for a draft"
        if room:
            is_known = not self._is_timed or learned.passes.is_plain_known(num_rows, context)
            number, is_exploring, reason = learned.decide(
                rates, times, self.max_latency_ms, reading_ms, num_rows, is_known
            )
        self._chosen, self._rate, self._draft_ms = number, float(rates[number]), float(draft_ms[number])
        self.tokens_per_ms = self._rate if self._is_timed and self._call.is_alone and not is_exploring else 0.0
        names, policy = learned.candidates.names, learned.candidates.policies[number]
        self.choice = Choice(names[number], reason, dict(zip(names, (1e3 * rates).tolist(), strict=True)))
        self._num_unread = 0 if policy is not None else self._num_read // num_rows + 1
        if policy is None:
            return False
        if isinstance(policy, StoppedBestFirst):
            level_ms = learned.drafts(num_rows).level_ms
            share = EXPLORED_SHARE if is_exploring else 1.0
            policy.least_gain = share * self._rate * level_ms / NEXT_LEVEL_SHARE
            policy.num_passes = 0
        self.current = policy
        return True

    def trim(self, trees: TreeBatch) -> TreeBatch:
        """Keep the nodes that are worth the time to verify them, in trees of selected children with values."""
        is_selected = trees.draft_probs is None and trees.values is not None and trees.max_nodes > 1
        if is_selected and self._call.is_sampling and not self._is_selecting:
            self._is_selecting, self._learned = True, self._learned_of_call()  # Learns from the next step on.
            return trees
        drafted = self._drafted = self._learned.acceptance.read(trees)
        self._is_trimming = is_selected
        most = trees.max_nodes - 1
        num_kept = self._num_kept(drafted) if self._is_trimming else most
        if num_kept == most:
            return trees
        return trees.select_nodes([[0, *sorted(row)] for row in drafted.order[:, :num_kept].tolist()])

    def _num_kept(self, drafted: DraftedTrees) -> int:
        """The number of nodes below the roots that gains most tokens, less what its time is worth; the best ones."""
        num_rows, most = len(drafted.probs), len(drafted.probs[0])
        gains = np.zeros(most + 1)
        drafted.probs.sum(0).cumsum(out=gains[1:])
        cost = self._curve.take(np.arange(1, most + 2), mode="clip")
        if self.max_latency_ms is not None:
            gains[1:][cost[1:] + self._draft_ms > self.max_latency_ms] = -1.0
        tokens_per_ms = num_rows * self._rate
        profits = gains - tokens_per_ms * cost
        best = int(profits.argmax())
        return best if profits[best] - profits[most] > tokens_per_ms * CUT_MS else most

    def update(self, step: VerifiedStep) -> None:
        """See `LearningPolicy`."""
        drafted = self._drafted
        if drafted is None:
            return
        self._learned.update(len(step.emitted[0]) - 1)
        loss = self._rate if self._is_trimming else 0.0
        self._learned.acceptance.update(drafted, step.emitted, self._chosen, self._num_passes(), self._curve, loss)

    def update_times(self, trees: TreeBatch, draft_ms: float, other_ms: float) -> None:
        """See `StepControl`."""
        if not self._is_timed:
            return
        num_rows, context = self._size
        self._learned.passes.update(num_rows, context, trees.max_nodes, other_ms)
        if self._drafted is not None:
            nodes, drafts = int(self._drafted.num_nodes.sum()), self._learned.drafts(num_rows)
            if self._num_read > MANY_UNREAD * num_rows:  # What that took says little of drafting.
                expected_ms = drafts.of_step(self._num_passes(), nodes)
                self._learned.reading.update(self._num_read, draft_ms - expected_ms)
            else:
                drafts.update(self._num_passes(), nodes, draft_ms)

    def _num_passes(self) -> int:
        """Draft passes of the last step; of chains the levels."""
        if isinstance(self.current, StoppedBestFirst):
            return self.current.num_passes
        return 0 if self._drafted is None else int(self._drafted.depths.max())
