"""`Control`: the candidate with the most predicted tokens per second at every step, from measured times and acceptance.

A step's rate is (1 + accepted tokens) / (draft + pass); both sides are estimated from verified steps only, so what is
drafted depends on the past and the output distribution is untouched. Trees of selected children are also cut before
they are verified, to the nodes that are worth their time: which ones depends on the draft's probabilities alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from treespec.checks import ShowsOptions, check_count, check_number
from treespec.policies.best_first import BestFirst
from treespec.policies.control.acceptance import Acceptance, DraftedTree
from treespec.policies.control.candidates import ACCELERATOR_SIZE, PLAIN, TREE_SIZES, Candidates
from treespec.policies.control.times import MOST_NODES, DraftTimes, PassTimes
from treespec.protocols import DraftSource, TreePolicy, VerifiedStep
from treespec.tree import PADDING_PARENT, ROOT_PARENT, TreeBatch

LEAST_GAIN = 1.03
"""A draft must be predicted to be this many times as fast as plain decoding."""
FIRST_WAIT, LONGEST_WAIT = 8, 256
"""Plain steps before drafting is tried again, doubled while it does not pay."""
EXPLORED_EVERY, NEAR = 8, 0.85
"""Every so many drafts the largest candidate is taken whose predicted rate is at least this share of the best one's."""
MOST_LEARNED_ROWS = 1
"""Rows of a batch that a step is learned from, in turn: so that large batches cost no more."""


@dataclass(frozen=True)
class Choice:
    """What one step drafted and why.

    `name`: "plain", "chain of 4", "tree of 16", "tree of 16, depth 3". `tokens_per_second`: predicted, per row, by
    candidate; all candidates that the limits allow.
    """

    name: str
    reason: str
    tokens_per_second: Mapping[str, float]


@dataclass(frozen=True)
class Call:
    """What the control knows of a call before its first step.

    Args:
        drafter: what was learned about acceptance and draft times belongs to it.
        draft_share: the weights that a draft pass reads, as a share of the target's; 0 for lookups.
        pass_ms: the target's measured passes by number of nodes, None where nothing was measured.
        is_repeatable: the call must choose as any other call with its seed: from no earlier call, by no clock.
    """

    drafter: Any
    draft_share: float = 0.0
    pass_ms: Mapping[int, float] | None = None
    is_sampling: bool = False
    is_chain_only: bool = False
    is_on_host: bool = True
    is_repeatable: bool = False


class Control(ShowsOptions):
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

    Attributes:
        current: the policy that grows this step's trees.
        choice: of the last step.

    Raises:
        ConfigError: a number out of range.
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
            for nodes, ms in pass_ms.items():
                check_count("a number of nodes in pass_ms", nodes)
                check_number("a time in pass_ms", ms, lambda ms: ms > 0, "be positive")
        self._books: dict[tuple, _Books] = {}
        self._drafter: Any = None
        self.begin(Call(None))

    @property
    def max_nodes(self) -> int:
        """See `TreePolicy`."""
        return self._max_nodes or MOST_NODES

    def begin(self, call: Call) -> None:
        """A call begins."""
        if call.drafter is not self._drafter and not call.is_repeatable:
            self._books, self._drafter = {}, call.drafter
        books: dict[tuple, _Books] = {} if call.is_repeatable else self._books
        profile = call.pass_ms if self.pass_ms is None else self.pass_ms
        key = (call.is_sampling, call.is_chain_only, call.is_on_host, *(profile or {}).items())
        if key not in books:
            most = self._max_nodes or (TREE_SIZES[-1] if call.is_on_host else ACCELERATOR_SIZE)
            books[key] = _Books(Candidates(most, call.is_chain_only), profile, call.draft_share)
        self._now = books[key]
        self._is_timed = not call.is_repeatable if self.is_timed is None else self.is_timed
        self._drafted: list[DraftedTree] | None = None
        self._num_steps = 0
        self.current: TreePolicy = self._now.first_policy
        self.choice = Choice("plain", "no step yet", {})

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """See `TreePolicy`."""
        return self.current.grow(source, max_depth)

    def choose(self, num_rows: int, context: int, has_room: bool = True) -> bool:
        """Choose the next step's candidate; whether the drafter is to propose trees.

        Args:
            context: tokens of the longest row.
            has_room: whether a draft token could be emitted.
        """
        now = self._now
        self._size = num_rows, context
        self._drafted = None
        self._curve = now.passes.curve(num_rows, context)
        accepted, nodes, levels = now.acceptance.expected()
        passes = self._curve[np.minimum(1 + np.ceil(nodes).astype(int), MOST_NODES)]
        draft = now.drafts(num_rows).predict(levels, num_rows * now.candidates.nodes)
        draft[PLAIN] = 0.0
        rates, times = (1 + accepted) / (passes + draft), passes + draft
        run, reason = now.decide(rates, times, self.max_latency_ms) if has_room else (PLAIN, "no room for a draft")
        self._run, self._worth, self._draft_ms = run, float(rates[run]), float(draft[run])
        names = now.candidates.names
        self.choice = Choice(names[run], reason, dict(zip(names, (1e3 * rates).tolist(), strict=True)))
        policy = now.candidates.policies[run]
        self.current = policy or self.current
        return policy is not None

    def trim(self, trees: TreeBatch) -> TreeBatch:
        """Of selected children with values: the nodes that are worth the time to verify them."""
        now = self._now
        values = [] if trees.values is None else trees.values.tolist()
        rows = zip(trees.tokens.tolist(), trees.parents.tolist(), values, strict=True) if values else ()
        self._drafted = []
        for tokens, parents, path_values in rows:
            size = len(parents) - parents.count(PADDING_PARENT)
            self._drafted.append(now.acceptance.read(tokens[:size], parents[:size], path_values))
        self._is_trimming = bool(values) and trees.draft_probs is None
        if not self._is_trimming:
            return trees
        orders = [np.argsort(-tree.probs, kind="stable") for tree in self._drafted]
        most = max(map(len, orders))
        gains = np.zeros(most + 1)
        for tree, order in zip(self._drafted, orders, strict=True):
            gains[1 : 1 + len(order)] += tree.probs[order].cumsum()
            gains[1 + len(order) :] += tree.probs.sum()
        cost = self._curve[np.minimum(np.arange(1, most + 2), MOST_NODES)]
        if self.max_latency_ms is not None:
            gains[1:][cost[1:] + self._draft_ms > self.max_latency_ms] = -1.0
        best = int((gains - len(orders) * self._worth * cost).argmax())
        if best == most:
            return trees
        return _subtrees(self._drafted, [sorted((1 + order[:best]).tolist()) for order in orders])

    def update(self, step: VerifiedStep) -> None:
        """See `LearningPolicy`."""
        now = self._now
        self._num_steps += 1
        now.acceptance.forget()
        if self._drafted is None:
            return
        if not self._drafted:  # On accelerators: what the statistics read anyway.
            self._drafted = [now.acceptance.read(t.token_list, t.parent_list, None) for t in step.trees.trees]
        for turn in range(min(len(self._drafted), MOST_LEARNED_ROWS)):
            row = (self._num_steps * MOST_LEARNED_ROWS + turn) % len(self._drafted)
            worth = self._worth if self._is_trimming else 0.0
            now.acceptance.learn(self._drafted[row], step.emitted[row], self._run, worth, self._curve)

    def measure(self, trees: TreeBatch, draft_ms: float, other_ms: float) -> None:
        """Learn the times of the last step, whose verified trees were these."""
        if not self._is_timed:
            return
        num_rows, context = self._size
        self._now.passes.observe(num_rows, context, trees.max_nodes, other_ms)
        if self._drafted:
            levels = max(max(tree.depths) for tree in self._drafted)
            nodes = sum(len(tree.tokens) - 1 for tree in self._drafted)
            self._now.drafts(num_rows).observe(levels, nodes, draft_ms)


