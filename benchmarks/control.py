"""Measured control, plain decoding, chains and fixed trees: time per token by drafter, batch and temperature.

All contestants share the model with optimised linear layers and its `generate`. Runs are paired: every group of prompts
is decoded by all contestants, in rotating order. Each contestant is one object that serves all prompts, as in use, so
that tables and control learn from call to call. Reading the prompt is left out: of plain decoding its first
pass. The best chain and the best tree are chosen in hindsight, which favours them.

    python -m benchmarks.control --spec-bench question.jsonl
    python -m benchmarks.control --prompts 4 --new-tokens 16 --drafters lookups random --batches 1 --temperatures 0
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from transformers import StoppingCriteria

from benchmarks.common.drafters import fastest_head, warm_start
from benchmarks.common.estimates import ratio
from benchmarks.common.outputs import strip_padding
from benchmarks.common.progress import progress_bar
from benchmarks.common.prompts import Prompt, by_turns, encode, gsm8k, human_eval, spec_bench, spread
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec import Chain, Eagle3, TokenRecycling, TreeSpeculation, optimize
from treespec.drafters.base import SessionSource
from treespec.hf.loading import smollm2
from treespec.hf.models.pass_times import pass_times
from treespec.lab.measure.estimates import bootstrap
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.viz import ACCEPTED, REFERENCE

PLAIN, AUTO = "plain", "auto"
SHAPES: dict[str, Any] = {
    "chain of 2": Chain(2),
    "chain of 4": Chain(4),
    "chain of 6": Chain(6),
    "tree of 8": 8,
    "tree of 16": 16,
    "tree of 32": 32,
    AUTO: "auto",
}
Runs = dict[str, list[float]]
"""Milliseconds per token by contestant, one per group of prompts."""


class RandomDrafts(SessionSource):
    """Proposes random tokens, at the price of a head's passes: what control must back off from."""

    def __init__(self, head: Any) -> None:
        self._head, self.num_weights = head, sum(weight.numel() for weight in head.parameters())

    def start(self, session: Session) -> None:
        self._session = session

    def propose(self, max_depth: int) -> Any:
        return self._policy.grow(self, min(max_depth, 8))

    def expand(self, frontier: Frontier) -> Proposal:
        """Equal confidence in eight random tokens."""
        shape = (*frontier.tokens.shape, 8)
        self._head.lm_head(torch.zeros(frontier.tokens.shape[1], self._head.lm_head.in_features))
        return Proposal(torch.full(shape, 0.12), torch.randint(self._session.vocab_size, shape))

    def update(self, step: VerifiedStep) -> None:
        pass

    def select_rows(self, rows: Any) -> None:
        pass


def drafters(model: Any) -> dict[str, Callable[[], Any]]:
    head = fastest_head(model)
    return {
        "head": lambda: Eagle3(head.head, head.hidden_layers),
        "merged": lambda: [Eagle3(head.head, head.hidden_layers), *warm_start().drafters()],
        "lookups": lambda: warm_start().drafters(),
        "random": lambda: RandomDrafts(head.head),
    }


