"""`Control`: the candidate with the most predicted tokens per second at every step, from measured times and acceptance.

A step's rate is (1 + accepted tokens) / (draft + pass); both sides are estimated from verified steps only, so what is
drafted depends on the past and the output distribution is untouched. Trees are verified whole, but for the selected
children of a server's requests, which share the nodes of a pass: which ones depends on the draft's probabilities alone.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf, log2
from typing import Any

from treespec.checks import ShowsOptions, check_count, check_flag, check_number
from treespec.errors import ConfigError
from treespec.policies.best_first import BestFirst, tree_of
from treespec.policies.chain import Chain
from treespec.policies.control.acceptance import Acceptance, DraftedTree
from treespec.policies.control.contract import MOST_AHEAD, Choice, StepControl
from treespec.policies.control.pass_times import ON_ACCELERATOR, ON_HOST, DraftTimes, PassTimes
from treespec.protocols import Session, TreePolicy, VerifiedStep
from treespec.tree import TreeBatch

PLAIN = 0
"""The number of the candidate that drafts nothing."""
CHAIN_LENGTHS, TREE_SIZES = (1, 2, 3, 4, 6), (2, 4, 8, 12, 16, 32)
MOST_NODES = 64
"""On an accelerator; on the host the largest of `TREE_SIZES`."""
LEAST_GAIN = 1.03
"""A draft must be predicted to be this many times as fast as plain decoding."""
SURE_GAIN = 1.1
"""Where drafts gain less, one of `TIMED_DRAFT` steps is plain, as others do not say its time, and none is repeated."""
NEARLY = 0.97
"""The largest tree with this share of the best rate is taken: it shows what smaller ones bring."""
TIMED_DRAFT = 16
"""This draft is one size larger, that of half its number one size smaller: one size's time says little of others."""
FEW_TOKENS = 32
"""Tokens of every row of a batch for which rows are not known to differ."""
FIRST_WAIT, LONGEST_WAIT, REST_SHARE = 8, 256, 8
"""Plain steps before drafting is tried again, doubled while it does not pay; one in how many of these is repeated."""
READING_SHARE = 0.03
"""How much of the plain steps' time may be read to try a drafter again; in a batch that may gain little, at all."""
REPEATED = 3
"""Steps that repeat a choice, as no draft pays or, for one text, drafts clearly do: without prediction or learning."""


def candidates_of(max_nodes: int, session: Session) -> dict[str, TreePolicy]:
    """By name and by size: plain decoding, then best-first trees, or chains where only chains can be run."""
    plain: dict[str, TreePolicy] = {"plain": BestFirst(1)}
    if session.is_chain_only:
        return plain | {f"chain of {k}": Chain(k) for k in CHAIN_LENGTHS if k < max_nodes}
    sizes = [size for size in TREE_SIZES if size < max_nodes] + [max_nodes] * (max_nodes > 1)
    return plain | {f"tree of {size}": tree_of(size) for size in sizes}


class _Learned:
    """Learned state of one drafter in calls of one kind: acceptance, times, and the wait between tries to draft."""

    def __init__(self, max_nodes: int, passes: PassTimes, session: Session, draft_share: float) -> None:
        self.candidates = candidates_of(max_nodes, session)
        self.num_nodes = [policy.max_nodes - 1 for policy in self.candidates.values()]
        is_cut = session.is_flat and not session.is_sampling
        self.sizes = [range(min(most, 1) if is_cut else most, most + 1) for most in self.num_nodes]
        """By candidate: how many nodes below the root it may verify."""
        # Best-first trees about double with every level.
        self.num_levels = [most if session.is_chain_only else log2(1 + most) for most in self.num_nodes]
        self.acceptance, self.passes = Acceptance(self.num_nodes[-1]), passes
        self.drafts = DraftTimes(draft_share, draft_share * passes.slope)
        self.wait, self.num_plain, self.num_drafts = FIRST_WAIT, 0, 0
        self.break_even = 0.0  # Accepted tokens per row that the last draft needed to pay.


