"""The loop: draft a tree, score it, verify it, commit the accepted path, for every row at once.

A chain is a tree of width one and plain decoding a tree of one node: there is no second engine.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.engine.checks import check_features, check_proposal
from treespec.engine.observer import Observer, StepRecord, VerifiedTrees
from treespec.engine.ranks import Alone, Ranks
from treespec.engine.stats import Clock, SpeculationStats
from treespec.engine.streams import Streams, known_seed
from treespec.engine.target_probs import TargetProbs
from treespec.policies.control.contract import StepControl
from treespec.protocols import (
    Capability,
    CausalScorer,
    Drafter,
    HiddenStates,
    History,
    LearningPolicy,
    PathProcessors,
    Scores,
    Session,
    TreePolicy,
    VerificationRule,
    VerifiedStep,
)
from treespec.sampling import NoProcessors
from treespec.tree import ROOT_PARENT, TreeBatch, Verdict
from treespec.verification.dispatch import verify_batch, verify_greedy
from treespec.verification.registry import resolve
from treespec.verification.target_walk import TargetWalk


class Stopping(Protocol):
    """Where generation ends."""

    def num_kept(self, row: int, ids: Tensor, new_tokens: Sequence[int]) -> int | None:
        """How many of the new tokens are kept, up to and including the one that stops the row; None: continue.

        `ids` int64 [L] holds the whole row, left padding and new tokens included; `row` is the caller's batch row.
        """
        ...

    def max_new(self, row: int, length: int, num_padding: int) -> int:
        """How many tokens a row of `length` ids, `num_padding` of them padding, may still get."""
        ...


class Result(NamedTuple):
    """`tokens[b]`: everything emitted for row b; counters."""

    tokens: list[list[int]]
    stats: SpeculationStats


@torch.no_grad()
def speculate(run: "Run") -> Result:
    """Decode every row until it stops, drafting with the run's drafter and verifying with its target.

    With any lossless rule the output distribution is the target's own under the given processors.

    Raises:
        InvalidTreeError, RuleMismatchError: the drafter proposed an invalid tree, or one that the rule cannot verify.
        LogitsError: the target's logits give no distribution.
    """
    with ExitStack() as calls:
        for observer in run.watching:
            calls.enter_context(observer)
        run.prefill()
        while run.rows:
            run.step()
    return Result(run.outputs, run.stats)


def num_weights(part: object) -> int:
    """The weights that a pass of a drafter or scorer reads, 0 where it does not say."""
    return getattr(part, "num_weights", 0)


@dataclass(eq=False)
class Run:
    """One run of the loop: what it is given, and its state.

    Args:
        prompt_ids: P >= 1, left-padded.
        prompt_mask: False on padding.
        stopping: where each row ends.
        policy: shapes the trees of drafters that build them from next-token distributions; others ignore it.
        verification: "auto", a rule's name or a rule.
        seed: see `known_seed`.
        observers: watch the call, called in this order; statistics are kept anyway.
        ranks: the processes that run the target together. What could differ between them is the first one's: the seed,
            trees, verdicts, measured times.

    Raises `ConfigError`: the drafter reads hidden states that the target's scorer does not return.
    """

    target: CausalScorer
    drafter: Drafter
    prompt_ids: Int[Tensor, "B P"]
    prompt_mask: Bool[Tensor, "B P"]
    stopping: Stopping
    policy: TreePolicy | None = None
    verification: str | VerificationRule = "auto"
    processors: PathProcessors = field(default_factory=NoProcessors)
    is_sampling: bool = True
    seed: int | None = None
    observers: Sequence[Observer] = ()
    ranks: Ranks = field(default_factory=Alone)

    def __post_init__(self) -> None:
        target = self.target
        check_features(target, self.drafter)
        self.streams = Streams.from_seed(self.ranks.agree("seed", known_seed(self.seed)), target.device)
        self.history = History(self.prompt_ids, self.prompt_mask)
        self.stats = SpeculationStats()
        self.watching: list[Observer] = [self.stats, *self.observers]
        self.clock = Clock()
        for observer in self.watching:
            self.processors = observer.around(self.processors)
        self.rows = list(range(self.prompt_ids.shape[0]))
        self.outputs: list[list[int]] = [[] for _ in self.rows]
        self.control = self.policy if isinstance(self.policy, StepControl) else None
        self.learner = self.policy if isinstance(self.policy, LearningPolicy) else None
        self.session = Session(
            history=self.history,
            is_sampling=self.is_sampling,
            processors=self.processors,
            generator=self.streams.draft,
            device=target.device,
            vocab_size=target.vocab_size,
            row_ids=self.rows,
            policy=self.policy,
            target=target,
            is_chain_only=target.capability == Capability.CHAIN,
            is_on_host=target.device.type == "cpu",
            is_repeatable=self.is_sampling and self.seed is not None,
        )
        self.uniforms: tuple[Tensor, Tensor] | None = None

    def prefill(self) -> None:
        """Read the prompt, whose pass decides every row's first token: the first step, without a draft."""
        before = dict(self.clock.seconds)
        with self.clock.timed("prefill"):
            scores = self.target.prefill(*(part.to(self.target.device) for part in (self.prompt_ids, self.prompt_mask)))
            states = scores.hidden_states.items()
            self.start({layer: columns[:, :-1] for layer, columns in states})  # The first update has the last state.
        self.notify(lambda observer: observer.on_prefill(scores.hidden_states))
        last = Scores(scores.logits, {layer: columns[:, -1:] for layer, columns in states})
        self.settle(self.roots(), last, before, is_prompt=True)

    def step(self) -> None:
        """Draft, score, verify and commit once."""
        before, timed = dict(self.clock.seconds), self.clock.timed
        with timed("draft"):
            trees = self.agreed(self.draft())
        with timed("target"):
            scores = self.target.extend(trees.tokens, trees.parents)
        self.settle(trees, scores, before)

    def roots(self) -> TreeBatch:
        """Trees of one node: nothing is drafted."""
        roots = self.history.last_tokens.unsqueeze(1)
        return TreeBatch(roots, torch.full_like(roots, ROOT_PARENT))

    def settle(self, trees: TreeBatch, scores: Scores, before: dict[str, float], is_prompt: bool = False) -> None:
        """Verify the trees and commit what they give; a prompt's tokens are in the target's cache already."""
        with self.clock.timed("verify"):
            probs = TargetProbs(trees, scores, self.history, self.processors, self.rows, self.is_sampling)
            verdicts = self.verify(trees, probs)
        self.show(probs, verdicts)
        with self.clock.timed("commit"):
            emitted, finished = self.emit(verdicts, probs)
            if not is_prompt:
                # As many nodes as tokens: with the root, without the last token, which is the next root.
                self.target.commit([v.path[: len(tokens)] for v, tokens in zip(verdicts, emitted, strict=True)])
            verified = VerifiedStep(trees, verdicts, scores, emitted)
            self.drafter.update(verified)  # After `emit`: the history ends with the next root.
            if self.learner is not None and not is_prompt:
                self.learner.update(verified)
        self.record(verified, before, is_prompt)
        self.leave(finished)  # Last: all before it reads trees and scores of the rows that have finished, too.

    def notify(self, what: Callable[[Observer], None]) -> None:
        """Call every observer."""
        for observer in self.watching:
            what(observer)

    def start(self, states: HiddenStates) -> None:
        """Begin the drafter's call, and the control's."""
        self.drafter.start(replace(self.session, prompt_states=states))
        if self.control is not None:
            share = num_weights(self.drafter) / max(num_weights(self.target), 1)
            self.control.begin(self.session, getattr(self.drafter, "wrapped", self.drafter), share)

    def draft(self) -> TreeBatch:
        """Trees no deeper than each row has room for: a path of depth d emits d + 1 tokens."""
        room = [self._room(b) - 1 for b in range(len(self.rows))]
        is_drafting = self.target.capability != Capability.PLAIN and max(room) >= 1
        if self.control is not None:
            most = max(room) + 1 if is_drafting else 0
            is_drafting = self.control.choose(len(self.rows), max(self.history.lengths), most)  # It times all steps.
        if not is_drafting:
            return self.roots()
        trees = self._propose(room)
        return trees if self.control is None else self.control.trim(trees)

    def _propose(self, room: Sequence[int]) -> TreeBatch:
        trees = self.drafter.propose(max(room))
        check_proposal(trees, self.history.last_tokens, self.target.vocab_size)
        if trees.max_nodes > 1 + min(room):
            trees = trees.limit_depth(room)
        if self.session.is_chain_only and not trees.is_chain:
            return trees.best_chains()
        return trees

    def agreed(self, trees: TreeBatch) -> TreeBatch:
        """The first rank's trees, where several processes run the target."""
        own = trees.tokens.tolist(), trees.parents.tolist()
        first = self.ranks.agree("trees", own)
        if own == first:
            return trees
        # Without distributions, as no other rank's verdicts are used.
        return TreeBatch(*(torch.tensor(rows, device="cpu") for rows in first))  # pyright: ignore[reportArgumentType]

    def _room(self, index: int) -> int:
        history = self.history
        return self.stopping.max_new(self.rows[index], history.lengths[index], history.num_padding[index])

    def verify(self, trees: TreeBatch, probs: TargetProbs) -> list[Verdict]:
        """The verdicts; the first rank's, where several processes run the target."""
        return self.ranks.compute("verdicts", lambda: self._verify(trees, probs))

    def _verify(self, trees: TreeBatch, probs: TargetProbs) -> list[Verdict]:
        rule = resolve(self.verification, self.is_sampling, trees)
        self.uniforms = None
        if not self.is_sampling and isinstance(rule, TargetWalk):
            return verify_greedy(trees, probs)
        shape = trees.tokens.shape
        coins, draws = (
            torch.rand(shape, dtype=torch.float64, generator=stream, device="cpu")
            for stream in (self.streams.coins, self.streams.draws)
        )
        self.uniforms = coins, draws
        return verify_batch(rule, trees, probs, coins, draws)

    def show(self, probs: TargetProbs, verdicts: Sequence[Verdict]) -> None:
        """Show the observers what was verified."""
        history, rows = self.history, list(self.rows)
        contexts = [size - pad for size, pad in zip(history.lengths, history.num_padding, strict=True)]
        step = VerifiedTrees(rows, contexts, probs, verdicts, self.verification, self.uniforms)
        self.notify(lambda observer: observer.on_verified(step))

    def emit(self, verdicts: Sequence[Verdict], probs: TargetProbs) -> tuple[list[list[int]], list[bool]]:
        """Append the accepted tokens and the next token of every row, cut where generation stops."""
        emitted, finished = list[list[int]](), list[bool]()
        for index, verdict in enumerate(verdicts):
            row, tree = self.rows[index], probs.trees.trees[index]
            tokens = [tree.token(node) for node in verdict.path[1:]] + [verdict.next_token]
            tokens = tokens[: self._room(index)]
            for observer in self.watching:
                observer.on_path(row, probs, index, verdict.path[: len(tokens)])
            self.history.append(index, tokens)
            num_kept = self.stopping.num_kept(row, self.history.row(index), tokens)
            if num_kept is not None:
                self.history.truncate(index, self.history.lengths[index] - len(tokens) + num_kept)
                tokens = tokens[:num_kept]
            self.outputs[row] += tokens
            for observer in self.watching:
                observer.on_tokens(row, tokens)
            emitted.append(tokens)
            finished.append(num_kept is not None)
        return emitted, finished

    def record(self, verified: VerifiedStep, before: dict[str, float], is_prompt: bool) -> None:
        """Show the step and its times to the control, which chose what was drafted, and to the observers."""
        seconds = {phase: total - before[phase] for phase, total in self.clock.seconds.items()}
        choice = None if self.control is None or is_prompt else self.control.choice
        if self.control is not None and choice is not None:
            times = 1e3 * seconds["draft"], 1e3 * (sum(seconds.values()) - seconds["draft"])
            self.control.learn(verified, *self.ranks.agree("times", times))
        trees, verdicts = verified.trees.trees, verified.verdicts
        step = StepRecord(list(self.rows), trees, verdicts, verified.emitted, seconds, choice, is_prompt)
        self.notify(lambda observer: observer.on_step(step))

    def leave(self, finished: Sequence[bool]) -> None:
        """Drop the rows that have finished."""
        if not any(finished):
            return
        stay = [b for b, is_done in enumerate(finished) if not is_done]
        self.rows[:] = [self.rows[b] for b in stay]  # In place: the session's `row_ids` are the same list.
        if stay:
            self.history.select_rows(stay)
            self.target.select_rows(stay)
            self.drafter.select_rows(stay)