class Bench:
    """The model and one `TreeSpeculation` per contestant, by temperature and batch size."""

    def __init__(
        self, model: Any, tokenizer: Any, num_new: int, made: dict[str, Callable[[], Any]], shapes: Sequence[str]
    ) -> None:
        self.model, self._tokenizer, self._num_new = model, tokenizer, num_new
        self.speculations: dict[str, TreeSpeculation | None] = {PLAIN: None}
        for drafter, make in made.items():
            for shape in shapes:
                self.speculations[f"{drafter}, {shape}"] = TreeSpeculation(make(), tree=SHAPES[shape])

    def measure(self, prompts: list[Prompt], temperature: float, turn: int, seed: int) -> dict[str, float]:
        """Milliseconds per token of every contestant, in an order that rotates with `turn`."""
        inputs = encode(self._tokenizer, prompts)
        names = list(self.speculations)
        first = turn * 5 % len(names)
        found = {name: self._decode(name, inputs, temperature, seed) for name in names[first:] + names[:first]}
        return {name: found[name] for name in names}

    def _decode(self, name: str, inputs: dict[str, Any], temperature: float, seed: int) -> float:
        options = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        speculation = self.speculations[name]
        torch.manual_seed(seed)
        reading = _Reading()
        options |= {"stopping_criteria": [reading]} if speculation is None else {"custom_generate": speculation}
        hook = self.model.register_forward_pre_hook(reading.begins)
        start = time.perf_counter()
        out = self.model.generate(**inputs, **options, max_new_tokens=self._num_new)
        seconds = time.perf_counter() - start
        hook.remove()
        rows = out[:, inputs["input_ids"].shape[1] :].tolist()
        count = sum(len(strip_padding(row, self._tokenizer.eos_token_id)) for row in rows)
        if speculation is None:  # Reading gives every row's first token.
            return 1e3 * (seconds - reading.seconds) / max(count - len(rows), 1)
        return 1e3 * (seconds - speculation.stats.seconds["prefill"]) / count

    def warm_up(self, prompts: list[Prompt]) -> None:
        """What happens once per model and kind of input, such as the first padded batch's check, is not timed."""
        speculation = TreeSpeculation(TokenRecycling(), tree=4)
        inputs = encode(self._tokenizer, prompts)
        self.model.generate(**inputs, do_sample=False, max_new_tokens=4, custom_generate=speculation)


class _Reading(StoppingCriteria):
    """Stops nothing, and times the first pass of plain decoding, until its token is there. A call for one token, timed
    and subtracted, would be another's time: reading a batch of long prompts varies by more than a step takes."""

    def __init__(self) -> None:
        self._begin = self.seconds = 0.0

    def begins(self, *_: Any) -> None:
        self._begin = self._begin or time.perf_counter()

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.seconds = self.seconds or time.perf_counter() - self._begin
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def measure(args: argparse.Namespace, model: Any, tokenizer: Any, console: Console) -> dict[str, Any]:
    """By batch size and temperature: the runs, what control chose, and the loads."""
    made = {name: make for name, make in drafters(model).items() if name in args.drafters}
    pass_times(model, is_remeasured=True)  # Before anything is timed; what is kept may be a busier hour's.
    found: dict[str, Any] = {}
    prompts = held_out(args.spec_bench, args.prompts)
    with progress_bar(console) as progress:
        task = progress.add_task("prompts", total=len(prompts) * len(args.batches) * len(args.temperatures))
        for size in args.batches:
            for temperature in args.temperatures:
                bench, runs, loads = Bench(model, tokenizer, args.new_tokens, made, args.shapes), [], [load_average()]
                bench.warm_up(prompts[:size])
                for turn, start in enumerate(range(0, len(prompts), size)):
                    part = prompts[start : start + size]
                    runs.append(bench.measure(part, temperature, turn, args.seed + turn))
                    loads.append(load_average())
                    progress.advance(task, len(part))
                chosen = {name: s.total_stats.choices for name, s in bench.speculations.items() if s is not None}
                by_name = {name: [run[name] for run in runs] for name in runs[0]}
                found[f"batch {size}, T = {temperature:g}"] = {"runs": by_name, "choices": chosen, "loads": loads}
    return found


