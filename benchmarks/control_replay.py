"""Measured control on recorded drafts: what `tree="auto"`, chains and fixed trees would take, without a clock.

Prompts are decoded token by token while the parts of the merged drafter (the head, recycling, suffix lookup) propose
large trees of selected children at every position; these trees and the texts are recorded once. A replay walks the
texts with a policy: it cuts the recorded trees to what the policy would have grown, accepts what the text goes on with,
and takes the times from a table. So a change of the control is compared without the noise of a machine. The one time
that is measured is the control's own, per step.

    python -m benchmarks.control_replay --record drafts.pt --prompts 16 --new-tokens 48
    python -m benchmarks.control_replay --replay drafts.pt
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.common.drafters import warm_start
from benchmarks.common.prompts import encode
from benchmarks.common.settings import RESULTS, markdown_table, parser, settings, settings_lines
from benchmarks.control import held_out
from treespec import BestFirst, Chain, Control, Eagle3, TreeSpeculation, load_drafter, optimize, shipped_head
from treespec.drafters import Merge
from treespec.drafters.base import policy_of_call
from treespec.drafters.merge.merge import read_trees
from treespec.hf.loading import smollm2
from treespec.policies.control import StoppedBestFirst
from treespec.policies.control.contract import CallFacts
from treespec.protocols import NodeProbs, RandomSource, Scores, Session, VerifiableTree, VerifiedStep
from treespec.tree import HostTree, TreeBatch, Verdict
from treespec.tree.history import History

NUM_RECORDED = 32
"""Nodes of the recorded trees."""
HEAD, RECYCLING, SUFFIX = range(3)
DRAFTERS = {"merged": (HEAD, RECYCLING, SUFFIX), "head": (HEAD,), "lookups": (RECYCLING, SUFFIX)}
PASS_MS = {1: 60.0, 2: 64.0, 4: 66.0, 8: 72.0, 16: 85.0, 32: 120.0, 64: 200.0}
DRAFT_MS = {HEAD: (3.0, 6.0, 0.1), RECYCLING: (0.4, 0.0, 0.02), SUFFIX: (0.6, 0.0, 0.03)}
"""Of a draft, of each of its passes, of each of its nodes."""
MERGE_MS = 0.05
"""Per node of a merged tree."""
HEAD_DEPTH = 8


class RootOnly:
    """Emits the next token and accepts no draft, so that every position is seen."""

    name, is_lossless = "root_only", False  # Lossless in fact; greedy decoding would replace it by the target walk.

    def reason_against(self, trees: TreeBatch) -> None:
        """None: it verifies every tree."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return Verdict((0,), rng.pick(0, target_probs(0)), is_bonus=False)


class Recorder(Merge):
    """Keeps the trees of its parts, by step and part."""

    def start(self, session: Session) -> None:
        super().start(session)
        self.trees: list[list[HostTree]] = []

    def propose(self, max_depth: int) -> TreeBatch:
        parts = [read_trees(drafter, drafter.propose(max_depth))[0] for drafter in self._drafters]
        self.trees.append(parts)
        return TreeBatch.from_host_trees(parts[:1])


