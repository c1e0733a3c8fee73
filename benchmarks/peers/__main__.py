"""Trees, what people run today and other libraries on the same held-out prompts, with the same float32 weights.

    python -m benchmarks.peers --spec-bench question.jsonl --temperatures 0 --minutes 30
    make bench-peers ARGS="--spec-bench question.jsonl --prompts 20"

Every prompt is decoded by all contestants, one after the other, in rotating order; other libraries wait in processes
of their own environments. Reading the prompt is left out in the same way for all: the time of a call for one token,
and that token, are subtracted. Trees, whose call for one token takes a whole step besides, have plain decoding's with
the same model. Contestants of treespec and transformers run from the fastest linear layers (`treespec.optimize`) but
for plain `generate` and compiled plain decoding. The head's weights have 8 bits. Drafters learn from prompt to prompt.
Finished prompts are kept in the user's cache folder: started again, a run goes on where it stopped, with new drafters.
Other temperatures of the result file stay.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks.common.progress import progress_bar
from benchmarks.common.prompts import Prompt, encode
from benchmarks.common.settings import RESULTS, load_average, parser, settings, write_json
from benchmarks.common.store import Store, digest
from benchmarks.heads.trained_heads import held_out
from benchmarks.peers.contestants import DEFAULT, OPTIMIZED, PLAIN, TITLES, Decoder, Process, made
from benchmarks.peers.report import picture, report
from treespec.hf.loading import smollm2
from treespec.lab.selftest.agreement import compare, plain_greedy

WARM_UP = Prompt("warm-up", "Name three rivers and three trees, one per line.")


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    prompts = held_out(args.spec_bench, args.prompts)
    deadline = time.perf_counter() + 60 * args.minutes
    data: dict[str, Any] = json.loads(args.output.read_text()) if args.output.is_file() else {"found": {}}
    with progress_bar(console) as progress:
        for temperature in args.temperatures:
            run = settings(seed=args.seed, new_tokens=args.new_tokens)
            found = measure(args, model, tokenizer, prompts, temperature, deadline, progress)
            if found["prompts"]:
                data["found"][f"T = {temperature:g}"] = found | {"run": run}
    write_json(args.output, data)
    picture(data, args.output.with_suffix(".png"))
    text = report(data, __doc__ or "", args.output.with_suffix(".png").name)
    args.output.with_suffix(".md").write_text(text)
    console.print(text, markup=False)


def measure(
    args: argparse.Namespace,
    model: Any,
    tokenizer: Any,
    prompts: list[Prompt],
    temperature: float,
    deadline: float,
    progress: Progress,
) -> dict[str, Any]:
    """By prompt and contestant: seconds, tokens, agreement; the loads, and who was left out and why."""
    decoders, left_out = made(args.contestants, model, args.threads, args.draft_model)
    cache = smollm2.converted_folder().parent / "peers"
    key = digest(args.new_tokens, args.seed, args.threads, temperature, list(decoders))
    store, found, loads = Store(cache / f"{key}.jsonl"), {}, [load_average()]
    for decoder in decoders.values():
        decoder.decode(encode(tokenizer, [WARM_UP]), args.new_tokens, temperature, args.seed)
    task = progress.add_task(f"T = {temperature:g}", total=len(prompts))
    for turn, prompt in enumerate(prompts):
        if time.perf_counter() > deadline:
            break
        inputs = encode(tokenizer, [prompt])
        runs = store.get(
            prompt.name,
            lambda inputs=inputs, turn=turn: measured(decoders, inputs, args.new_tokens, temperature, turn, args.seed),
        )
        found[prompt.name] = runs if temperature else agreeing(model, inputs, runs, args.new_tokens)
        loads.append(load_average())
        progress.advance(task)
    for decoder in decoders.values():
        if isinstance(decoder, Process):
            decoder.close()
    return {"prompts": found, "loads": loads, "left_out": left_out}


def measured(
    decoders: dict[str, Decoder], inputs: dict[str, Tensor], num_new: int, temperature: float, turn: int, seed: int
) -> dict[str, Any]:
    """Every contestant once, in an order that rotates with `turn`; `reading` is the time of a call for one token."""
    names = list(decoders)
    first, runs = turn % len(names), {}
    for name in names[first:] + names[:first]:
        output = decoders[name].decode(inputs, num_new, temperature, seed + turn)
        runs[name] = {"seconds": output.seconds, "tokens": output.tokens}
        if decoders[name].is_reading_measured:
            runs[name]["reading"] = decoders[name].decode(inputs, 1, temperature, seed + turn).seconds
    return {name: {"reading": runs[OPTIMIZED]["reading"]} | runs[name] for name in names}


def agreeing(model: Any, inputs: dict[str, Tensor], runs: dict[str, Any], num_new: int) -> dict[str, Any]:
    """Runs with `agreement` with plain `generate`: identical, tie (its two best logits are that close) or different."""
    plain, reference = runs[PLAIN]["tokens"], None
    for run in runs.values():
        if run["tokens"] == plain:
            run["agreement"] = "identical"
            continue
        reference = reference or plain_greedy(model, inputs, num_new)
        found = compare(model, inputs["input_ids"][0], reference, run["tokens"])
        run |= {"agreement": "tie" if found.is_right else "different", "position": found.position, "gap": found.gap}
    return runs


def _arguments() -> argparse.Namespace:
    options = parser((__doc__ or "").split("\n\n")[0], threads=2)
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    options.add_argument("--prompts", type=int, default=100, help="(default: %(default)s)")
    options.add_argument("--new-tokens", type=int, default=48, help="(default: %(default)s)")
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0], help="(default: 0)")
    options.add_argument("--minutes", type=float, default=60.0, help="no prompt is begun later (default: %(default)s)")
    options.add_argument(
        "--contestants", nargs="+", choices=[*TITLES, "default", "all"], default=["default"], metavar="NAME",
        help=f"all, default ({' '.join(DEFAULT)}), or some of: {' '.join(TITLES)}",
    )  # fmt: skip
    options.add_argument("--draft-model", type=Path, help="a folder, for the contestant `assisted`")
    options.add_argument("--output", type=Path, default=RESULTS / "peers" / "peers.json")
    args = options.parse_args()
    groups = {"default": DEFAULT, "all": list(TITLES)}
    args.contestants = [name for given in args.contestants for name in groups.get(given, [given])]
    return args


if __name__ == "__main__":
    main()