def held_out(spec_bench_path: Path | None, count: int) -> list[Prompt]:
    """Prompts of all sources by turns."""
    sources = [human_eval(), gsm8k()]
    if spec_bench_path is not None:
        sources.append(by_turns(spec_bench(spec_bench_path).values()))
    return by_turns([spread(source, -(-count // len(sources))) for source in sources])[:count]


def table(runs: Runs, choices: dict[str, Counter[str]]) -> str:
    """A row per drafter: plain, the best chain and tree in hindsight, and auto with its gains."""
    rows = []
    for drafter in dict.fromkeys(name.split(", ")[0] for name in runs if name != PLAIN):
        own = {name.split(", ")[1]: ms for name, ms in runs.items() if name.startswith(f"{drafter}, ")}
        kinds = [[name for name in own if name.startswith(kind)] for kind in ("chain", "tree")]
        best = [min(names, key=lambda n, own=own: fmean(own[n]), default=None) for names in kinds]
        others = [runs[PLAIN], *(None if name is None else own[name] for name in best)]
        taken = Counter(choices.get(f"{drafter}, {AUTO}", {}))
        rows.append(
            [
                drafter,
                *("" if ms is None else f"{np.median(ms):.1f}" for ms in (*others, own[AUTO])),
                " / ".join(name or "-" for name in best),
                *("" if ms is None else ratio(ms, own[AUTO]).text() for ms in others),
                ", ".join(f"{name} {count / taken.total():.0%}" for name, count in taken.most_common(3)),
            ]
        )
    header = ["drafter", "plain, ms per token", "best chain", "best tree", "auto", "which chain / tree"]
    return markdown_table([*header, "auto against plain", "against the chain", "against the tree", "chosen"], rows)


def report(data: dict[str, Any], picture_name: str) -> str:
    about = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    lines = ["# Measured control", "", about, "", f"![Times]({picture_name})", ""]
    for name, found in data["found"].items():
        count = len(found["runs"][PLAIN])
        loads = f"load {min(found['loads'])} to {max(found['loads'])}"
        lines += [f"## {name}", "", f"{count} paired runs of {data['new_tokens']} new tokens, {loads}.", ""]
        lines += [table(found["runs"], found["choices"])]
    lines += ["Medians; ratios are medians of paired ratios with 95 % bootstrap intervals.", "", settings_lines(data)]
    return "\n".join(lines)


def picture(data: dict[str, Any], path: Path) -> None:
    """Median milliseconds per token of every contestant, one plot per batch size and temperature."""
    found = data["found"]
    figure = Figure(figsize=(6 * len(found), 1 + 0.25 * len(next(iter(found.values()))["runs"])), dpi=110)
    for plot, (title, cell) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        names = list(cell["runs"])
        for number, name in enumerate(names):
            value, low, high = bootstrap(cell["runs"][name], np.median)
            colour = ACCEPTED if name.endswith(AUTO) else REFERENCE
            plot.plot([low, high], [number, number], color=colour, linewidth=2, alpha=0.6)
            plot.plot([value], [number], "o", color=colour, markersize=5)
        plot.axvline(float(np.median(cell["runs"][PLAIN])), color=REFERENCE, linewidth=0.8, linestyle=":")
        plot.set_yticks(range(len(names)), names, fontsize=7)
        plot.invert_yaxis()
        plot.set_xlim(left=0)
        plot.set_title(f"{title}: ms per token", fontsize=9, loc="left")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    data = settings(seed=args.seed, new_tokens=args.new_tokens)
    with optimize(model):
        data["found"] = measure(args, model, tokenizer, console)
    data["load_average_after"] = load_average()
    write_json(args.output, data)
    picture_path = args.output.with_suffix(".png")
    picture(data, picture_path)
    text = report(data, picture_path.name)
    args.output.with_suffix(".md").write_text(text)
    console.print(text, markup=False)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "", threads=2)
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    options.add_argument("--prompts", type=int, default=24)
    options.add_argument("--new-tokens", type=int, default=48)
    options.add_argument("--drafters", nargs="+", default=["head", "merged", "lookups", "random"])
    options.add_argument(
        "--shapes",
        nargs="+",
        default=list(SHAPES),
        choices=list(SHAPES),
        help="contestants besides plain; one must be auto",
    )
    options.add_argument("--batches", nargs="+", type=int, default=[1, 4, 8])
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    options.add_argument("--output", type=Path, default=RESULTS / "control" / "control.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
