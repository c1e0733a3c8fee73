"""What trained drafters gain on held-out prompts: acceptance and milliseconds per token, at temperatures 0 and 1.

A quarter of the prompts each is HumanEval's and GSM8K's, half is Spec-Bench's (without --spec-bench: half and half);
no training text begins with any of them. Every prompt is decoded by all contestants, one after the other in rotating
order, with `model.generate` from the bare prompt. No drafter learns from one prompt for another. Time per
token is counted from the end of the first step on, so that reading the prompt is left out for all alike. Finished
prompts are kept in the user's cache folder: started again, a run goes on where it stopped, and temperatures that were
measured one by one come together.

    python -m benchmarks.heads.trained_heads --spec-bench question.jsonl
    python -m benchmarks.heads.trained_heads --drafter one=runs/one/drafter --drafter two=runs/two/drafter --prompts 20
    python -m benchmarks.heads.trained_heads --draft-model runs/draft/drafter  # and transformers' assisted generation
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor
from transformers import StoppingCriteriaList

from benchmarks.common.drafters import warm_start
from benchmarks.common.outputs import strip_padding
from benchmarks.common.progress import progress_bar
from benchmarks.common.prompts import Prompt, by_turns, encode, gsm8k, human_eval, spec_bench, spread
from benchmarks.common.settings import RESULTS, load_average, parser, settings, write_json
from benchmarks.common.store import Store, digest
from benchmarks.heads.trained_report import PLAIN, Measurement, Runs, picture, report
from treespec import Chain, TreeSpeculation, load_drafter, shipped_head
from treespec.hf import make_scorer
from treespec.hf.cpu import prepack_linears
from treespec.hf.loading import smollm2
from treespec.hf.loading.models import load_model
from treespec.lab.selftest.agreement import Plain, compare, plain_greedy

CHAIN, MERGED, ASSISTED = "chain of 4", "recycling + suffix", "transformers' assisted generation"
SHAPES: dict[str, Any] = {CHAIN: Chain(4), "tree of 16": 16, "tree of 32": 32}
"""Trees are counted with their root, a chain by what it drafts."""


class FirstStep:
    """A stopping criterion that never stops and records when the first step ended, and with how many new tokens.

    It may be asked after every token of a step: `num_passes()` distinguishes the steps.
    """

    def __init__(self, num_prompt: int, num_passes: Callable[[], int]) -> None:
        self._num_prompt, self._num_passes = num_prompt, num_passes
        self._pass: int | None = None
        self.seconds, self.num_tokens = 0.0, 0

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """See `transformers.StoppingCriteria`."""
        if self._pass is None:
            self.seconds, self._pass = time.perf_counter(), self._num_passes()
        if self._pass == self._num_passes():
            self.num_tokens = input_ids.shape[1] - self._num_prompt
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Bench:
    """The model, its passes counted, and plain greedy decoding to compare with."""

    def __init__(self, model: Any, tokenizer: Any, num_new: int) -> None:
        self.model, self._tokenizer, self._num_new, self.num_passes = model, tokenizer, num_new, 0
        self._plains: dict[str, Plain] = {}
        make_scorer(model)  # The self-check of a model's first use is not counted.
        model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.num_passes += 1

    def decode(self, prompt: Prompt, temperature: float, options: dict[str, Any], seed: int) -> Measurement:
        """Decode a prompt, and where that is greedy compare the output with plain decoding's."""
        inputs = encode(self._tokenizer, [prompt])
        width = inputs["input_ids"].shape[1]
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        first, before = FirstStep(width, lambda: self.num_passes), self.num_passes
        torch.manual_seed(seed)
        options = options | (sampling if temperature else {"do_sample": False})
        out = self.model.generate(
            **inputs, **options, max_new_tokens=self._num_new, stopping_criteria=StoppingCriteriaList([first])
        )
        end = time.perf_counter()
        # treespec reads the prompt but for its last token in a pass of its own, whose logits are not used.
        num_passes = self.num_passes - before - ("custom_generate" in options)
        tokens = strip_padding(out[0, width:].tolist(), self._tokenizer.eos_token_id)
        # A text that ends within the first step may do so before the criterion is asked.
        ms = 1e3 * (end - first.seconds) / (len(tokens) - first.num_tokens) if num_passes > 1 else None
        found = Measurement(len(tokens), num_passes, ms)
        if temperature:
            return found
        if prompt.name not in self._plains:
            self._plains[prompt.name] = plain_greedy(self.model, inputs, self._num_new)
        agreement = compare(self.model, inputs["input_ids"][0], self._plains[prompt.name], tokens)
        return found._replace(is_identical=agreement.is_identical, is_right=agreement.is_right)


def held_out(spec_bench_path: Path | None, count: int) -> list[Prompt]:
    """`count` prompts of all sources by turns."""
    if spec_bench_path is None:
        half = count // 2
        return by_turns([spread(human_eval(), count - half), spread(gsm8k(), half)])
    quarter = count // 4
    questions = by_turns(spec_bench(spec_bench_path).values())[: count - 2 * quarter]
    return by_turns([questions[::2], spread(human_eval(), quarter), questions[1::2], spread(gsm8k(), quarter)])


