"""Where the time of one draft goes: the shipped EAGLE-3 head of SmolLM2-135M, a tree of 16, greedy and sampled.

Real decoding is recorded once: the states that the target gave at every step, and the tokens it went on with. Then the
drafts alone run again on them, all contestants in turn within each step, so that another process's work falls on all.
Before each draft the target's weights are read, as its pass would, so that none of the head's are left in the caches.

Contestants: the head's linear layers as they are, packed, by `treespec.optimize`, and with 8-bit weights. Phases: the
head's passes; what turns its logits into distributions or candidates; the rest of `expand` (features, masks); the
policy; `update`. "accepted" counts, where the recorded text is greedy, how many of its tokens each tree holds, plus
one; "passes" are the head's passes per draft.

    python -m benchmarks.heads.draft_time [--threads 2] [--tokens 64] [--nodes 16]

To compare two versions of treespec, run it in each one's folder with --output.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import treespec
from benchmarks.common.prompts import DEMO
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec.heads import Eagle3
from treespec.hf.cpu import prepack_linears
from treespec.hf.loading import smollm2
from treespec.policies import as_policy
from treespec.protocols import History, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree import TreeBatch

PREPARE: dict[str, Callable[[nn.Module], Any]] = {
    "plain": lambda head: None,
    "packed": prepack_linears,
    "optimised": treespec.optimize,
    "int8": lambda head: treespec.optimize(head, dtype=torch.int8),
}
PHASES = ("head", "proposals", "expand, rest", "policy", "update")


class Recorder:
    """Drafts with a head and keeps what every call and step gave it."""

    def __init__(self, drafter: Eagle3) -> None:
        self._drafter, self.hidden_layers = drafter, drafter.hidden_layers
        self.propose, self.select_rows = drafter.propose, drafter.select_rows
        self.calls: list[tuple[Session, torch.Tensor, list[VerifiedStep]]] = []

    def start(self, session: Session) -> None:
        self.calls.append((session, session.history.tokens(0).clone(), []))
        self._drafter.start(session)

    def update(self, step: VerifiedStep) -> None:
        self.calls[-1][2].append(step)
        self._drafter.update(step)


class Contestant:
    """A head of its own, whose phases are timed."""

    def __init__(self, name: str, drafter: Eagle3) -> None:
        self.drafter = drafter
        PREPARE[name](drafter.head)
        self.seconds: dict[str, float] = defaultdict(float)
        self.drafts: list[dict[str, float]] = []
        for owner, method, phase in (
            (drafter, "propose", "propose"),
            (drafter, "update", "update"),
            (drafter, "expand", "expand"),
            (drafter, "_propose", "proposals"),
            (drafter.head, "fuse", "head"),
            (drafter.head, "run", "head"),
            (drafter.head, "read", "head"),
        ):
            self._time(owner, method, phase)

    def _time(self, owner: Any, method: str, phase: str) -> None:
        run = getattr(owner, method)

        def timed(*args: Any) -> Any:
            begin = time.perf_counter()
            result = run(*args)
            self.seconds[phase] += time.perf_counter() - begin
            self.seconds["passes"] += 1e-3 * (method == "run")
            return result

        vars(owner)[method] = timed

    def finish(self, accepted: float) -> None:
        """Keep one draft's times: milliseconds, and what is counted."""
        found = {name: 1e3 * value for name, value in self.seconds.items()}
        found["policy"] = found["propose"] - found["expand"]
        found["expand, rest"] = found["expand"] - found["proposals"] - found["head"]
        self.drafts.append({name: found[name] for name in (*PHASES, "propose", "passes")} | {"accepted": accepted})
        self.seconds.clear()


def num_accepted(trees: TreeBatch, text: Sequence[int]) -> int:
    """How many tokens of a text the tree holds as a path below its root."""
    tree, node, depth = trees.trees[0], 0, 0
    while depth < len(text):
        below = [child for child in tree.children(node) if tree.token(child) == text[depth]]
        if not below:
            break
        node, depth = below[0], depth + 1
    return depth