class _Books:
    """What is known about a drafter on a model, and where it stands between drafting and plain decoding."""

    def __init__(self, candidates: Candidates, profile: Mapping[int, float] | None, draft_share: float) -> None:
        self.candidates, self.acceptance = candidates, Acceptance(candidates)
        self.passes = PassTimes(profile)
        self._level_ms = draft_share * float(self.passes.curve(1, 1)[1])
        self._drafts: dict[int, DraftTimes] = {}
        self._plain_steps, self._wait, self._drafts_since = 0, FIRST_WAIT, 0
        best = self.acceptance.expected()[0].argmax()
        self.first_policy: TreePolicy = candidates.policies[int(best)] or BestFirst(1)

    def drafts(self, num_rows: int) -> DraftTimes:
        return self._drafts.setdefault(num_rows.bit_length(), DraftTimes(self._level_ms))

    def decide(self, rates: np.ndarray, times: np.ndarray, max_latency_ms: float | None) -> tuple[int, str]:
        """The number of the candidate to run, and the reason."""
        if len(rates) == 1:
            return PLAIN, "max_nodes=1"
        drafting = rates.copy()
        drafting[PLAIN] = 0.0
        if max_latency_ms is not None:
            drafting[times > max_latency_ms] = 0.0
        best = int(drafting.argmax())
        if best == PLAIN:
            return PLAIN, "every draft is predicted to exceed max_latency_ms"
        gain = drafting[best] / rates[PLAIN]
        if gain >= LEAST_GAIN:
            self._plain_steps, self._wait = 0, max(self._wait // 2, FIRST_WAIT)
            self._drafts_since += 1
            if self._drafts_since % EXPLORED_EVERY == 0:
                near = np.flatnonzero(drafting >= NEAR * drafting[best])
                return int(near[self.candidates.nodes[near].argmax()]), "larger than the best: to learn of larger ones"
            return best, f"{gain:.2f} times plain"
        if self._plain_steps >= self._wait:
            self._plain_steps, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
            return best, "probed again after plain steps"
        self._plain_steps += 1
        return PLAIN, f"the best draft is {gain:.2f} times plain"


def _subtrees(trees: Sequence[DraftedTree], kept: Sequence[Sequence[int]]) -> TreeBatch:
    """The trees of the kept nodes below the roots, in rising order, of selected children on the host."""
    width = 1 + max(map(len, kept))
    tokens, parents = [], []
    for tree, nodes in zip(trees, kept, strict=True):
        number = {0: 0} | {node: new for new, node in enumerate(nodes, start=1)}
        padding = width - len(number)
        tokens.append([tree.tokens[node] for node in number] + [0] * padding)
        above = [number[tree.parents[node]] for node in nodes]
        parents.append([ROOT_PARENT, *above, *[PADDING_PARENT] * padding])
    return TreeBatch(torch.tensor(tokens), torch.tensor(parents))
