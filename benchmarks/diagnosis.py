"""The diagnosis of real runs of SmolLM2-135M-Instruct, each slow by one cause: what it names, and its predictions.

A first call is traced and diagnosed. Then calls without a trace are timed together with plain `generate` with the same
streamer, processors and length, and the predicted speed is compared with the measured one. Every call has
new drafters; weights are packed.

    python -m benchmarks.diagnosis --threads 1
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.progress import track
from transformers import LogitsProcessor, LogitsProcessorList

from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec import Chain, SuffixLookup, TreeSpeculation, generate
from treespec.commands.models import Loaded, load
from treespec.hf.loading import smollm2
from treespec.hf.models.pass_times import pass_times

CODE = "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples."
STORY = "Write a short story about a clockmaker who finds a watch that runs backwards."
FACTS = "The old bridge was built in 1874 by the town's people. It has three arches and a small tower at each end. "
SLOW_MS = 100.0


class SlowStreamer:
    """Waits at every token, as one that writes to a slow terminal."""

    def put(self, value: Any) -> None:
        time.sleep(1e-3 * SLOW_MS * value.numel() if value.numel() < 20 else 0)

    def end(self) -> None:
        pass


class SlowProcessor(LogitsProcessor):
    """Changes nothing, slowly."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        time.sleep(1e-3 * SLOW_MS)
        return scores


@dataclass(frozen=True)
class Case:
    """A run. `cause` is what slows it down, None where nothing should."""

    cause: str | None
    drafters: Callable[[Loaded], Any]
    tree: Any = 8
    prompt: str = CODE
    new_tokens: int = 64
    num_rows: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    streamer: Any = None


def shipped(loaded: Loaded) -> list[Any]:
    return loaded.drafters(["head", "warm"])


SAMPLED = {"do_sample": True, "top_k": 0}
CASES = {
    "shipped drafters, code": Case(None, shipped),
    "shipped drafters, tree='auto', code": Case(None, shipped, "auto"),
    "the target drafts for itself": Case("draft too expensive", lambda loaded: loaded.model, Chain(4)),
    "tree of 64 nodes": Case("tree too large", shipped, 64),
    "16 rows": Case("batch too large", lambda loaded: loaded.drafters(["warm"]), 8, num_rows=16),
    "prompt of 700 tokens, 16 new ones": Case("prompt longer than the answer", shipped, 8, 25 * FACTS, 16),
    "slow streamer": Case("host work", shipped, streamer=SlowStreamer()),
    "slow logits processor": Case(
        "processors expensive", shipped, options={"logits_processor": LogitsProcessorList([SlowProcessor()])}
    ),
    "suffix lookup, a story": Case("hardly any drafts", lambda loaded: SuffixLookup(), 8, STORY),
    "sampled at temperature 2, a story": Case(
        "hostile text", shipped, 8, STORY, options={**SAMPLED, "temperature": 2.0}
    ),
}


def decode(case: Case, model: Any, inputs: dict[str, Any], speculation: TreeSpeculation | None, seed: int) -> float:
    """Seconds of one call."""
    torch.manual_seed(seed)
    length = {"max_new_tokens": case.new_tokens, "min_new_tokens": case.new_tokens}
    given: Any = {"do_sample": False, "streamer": case.streamer} | length | case.options | inputs
    start = time.perf_counter()
    if speculation is None:
        model.generate(**given)
    else:
        generate(model, speculation=speculation, **given)
    return time.perf_counter() - start


def run(case: Case, loaded: Loaded, seed: int, rounds: int) -> dict[str, Any]:
    model, tokenizer = loaded.model, loaded.tokenizer
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": case.prompt}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer([text] * case.num_rows, add_special_tokens=False, return_tensors="pt")
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with tempfile.TemporaryDirectory() as folder:
        traced = TreeSpeculation(case.drafters(loaded), tree=case.tree, seed=seed, trace=Path(folder) / "run.jsonl")
        decode(case, model, inputs, traced, seed)
        found = treespec.diagnose(traced)
    ratios, ordinary = [], []
    for number in range(rounds):
        speculation = TreeSpeculation(case.drafters(loaded), tree=case.tree, seed=seed)
        plain = decode(case, model, inputs, None, seed + number)
        ratios.append(plain / decode(case, model, inputs, speculation, seed + number))
        ordinary.append(treespec.diagnose(speculation))
    return {
        "cause": case.cause,
        "named": [cause.name for cause in found.causes],
        "named_without_trace": [cause.name for cause in ordinary[-1].causes],
        "measured_speed": ratios,
        "predicted_speed": [one.speedup for one in ordinary],
        "diagnosis": found.as_dict(),
        "text": str(found),
    }


def report(data: dict[str, Any]) -> str:
    rows = []
    for name, found in data["runs"].items():
        changed = [cause["speedup"] for cause in found["diagnosis"]["causes"][:1]]
        rows.append(
            [
                name,
                found["cause"] or "none",
                ", ".join(found["named"]) or "none",
                ", ".join(found["named_without_trace"]) or "none",
                f"{median(found['measured_speed']):.2f}",
                f"{median(found['predicted_speed']):.2f}",
                f"{changed[0]:.2f}" if changed else "",
                f"{found['diagnosis']['perfect_speedup']:.1f}",
            ]
        )
    right = sum((found["named"][:1] or [None])[0] == found["cause"] for found in data["runs"].values())
    header = ["run", "its cause", "named", "named without a trace", "measured speed", "predicted", "with the change"]
    return "\n".join(
        [
            f"# Diagnoses of real runs of {smollm2.NAME}\n",
            f"The prepared cause comes first in {right} of {len(rows)} runs. Speeds are in times of plain `generate`, "
            f"medians of {data['rounds']} paired rounds; load average {data['load_average']} before, "
            f"{data['load_average_after']} after.\n",
            markdown_table([*header, "perfect drafts"], rows),
            *(f"## {name}\n\n```text\n{found['text']}\n```\n" for name, found in data["runs"].items()),
            settings_lines(data),
        ]
    )


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--rounds", type=int, default=2)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    data = settings(seed=args.seed, rounds=args.rounds, runs={})
    loaded = load(None, is_packed=True)  # As commands do: with plain layers every tree would have a second cause.
    pass_times(loaded.model)
    for name, case in track(CASES.items(), description="runs"):
        data["runs"][name] = run(case, loaded, args.seed, args.rounds)
        data["load_average_after"] = load_average()
        write_json(RESULTS / "diagnosis" / "diagnosis.json", data)  # An interrupted run leaves what it has.
    (RESULTS / "diagnosis" / "diagnosis.md").write_text(report(data))
    print(report(data))


if __name__ == "__main__":
    main()