def record(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """By prompt: `prompt` and `text`, token ids, and `trees` by position in the text and part."""
    loaded, tokenizer = smollm2.load(say=console.print)
    model: Any = loaded
    head = load_drafter(shipped_head(smollm2.NAME), model)
    assert isinstance(head, Eagle3)
    recorder = Recorder([head, *warm_start().drafters()])
    speculation = TreeSpeculation(recorder, tree=BestFirst(NUM_RECORDED), verification=RootOnly())
    sampling = {"do_sample": True, "temperature": args.temperature, "top_k": 0}
    options = sampling if args.temperature else {"do_sample": False}
    found = []
    with optimize(model), optimize(head.head):
        for number, prompt in enumerate(held_out(args.spec_bench, args.prompts)):
            torch.manual_seed(number)
            inputs = encode(tokenizer, [prompt])
            ids = model.generate(**inputs, **options, max_new_tokens=args.new_tokens, custom_generate=speculation)[0]
            start = inputs["input_ids"].shape[1]
            trees = [[tuple(tree) for tree in parts] for parts in recorder.trees]
            found.append({"prompt": ids[:start].tolist(), "text": ids[start:].tolist(), "trees": trees})
            console.print(f"{prompt.name}: {len(trees)} positions")
    return found


class RecordedPart:
    """A drafter that proposes what its recorded tree holds of the policy's."""

    def __init__(self, part: int) -> None:
        self.part, self.recorded, self.ms = part, HostTree([], [], []), 0.0
        self.num_weights = int(part == HEAD)
        self.confidence_weight = 1.0 if part == HEAD else 0.4

    def start(self, session: Session) -> None:
        self._session = session

    def propose(self, max_depth: int) -> TreeBatch:
        tree, num_passes = cut(self.recorded, policy_of_call(self._session), max_depth, self.part == HEAD)
        start, level, node = DRAFT_MS[self.part]
        self.ms += start + level * num_passes + node * len(tree.tokens)
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

    def __init__(self, parts: Sequence[int], policy: Any) -> None:
        self._parts = [RecordedPart(part) for part in parts]
        self._drafter: Any = Merge(self._parts) if len(self._parts) > 1 else self._parts[0]
        if len(self._parts) > 1:
            self._drafter._part_values.clock = lambda: 1e-3 * self._part_ms()
        self._policy, self._control = policy, policy if isinstance(policy, Control) else None
        self.ms, self.num_tokens, self.names = 0.0, 0, Counter[str]()
        self.own_ms: list[float] = []
        """Of the control by step."""

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
            is_drafting = room > 0
            for part in self._parts[: len(self._parts) * is_drafting]:
                part.recorded = HostTree(*recorded["trees"][position][part.part])
            if self._control is not None:
                self.own_ms.append(0.0)
                is_drafting = self._timed(self._control.choose, 1, history.lengths[0], is_drafting)
            if is_drafting:
                trees = self._drafter.propose(room)
                draft_ms = self._part_ms() - draft_ms + MERGE_MS * trees.max_nodes
                trees = trees if self._control is None else self._timed(self._control.trim, trees)
            path, emitted = follow(trees, text[position:])
            position += len(emitted)
            history.append(0, emitted)
            step = VerifiedStep(trees, [Verdict(tuple(path), emitted[-1], False)], Scores(torch.zeros(0)), [emitted])
            self._learn(step, draft_ms if is_drafting else 0.0, is_drafting)

    def _part_ms(self) -> float:
        """Of all drafts so far."""
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
            share = 0.06 * any(part.num_weights for part in self._parts)
            self._control.begin(CallFacts(self._drafter, draft_share=share, pass_ms=PASS_MS))

    def _learn(self, step: VerifiedStep, draft_ms: float, is_drafting: bool) -> None:
        pass_ms = float(np.interp(step.trees.max_nodes, list(PASS_MS), list(PASS_MS.values())))
        if is_drafting:
            self._drafter.update(step)
        if self._control is not None:
            self._timed(self._control.update, step)
            self._timed(self._control.update_times, step.trees, draft_ms, pass_ms)
            self.names[self._control.choice.name] += 1
        self.ms += draft_ms + pass_ms
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


def report(recorded: Sequence[dict[str, Any]]) -> str:
    policies: dict[str, Any] = {f"chain of {k}": lambda k=k: Chain(k) for k in (2, 4, 6)}
    policies |= {f"tree of {n}": lambda n=n: BestFirst(n, child_share=0.4) for n in (4, 8, 12, 16, 32)}
    rows = []
    for name, make in {**policies, "auto": Control}.items():
        cells = []
        for parts in DRAFTERS.values():
            replay = Replay(parts, make())
            for text in recorded:
                replay.walk(text)
            taken = [f"{n} {c / replay.names.total():.0%}" for n, c in replay.names.most_common(2)]
            taken += [f"own time {np.median(replay.own_ms):.2f} ms"] if replay.own_ms else []
            cells.append(f"{replay.ms / replay.num_tokens:.2f}" + (f" ({', '.join(taken)})" if taken else ""))
        rows.append([name, *cells])
    lines = ["# Measured control on recorded drafts", "", (__doc__ or "").split("\n\n")[1].replace("\n", " "), ""]
    lines += [
        f"{len(recorded)} texts of {len(recorded[0]['text'])} tokens. Milliseconds of a pass by nodes: {PASS_MS}."
    ]
    lines += [f"Of a draft, a draft pass and a node: head {DRAFT_MS[HEAD]}, recycling {DRAFT_MS[RECYCLING]},"]
    lines += [f"suffix lookup {DRAFT_MS[SUFFIX]}, and {MERGE_MS} per merged node.", ""]
    return "\n".join([*lines, markdown_table(["ms per token", *DRAFTERS], rows), settings_lines(settings())])


def main() -> None:
    options = parser(__doc__ or "", threads=2)
    options.add_argument("--record", type=Path, help="the file to be written")
    options.add_argument("--replay", type=Path, help="a file that was written")
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    options.add_argument("--output", type=Path, default=RESULTS / "control" / "replay.md", help="of the replay")
    options.add_argument("--prompts", type=int, default=16)
    options.add_argument("--new-tokens", type=int, default=48)
    options.add_argument("--temperature", type=float, default=0.0)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    console = Console()
    if args.record is not None:
        torch.save(record(args, console), args.record)
    if args.replay is not None:
        text = report(torch.load(args.replay))
        args.output.write_text(text)
        console.print(text, markup=False)


if __name__ == "__main__":
    main()
