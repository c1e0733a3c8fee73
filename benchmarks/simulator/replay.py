"""Walk recorded texts with a policy: what it would have drafted and accepted, and the time that it would have taken.

The recorded trees are cut to what the policy would have grown, drafts are accepted where the text goes on with them,
and the times come from a table. The one time that is measured is the control's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from benchmarks.simulator.costs import DRAFTERS, HEAD, Costs, MeanStep
from treespec import BestFirst, Chain, Control
from treespec.drafters import Merge
from treespec.drafters.base import policy_of_call
from treespec.policies.best_first import CHILD_SHARE
from treespec.policies.control import StoppedBestFirst
from treespec.policies.control.contract import CallFacts
from treespec.protocols import Scores, Session, VerifiedStep
from treespec.tree import HostTree, TreeBatch, Verdict
from treespec.tree.history import History

HEAD_DEPTH = 8


class RecordedPart:
    """A drafter that proposes what its recorded tree holds of the policy's."""

    def __init__(self, part: int, costs: Costs) -> None:
        self.part, self.recorded, self.ms, self.num_passes = part, HostTree([], [], []), 0.0, 0
        self._costs = costs.draft_ms[part]
        self.num_weights = int(part == HEAD)
        self.confidence_weight = 1.0 if part == HEAD else 0.4

    def start(self, session: Session) -> None:
        self._session = session

    def propose(self, max_depth: int) -> TreeBatch:
        tree, num_passes = cut(self.recorded, policy_of_call(self._session), max_depth, self.part == HEAD)
        start, level, node = self._costs
        self.ms += start + level * num_passes + node * len(tree.tokens)
        self.num_passes += num_passes
        return TreeBatch.from_host_trees([tree])

    def update(self, step: VerifiedStep) -> None:
        pass

    def select_rows(self, rows: Sequence[int]) -> None:
        pass


def cut(tree: HostTree, policy: Any, max_depth: int, has_passes: bool) -> tuple[HostTree, int]:
    """What a policy would have grown of a recorded tree, level by level, and its draft passes."""
    depths, is_first = [0], [True]
    for node, parent in enumerate(tree.parents[1:], start=1):
        depths.append(depths[parent] + 1)
        is_first.append(is_first[parent] and parent not in tree.parents[1:node])
    if isinstance(policy, Chain):
        num_levels = min(policy.k, max_depth)
        kept = [node for node in range(len(depths)) if is_first[node] and depths[node] <= num_levels]
        return subtree(tree, kept), num_levels
    budget = policy.num_nodes - 1
    best_first = sorted(range(1, len(depths)), key=lambda node: -tree.values[node])
    num_levels = min(max_depth, policy.depth or max_depth, HEAD_DEPTH if has_passes else max_depth)
    if has_passes:
        num_levels = _num_levels(tree, policy, depths, best_first, num_levels)
        if isinstance(policy, StoppedBestFirst):
            policy.num_passes += num_levels
    kept = [node for node in best_first if depths[node] <= num_levels][:budget]
    return subtree(tree, [0, *sorted(kept)]), num_levels


def _num_levels(tree: HostTree, policy: BestFirst, depths: list[int], best_first: list[int], most: int) -> int:
    """As `BestFirst.grow` decides."""
    budget, before = policy.num_nodes - 1, 0.0
    least_gain = policy.least_gain if isinstance(policy, StoppedBestFirst) else policy.min_gain
    for level in range(1, most):
        best = [node for node in best_first if depths[node] <= level][:budget]
        total = sum(tree.values[node] for node in best)
        worst = tree.values[best[-1]] if len(best) == budget else 0.0
        rivals = [node for node in best if depths[node] == level and policy.child_share * tree.values[node] > worst]
        if not rivals or (least_gain > 0 and total - before <= least_gain):
            return level
        before = total
    return most


def subtree(tree: HostTree, nodes: Sequence[int]) -> HostTree:
    number = {node: index for index, node in enumerate(nodes)}
    return HostTree(
        [tree.tokens[node] for node in nodes],
        [-1, *(number[tree.parents[node]] for node in nodes[1:])],
        [tree.values[node] for node in nodes],
    )


