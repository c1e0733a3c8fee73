"""The control of `tree="auto"` against every fixed tree, on machines of which only the times are simulated.

    python -m benchmarks.control     # half an hour

Real calls of SmolLM2 with the head and the warm lookups. The control learns the measured times of drafts and passes by
size, with their noise, in place of the clock's, so that another process changes none of its choices; on other machines
a pass's extra nodes take half or twice as long. First calls are by new objects, whose lookups know less than those of
later calls and of the fixed sizes, all by the same: that is in their quotient. Results: benchmarks/results/control.md.
"""

import time
from itertools import product
from typing import Any

import numpy as np
import torch
from rich.progress import track

from benchmarks.common.drafters import fastest_head
from benchmarks.common.prompts import QUESTIONS, encode, held_out
from benchmarks.common.settings import RESULTS, SAMPLING, load_average, markdown_table, parser, publish, settings
from treespec import Control, Observer, TreeSpeculation, optimize
from treespec.engine.observer import StepRecord
from treespec.lab import smollm2
from treespec.lab.named import named_drafters
from treespec.protocols import VerifiedStep

SIZES = (1, 4, 6, 8, 12, 16, 32)
SLOPES = (0.5, 1.0, 2.0)
"""Factors on the time of a pass's extra nodes."""
Times = dict[int, list[tuple[float, float]]]
"""Milliseconds of steps by the size of the tree asked for: drafting, and the rest."""


class Watch(Observer):
    """Counts a call's steps by size, with their times."""

    def __init__(self, size: int, times: Times) -> None:
        self._times = times[size]

    def on_step(self, step: StepRecord) -> None:
        if not step.is_prompt:
            draft = step.seconds["draft"]
            self._times.append((1e3 * draft, 1e3 * (sum(step.seconds.values()) - draft)))


class Simulated(Control):
    """A control whose steps take a machine's times; it counts these, its steps and its own thread time."""

    def __init__(self, times: Times, slope: float) -> None:
        super().__init__()
        self.sizes, self._random = list(times), np.random.default_rng(0)
        self.step_ms = np.array([np.median(found, axis=0) for found in times.values()])
        drafted = list(zip(times.values(), self.step_ms, strict=True))[1:]
        self._noise = np.concatenate([np.array(found) / ms for found, ms in drafted])
        self.step_ms[:, 1] = self.step_ms[0, 1] + slope * (self.step_ms[:, 1] - self.step_ms[0, 1])
        self.ms = self.own_ms = self.num_steps = 0.0

    def timed(self, method: str, *arguments: Any) -> Any:
        start = time.thread_time()
        found = getattr(super(), method)(*arguments)
        self.own_ms += 1e3 * (time.thread_time() - start)
        return found

    def choose(self, *arguments: Any, **_: Any) -> bool:
        return self.timed("choose", *arguments)

    def trim(self, trees: Any) -> Any:
        return self.timed("trim", trees)

    def learn(self, step: VerifiedStep, draft_ms: float, other_ms: float | None) -> None:
        asked = 1 if self.choice.name == "plain" else self.current.max_nodes
        ms = np.array([np.interp(asked, self.sizes, column) for column in self.step_ms.T])
        self.ms, self.num_steps = self.ms + float(ms.sum()), self.num_steps + 1
        self.timed("learn", step, *(ms * self._random.choice(self._noise)).tolist())


def measure(model: Any, tokenizer: Any, prompts: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    """By slope: tokens per ms of all sizes, of first and of later calls, and the control's own ms per step."""
    parts: dict[str, Any] = {"head": fastest_head(model)}

    def speculation(tree: Any, *observers: Observer) -> TreeSpeculation:
        drafters = named_drafters(["head", "warm"], model, tokenizer, smollm2.NAME, parts)
        return TreeSpeculation(drafters, tree=tree, observers=observers)

    def decode(inputs: Any, speculation: TreeSpeculation) -> int:
        torch.manual_seed(0)
        ids = model.generate(**inputs, **options, custom_generate=speculation)
        return ids.shape[1] - inputs["input_ids"].shape[1] - 1  # The prompt's pass gave the first token.

    times, counts, found = Times({size: [] for size in SIZES}), dict.fromkeys(SIZES, 0), dict[str, Any]()
    fixed = {size: speculation(size, Watch(size, times)) for size in SIZES}
    for inputs, size in track(list(product(prompts, SIZES)), "fixed sizes"):  # In turn, under the same load.
        counts[size] += decode(inputs, fixed[size])
    for slope in SLOPES:
        later, firsts = Simulated(times, slope), [Simulated(times, slope) for _ in prompts]
        same = speculation(later)
        num_later = sum(decode(inputs, same) for inputs in track(prompts, f"nodes x {slope}, later calls"))
        pairs = zip(track(prompts, f"nodes x {slope}, first calls"), firsts, strict=True)
        num_first = sum(decode(inputs, speculation(first)) for inputs, first in pairs)
        step_ms = zip(SIZES, later.step_ms.sum(1).tolist(), strict=True)
        found[str(slope)] = {
            "fixed": {str(size): counts[size] / len(times[size]) / ms for size, ms in step_ms},
            "first": num_first / sum(first.ms for first in firsts),
            "later": num_later / later.ms,
            "own_ms": later.own_ms / later.num_steps,
        }
    return found


def report(data: dict[str, Any]) -> str:
    header, rows = ["", "nodes' time", *(f"tree of {n}" for n in SIZES[1:]), "first calls", "later calls", "own ms"], []
    for (key, by_slope), slope in product(data["found"].items(), map(str, SLOPES)):
        found = by_slope[slope]
        plain, best = found["fixed"][str(SIZES[0])], max(found["fixed"].values())
        speeds = [*(found["fixed"][str(n)] / plain for n in SIZES[1:]), found["first"] / best, found["later"] / best]
        rows.append([key, slope, *(f"{speed:.2f}" for speed in speeds), f"{found['own_ms']:.3f}"])
    about = f"{data['prompts']} held-out prompts, {data['new_tokens']} new tokens, load {data['loads']}."
    kinds = (
        "Trees: times plain decoding's speed. The control's calls: times the best size's, in hindsight; own ms a step."
    )
    return f"# The control against fixed trees\n\n{about} {kinds}\n\n{markdown_table(header, rows)}"


def main() -> None:
    options = parser(str(__doc__).splitlines()[0], threads=1)
    options.add_argument("--spec-bench", **QUESTIONS)
    options.add_argument("--prompts", type=int, default=24)
    options.add_argument("--new-tokens", type=int, default=24)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    data = settings(prompts=args.prompts, new_tokens=args.new_tokens, loads=[load_average()])
    model, tokenizer = smollm2.load()
    optimize(model)
    prompts = [encode(tokenizer, [prompt]) for prompt in held_out(args.spec_bench, args.prompts)]
    sampled = {key: {"max_new_tokens": args.new_tokens, **sampling} for key, sampling in SAMPLING.items()}
    data["found"] = {key: measure(model, tokenizer, prompts, options) for key, options in sampled.items()}
    data["loads"].append(load_average())
    publish(RESULTS / "control.json", data, report(data))


if __name__ == "__main__":
    main()