def replay(
    contestants: Sequence[Contestant], call: tuple[Session, torch.Tensor, list[VerifiedStep]], weights: torch.Tensor
) -> None:
    """Draft at every recorded step with each contestant in turn; the first, which reads the prompt, does not count."""
    session, ids, steps = call
    mask = torch.ones_like(ids, dtype=torch.bool)
    sessions = [
        Session(
            History(ids[None], mask[None]), session.is_sampling, NoProcessors(), torch.Generator().manual_seed(0),
            session.device, session.vocab_size, [0], session.policy, session.prompt_states,
        )
        for _ in contestants
    ]  # fmt: skip
    for contestant, own in zip(contestants, sessions, strict=True):
        contestant.drafter.start(own)
    text = [token for step in steps for token in step.emitted[0]]
    for number, step in enumerate(steps):
        for contestant, own in zip(contestants, sessions, strict=True):
            weights.sum()
            trees = contestant.drafter.propose(64)
            own.history.append(0, step.emitted[0])
            contestant.drafter.update(step)
            if number:
                contestant.finish(1 + num_accepted(trees, text))
            contestant.seconds.clear()
        text = text[len(step.emitted[0]) :]


@torch.no_grad()
def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    data = settings(seed=args.seed, tokens=args.tokens, nodes=args.nodes, drafts={})
    model, tokenizer = smollm2.load()

    def shipped() -> Eagle3:
        drafter = treespec.load_drafter(treespec.shipped_head(smollm2.NAME), model)
        assert isinstance(drafter, Eagle3)
        return drafter

    weights = torch.cat([weight.flatten() for weight in model.parameters()])
    for name, is_sampling in {"greedy": False, "sampled": True}.items():
        recorder = Recorder(shipped())
        for prompt in DEMO[: args.prompts]:
            chat = [{"role": "user", "content": prompt.text}]
            inputs = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            speculation = treespec.TreeSpeculation(recorder, tree=as_policy(args.nodes), seed=args.seed)
            length = {"max_new_tokens": args.tokens, "do_sample": is_sampling} | ({"top_k": 0} if is_sampling else {})
            model.generate(**inputs, **length, custom_generate=speculation)  # pyright: ignore
        contestants = {key: Contestant(key, shipped()) for key in PREPARE}
        for call in recorder.calls:
            replay(list(contestants.values()), call, weights)
        data["drafts"][name] = {key: contestant.drafts for key, contestant in contestants.items()}
    data["load_average_after"] = load_average()
    write_json(args.output, data)
    args.output.with_suffix(".md").write_text(report(data))
    print(report(data))


def report(data: dict) -> str:
    rows = []
    for name, found in data["drafts"].items():
        for key, drafts in found.items():
            columns = {column: [draft[column] for draft in drafts] for column in drafts[0]}
            low, middle, high = statistics.quantiles(columns["propose"], n=4)
            ratios = [a["propose"] / b["propose"] for a, b in zip(found["plain"], drafts, strict=True)]
            cells = [f"{middle:.1f} ({low:.1f} to {high:.1f})", f"{statistics.median(ratios):.2f}"]
            cells += [f"{statistics.median(columns[phase]):.2f}" for phase in PHASES]
            accepted = f"{statistics.mean(columns['accepted']):.2f}" if name == "greedy" else ""
            rows.append([name, key, *cells, f"{statistics.mean(columns['passes']):.2f}", accepted])
    header = ["children", "linear layers", "a draft, ms", "plain / this", *PHASES, "passes", "accepted"]
    return (
        f"# A draft of the shipped head, a tree of {data['nodes']}\n\n"
        "Milliseconds, medians (quartiles) over all steps of all prompts; `plain / this`: median of paired ratios. "
        f"Load average {data['load_average']} before, {data['load_average_after']} after.\n\n"
        f"{markdown_table(header, rows)}\n{settings_lines(data)}"
    )


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--nodes", type=int, default=16)
    options.add_argument("--prompts", type=int, default=len(DEMO))
    options.add_argument("--output", type=Path, default=RESULTS / "heads" / "draft_time.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