class Replay:
    """A policy with a drafter made of recorded parts; one object serves all texts, as in use."""

    def __init__(self, drafter: str, policy: Any, costs: Costs) -> None:
        self._parts, self._costs = [RecordedPart(part, costs) for part in DRAFTERS[drafter]], costs
        self._drafter: Any = Merge(self._parts) if len(self._parts) > 1 else self._parts[0]
        if len(self._parts) > 1:
            self._drafter._part_values.clock = lambda: 1e-3 * self._part_ms()
        self._policy, self._control = policy, policy if isinstance(policy, Control) else None
        self._is_plain = isinstance(policy, BestFirst) and policy.num_nodes == 1
        self.names = Counter[str]()
        self.own_ms: list[float] = []
        """The choices of the control by step."""
        self.reset()

    def reset(self) -> None:
        """Count from now on; what was learned stays."""
        self.num_steps = self.num_tokens = self._num_nodes = 0
        self._draft_ms = self._rest_ms = 0.0
        for part in self._parts:
            part.num_passes = 0

    @property
    def ms_per_token(self) -> float:
        return (self._draft_ms + self._rest_ms) / self.num_tokens

    @property
    def mean_step(self) -> MeanStep:
        count = self.num_steps
        passes = sum(part.num_passes for part in self._parts if part.part == HEAD)
        return MeanStep(self._num_nodes / count, passes / count, self._draft_ms / count, self._rest_ms / count)

    def walk(self, recorded: dict[str, Any]) -> None:
        """Decode one text."""
        prompt, text = torch.tensor([recorded["prompt"]]), recorded["text"]
        history = History(prompt, torch.ones_like(prompt, dtype=torch.bool))
        self._start(history)
        position = 0
        while position < len(text):
            roots = history.last_tokens.unsqueeze(1)
            trees, draft_ms = TreeBatch(roots, torch.full_like(roots, -1)), self._part_ms()
            room = len(text) - position - 1
            is_drafting = room > 0 and not self._is_plain
            for part in self._parts[: len(self._parts) * is_drafting]:
                part.recorded = HostTree(*recorded["trees"][position][part.part])
            if self._control is not None:
                self.own_ms.append(0.0)
                is_drafting = self._timed(self._control.choose, 1, history.lengths[0], is_drafting)
            if is_drafting:
                trees = self._drafter.propose(room)
                draft_ms = self._part_ms() - draft_ms + self._costs.merge_ms * trees.max_nodes
                trees = trees if self._control is None else self._timed(self._control.trim, trees)
            path, emitted = follow(trees, text[position:])
            position += len(emitted)
            history.append(0, emitted)
            step = VerifiedStep(trees, [Verdict(tuple(path), emitted[-1], False)], Scores(torch.zeros(0)), [emitted])
            self._count(step, draft_ms if is_drafting else 0.0, is_drafting)

    def _part_ms(self) -> float:
        """The counts of all drafts so far."""
        return sum(part.ms for part in self._parts)

    def _timed(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the control."""
        start = perf_counter()
        found = method(*args)
        self.own_ms[-1] += 1e3 * (perf_counter() - start)
        return found

    def _start(self, history: History) -> None:
        anything: Any = None
        device = torch.device("cpu")
        session = Session(history, False, anything, torch.Generator(), device, 0, [0], policy=self._policy)
        self._drafter.start(session)
        if self._control is not None:
            share = self._costs.level_share * any(part.num_weights for part in self._parts)
            self._control.begin(CallFacts(self._drafter, draft_share=share, pass_ms=dict(self._costs.pass_ms)))

    def _count(self, step: VerifiedStep, draft_ms: float, is_drafting: bool) -> None:
        """The step's time and tokens; the drafter and the control learn from it."""
        pass_ms = self._costs.of_pass(step.trees.max_nodes)
        if is_drafting:
            self._drafter.update(step)
        if self._control is not None:
            self._timed(self._control.update, step)
            self._timed(self._control.update_times, step.trees, draft_ms, pass_ms)
            self.names[self._control.choice.name] += 1
        self.num_steps += 1
        self._num_nodes += step.trees.max_nodes
        self._draft_ms += draft_ms
        self._rest_ms += pass_ms
        self.num_tokens += len(step.emitted[0])


def follow(trees: TreeBatch, text: Sequence[int]) -> tuple[list[int], list[int]]:
    """The path of a tree along a text, and the tokens emitted."""
    tree, path, emitted = trees.trees[0], [0], list[int]()
    for token in text:
        emitted.append(token)
        child = next((child for child in tree.children(path[-1]) if tree.token(child) == token), None)
        if child is None:
            break
        path.append(child)
    return path, emitted


def policies() -> dict[str, Callable[[], Any]]:
    """What is compared, by name; a tree of one node is plain decoding."""
    made: dict[str, Callable[[], Any]] = {"plain": lambda: BestFirst(1)}
    made |= {f"chain of {k}": lambda k=k: Chain(k) for k in (2, 4, 6)}
    made |= {f"tree of {n}": lambda n=n: BestFirst(n, child_share=CHILD_SHARE) for n in (4, 8, 12, 16, 32)}
    return {**made, "auto": Control}


def replayed(recorded: Sequence[dict[str, Any]], drafter: str, policy: Any, costs: Costs) -> Replay:
    """All texts, one after the other."""
    replay = Replay(drafter, policy, costs)
    for text in recorded:
        replay.walk(text)
    return replay