class Contestant(NamedTuple):
    """A way of decoding: `options()` gives `generate`'s arguments that set it apart, fresh for every prompt."""

    name: str
    options: Callable[[], dict[str, Any]]


def contestants(args: argparse.Namespace, model: Any) -> list[Contestant]:
    """Plain decoding first, then every drafter with every shape."""
    found = [Contestant(PLAIN, dict)]
    for name, folder in args.drafters:
        head = load_drafter(folder, model)  # It learns nothing, so one serves all prompts.
        prepack_linears(head.head)
        for shape, tree in SHAPES.items():
            found.append(Contestant(f"{name}, {shape}", speculating(lambda head=head: head, tree)))
            if args.merged and shape != CHAIN:
                merged = speculating(lambda head=head: [head, *warm()], tree)
                found.append(Contestant(f"{name} + {MERGED}, {shape}", merged))
    for name, folder in args.draft_models:
        draft = load_model(folder, dtype=model.dtype).eval()
        prepack_linears(draft)
        found += [
            Contestant(f"{name}, {shape}", speculating(lambda d=draft: d, tree)) for shape, tree in SHAPES.items()
        ]
        found.append(Contestant(f"{name}, {ASSISTED}", lambda draft=draft: {"assistant_model": draft}))
    return found


def speculating(make: Callable[[], Any], tree: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"custom_generate": TreeSpeculation(make(), tree=tree)}


def warm() -> list[Any]:
    """Token recycling and suffix lookup as they ship."""
    return list(warm_start().drafters())


def measure(args: argparse.Namespace, bench: Bench, everyone: list[Contestant], store: Store, console: Console) -> Runs:
    """By temperature and contestant, one measurement per prompt."""
    chosen, deadline = held_out(args.spec_bench, args.prompts), time.perf_counter() + 60 * args.minutes
    runs: Runs = {f"T={t:g}": {c.name: [] for c in everyone} for t in args.temperatures}
    with progress_bar(console) as progress:
        task = progress.add_task("prompts", total=len(chosen))
        for number, prompt in enumerate(chosen):
            if time.perf_counter() > deadline:
                break
            for temperature in args.temperatures:
                key = f"T={temperature:g}"
                found = store.get(
                    f"{key}, {prompt.name}",
                    lambda p=prompt, t=temperature, n=number: measure_prompt(bench, p, t, everyone, n, args.seed + n),
                )
                for name, measured in found.items():
                    runs[key][name].append(Measurement(*measured))
            progress.advance(task)
    return runs


def measure_prompt(
    bench: Bench, prompt: Prompt, temperature: float, everyone: list[Contestant], turn: int, seed: int
) -> dict[str, Measurement]:
    """Every contestant once, in an order that rotates with `turn`."""
    first = turn % len(everyone)
    order = everyone[first:] + everyone[:first]
    found = {c.name: bench.decode(prompt, temperature, c.options(), seed) for c in order}
    return {c.name: found[c.name] for c in everyone}


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    data = settings(seed=args.seed, new_tokens=args.new_tokens)
    folders = [Path(folder) for _, folder in args.drafters + args.draft_models]
    weights = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    chosen = args.new_tokens, args.threads, args.seed, args.merged, args.drafters, args.draft_models
    store = Store(smollm2.converted_folder().parent / "trained_heads" / f"{digest(*chosen, files=weights)}.jsonl")
    with prepack_linears(model):
        runs = measure(args, Bench(model, tokenizer, args.new_tokens), contestants(args, model), store, console)
    data |= {"num_prompts": min(len(found[PLAIN]) for found in runs.values()), "load_average_after": load_average()}
    if not data["num_prompts"]:
        sys.exit("No prompt was measured: give more --minutes or --prompts.")
    write_json(args.output, data | {"runs": runs})
    picture(runs, data, args.output.with_suffix(".png"))
    text = report(runs, data)
    args.output.with_suffix(".md").write_text(text)
    console.print(text, markup=False)


def _named_folder(text: str) -> tuple[str, str]:
    name, _, folder = text.rpartition("=")
    return name or Path(folder).resolve().parent.name, folder


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--spec-bench", type=Path, help="Spec-Bench's question.jsonl; without it two sources are used")
    options.add_argument("--prompts", type=int, default=100)
    options.add_argument("--new-tokens", type=int, default=64)
    options.add_argument("--drafter", dest="drafters", type=_named_folder, action="append", metavar="[NAME=]FOLDER")
    options.add_argument(
        "--draft-model", dest="draft_models", type=_named_folder, action="append", default=[], metavar="[NAME=]FOLDER"
    )
    options.add_argument("--merged", action="store_true", help="with warm recycling and suffix lookup, too")
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0], metavar="T")
    options.add_argument("--minutes", type=float, default=1e9, help="no prompt is begun later than this")
    options.add_argument("--output", type=Path, default=RESULTS / "heads" / "trained_heads.json")
    args = options.parse_args()
    if args.drafters is None:
        args.drafters = [] if args.draft_models else [("head", str(shipped_head(smollm2.NAME)))]
    return args


if __name__ == "__main__":
    main()