class Control(ShowsOptions, StepControl):
    """Chooses between plain decoding, chains and best-first trees at every step, by measured time and acceptance.

    What was learned stays from call to call. A call that samples with a seed learns nothing from other calls and reads
    no clock: its times are those of `pass_ms`, so that the same seed gives the same output.

    Args:
        max_nodes: the most nodes of a tree, root included; None: 32, on accelerators 64.
        max_latency_ms: the longest predicted step; plain decoding where even that takes longer, or where no time is
            known: in the first step, and without `pass_ms` wherever the clock is not read.
        is_timed: learn times from the steps served, not by `pass_ms` alone; None: unless a call samples with a seed.
        pass_ms: measured milliseconds of the target's pass by number of nodes; None: a guess, which steps correct.

    Raises `ConfigError`: a number out of range, `pass_ms` without times.
    """

    def __init__(
        self,
        max_nodes: int | None = None,
        max_latency_ms: float | None = None,
        is_timed: bool | None = None,
        pass_ms: Mapping[int, float] | None = None,
    ) -> None:
        self._max_nodes = None if max_nodes is None else min(check_count("max_nodes", max_nodes), MOST_NODES)
        self.given_max_nodes, self.max_latency_ms, self.pass_ms = self._max_nodes, max_latency_ms, pass_ms
        self.is_timed = None if is_timed is None else check_flag("is_timed", is_timed)
        if max_latency_ms is not None:
            check_number("max_latency_ms", max_latency_ms, lambda ms: ms > 0, "be positive")
        if pass_ms is not None and (not isinstance(pass_ms, Mapping) or not pass_ms):
            raise ConfigError(f"pass_ms must be milliseconds by number of nodes, as {{1: 30.0}}, got {pass_ms!r}")
        for nodes, ms in (pass_ms or {}).items():
            check_count("a number of nodes in pass_ms", nodes)
            check_number("a time in pass_ms", ms, lambda ms: 0 < ms < inf, "be positive and finite")
        self._kept, self._drafter = dict[tuple, _Learned](), None
        self.current = tree_of(self.max_nodes)

    @property
    def max_nodes(self) -> int:
        return self._max_nodes or MOST_NODES

    def begin(self, session: Session, drafter: Any, draft_share: float) -> None:
        is_repeatable, is_on_host = session.is_repeatable, session.is_on_host
        if drafter is not self._drafter and not is_repeatable:
            self._kept, self._drafter = {}, drafter
        self._is_flat, self._is_timed = session.is_flat, not is_repeatable if self.is_timed is None else self.is_timed
        found = {} if is_repeatable else self._kept
        key = (session.is_sampling, session.is_chain_only, is_on_host, *(self.pass_ms or {}).items())
        if key not in found:
            most = self._max_nodes or (TREE_SIZES[-1] if is_on_host else MOST_NODES)
            passes = PassTimes(self.pass_ms, ON_HOST if is_on_host else ON_ACCELERATOR)
            found[key] = _Learned(most, passes, session, draft_share)
        self._learned, self._trees = found[key], list[DraftedTree]()
        self._emitted = list[int]()  # By the rows of a batch in steps that drafted, since the last one left.
        self._num_rows, self._context, self._number, self._is_repeated = 1, 1, PLAIN, False
        self._num_read = self._num_repeated = 0  # Tokens of a row that the drafter has read; steps without a decision.
        *_, self.current = self._learned.candidates.values()
        self.choice = Choice("plain", "no step yet", {})

    def choose(self, num_rows: int, context: int, room: int = MOST_AHEAD, num_unread: int | None = None) -> bool:
        """See `StepControl`; `num_unread`: tokens that the drafter must read first, None: those decoded without it."""
        learned, self._trees = self._learned, []
        self._is_repeated = self._num_repeated > 0 and room > 0 and num_rows == self._num_rows
        if self._is_repeated:
            self._num_repeated -= 1
            learned.num_plain += self._number == PLAIN
        else:
            self._num_rows, self._context, self._num_repeated = num_rows, context, 0
            self._num_unread = num_rows * (context - self._num_read) if num_unread is None else num_unread
            reading_ms = learned.passes.scale * learned.drafts.reading(self._num_unread)
            rates, times = self.predict(reading_ms / max(min(room, MOST_AHEAD), 1))
            self._number, reason = self._decide(rates, times, reading_ms, room)
            self._rate = rates[self._number]
            by_name = {name: 1e3 * rate for name, rate in zip(learned.candidates, rates, strict=True)}
            self.choice = Choice(list(by_name)[self._number], reason, by_name)
        if self._number != PLAIN:
            self.current, self._num_read = learned.candidates[self.choice.name], context
        return self._number != PLAIN

    def rests(self, num_rows: int) -> bool:
        """Whether the next step drafts nothing, as the last one, without a decision; if so it is chosen."""
        is_plain = self._is_repeated and self._number == PLAIN and num_rows == self._num_rows
        return is_plain and self._num_repeated > 0 and not self.choose(num_rows, self._context)

    def predict(self, ms_per_token: float = 0.0) -> tuple[Sequence[float], Sequence[float]]:
        """Tokens per row and millisecond, and milliseconds, of steps like the last one.

        `ms_per_token`: what the drafter must read first, spread over the tokens that a row may still emit.
        """
        learned, rows, slowest = self._learned, self._num_rows, self._slowest()
        expected, found = learned.acceptance.expected, learned.acceptance.num_nodes
        tokens = {n: max((1 + expected[n]) * slowest, 1.0) for n in set().union(*learned.sizes)}
        other_ms = {n: self._pass_ms(rows * (1 + found[n])) + (ms_per_token * tokens[n] if n else 0.0) for n in tokens}
        drafts = zip(learned.num_levels, learned.num_nodes, strict=True)
        self._draft_ms = [learned.passes.scale * learned.drafts.predict(levels, rows * n) for levels, n in drafts]
        pairs = zip(self._draft_ms, learned.sizes, strict=True)
        best = [max((tokens[n] / (ms + other_ms[n]), ms + other_ms[n]) for n in sizes) for ms, sizes in pairs]
        return [rate for rate, _ in best], [ms for _, ms in best]

    def _slowest(self) -> float:
        """The slowest row's emitted tokens over the mean row's, smoothed: padded batches wait for that row."""
        if self._is_flat or self._num_rows == 1 or len(self._emitted) != self._num_rows:
            return 1.0
        return (FEW_TOKENS + min(self._emitted)) / (FEW_TOKENS + sum(self._emitted) / self._num_rows)

    def _pass_ms(self, num_tokens: float) -> float:
        return self._learned.passes.predict(num_tokens, self._num_rows, self._context)

    def _decide(self, rates: Sequence[float], times: Sequence[float], reading_ms: float, room: int) -> tuple[int, str]:
        """The number of the candidate to take, and the reason."""
        learned, most_ms = self._learned, self.max_latency_ms or inf
        if not room:
            return PLAIN, "no room for a draft"
        if most_ms < inf and not learned.passes.latest:
            return PLAIN, "max_latency_ms needs the time of a pass: of a step before, or as pass_ms="
        drafting = [0.0] + [rate if ms <= most_ms else 0.0 for rate, ms in zip(rates[1:], times[1:], strict=True)]
        if not any(drafting):
            self._num_repeated = REPEATED
            return PLAIN, "every draft exceeds max_nodes or is predicted to exceed max_latency_ms"
        best = max(number for number, rate in enumerate(drafting) if rate >= NEARLY * max(drafting))
        gain = drafting[best] / rates[PLAIN]
        reading_steps = reading_ms / (READING_SHARE * times[PLAIN])
        is_tried = self._num_rows == 1 or learned.num_drafts > 0 or reading_steps <= room or gain >= SURE_GAIN
        learned.break_even = times[best] / times[PLAIN] - 1
        if is_tried and gain >= LEAST_GAIN:
            learned.num_plain, learned.num_drafts = 0, learned.num_drafts + 1
            if learned.num_drafts % TIMED_DRAFT == 0 and self._is_timed and gain < SURE_GAIN:
                return PLAIN, "to know its time"
            other = {TIMED_DRAFT // 2: best - 1, TIMED_DRAFT: best + 1}.get(learned.num_drafts, PLAIN)
            if self._is_timed and any(drafting[other : other + 1]):
                return other, "to know its time"
            is_single = self._num_rows == 1 and not self._is_flat and most_ms == inf
            is_sure = gain >= SURE_GAIN and learned.num_drafts > TIMED_DRAFT
            self._num_repeated = REPEATED if is_single and is_sure else 0
            return best, f"{gain:.2f} times plain"
        wait = max(learned.wait, int(reading_steps))
        if learned.num_plain >= wait:
            learned.num_plain, learned.wait = 0, min(2 * learned.wait, LONGEST_WAIT)
            return best, "probed again after plain steps"
        rest = max(REPEATED, min(wait, LONGEST_WAIT) // REST_SHARE)
        learned.num_plain, self._num_repeated = learned.num_plain + 1, min(rest, wait - learned.num_plain)
        return PLAIN, f"the best draft is {gain:.2f} times plain"

    def trim(self, trees: TreeBatch) -> TreeBatch:
        """Share the nodes of a pass without padding: the best of all rows stay, of selected children with values."""
        if self._is_repeated:
            return trees
        self._trees = drafted = self._learned.acceptance.read(trees)
        self._learned.acceptance.add(drafted, self._learned.num_nodes[self._number])
        if not self._is_flat or trees.draft_probs is not None or trees.values is None:
            return trees
        least = self._least_prob(drafted)
        kept = [[0, *(node for node in sorted(tree.order) if tree.probs[node] >= least)] for tree in drafted]
        return trees.select_nodes(kept)

    def _least_prob(self, trees: Sequence[DraftedTree]) -> float:
        """The probability from which a node gains more tokens than its time is worth."""
        probs = sorted((prob for tree in trees for prob in tree.probs[1:]), reverse=True)
        counts = range(0, len(probs) + 1, 1 + len(probs) // MOST_NODES)  # Every number of few nodes.
        ms, gains = [self._pass_ms(len(trees) + count) for count in counts], [*accumulate(probs, initial=0.0)]
        fits = bisect(ms, (self.max_latency_ms or inf) - self._draft_ms[self._number], 1)  # As times never fall.
        pairs = zip(gains[:: counts.step], ms[:fits], strict=False)
        profits = [gain / len(trees) - self._rate * (each - ms[0]) for gain, each in pairs]
        return [inf, *probs][counts[profits.index(max(profits))]]

    def learn(self, step: VerifiedStep, draft_ms: float, other_ms: float | None) -> None:
        if self._is_repeated:
            return
        learned, trees, num_rows = self._learned, self._trees, step.trees.num_rows
        if trees:
            # A server's requests may have left since they were drafted for.
            verified = learned.acceptance.read(step.trees) if self._is_flat else trees
            learned.acceptance.update(verified, step.emitted)
            emitted = [len(tokens) for tokens in step.emitted]
            earlier = self._emitted if len(self._emitted) == num_rows else [0] * num_rows
            self._emitted = [now + before for now, before in zip(emitted, earlier, strict=True)]
            if learned.wait > FIRST_WAIT and sum(emitted) / num_rows * self._slowest() - 1 > learned.break_even:
                learned.num_plain = learned.wait = FIRST_WAIT  # One draft that pays is followed by another.
        if self._is_timed and other_ms is not None:
            num_tokens = int(step.trees.num_nodes.sum()) if self._is_flat else num_rows * step.trees.max_nodes
            learned.passes.update(num_tokens, num_rows, self._context, other_ms)
        if self._is_timed and trees:
            levels, drafted = learned.num_levels[self._number], sum(len(tree.order) for tree in trees)
            learned.drafts.update(levels, drafted, self._num_unread, self._num_rows, draft_ms / learned.passes.scale)
