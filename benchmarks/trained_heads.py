"""What trained drafters gain on held-out prompts: acceptance and milliseconds per token, at temperatures 0 and 1.

A quarter of the prompts each is HumanEval's and GSM8K's, half is Spec-Bench's (without --spec-bench: half and half);
no training text begins with any of them. Every prompt is decoded by all contestants, one after the other in rotating
order, with `model.generate` from the bare prompt. Drafters are fresh for every prompt. Time per token is counted from
the end of the first step on, so that reading the prompt is left out for all alike. Finished prompts are kept in the
user's cache folder: started again, a run goes on where it stopped.

    python -m benchmarks.trained_heads --spec-bench question.jsonl
    python -m benchmarks.trained_heads --drafter one=runs/one/drafter --drafter other=runs/other/drafter --prompts 20
    python -m benchmarks.trained_heads --draft-model runs/draft/drafter  # beside transformers' assisted generation
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from transformers import AutoModelForCausalLM, StoppingCriteriaList

import treespec
from benchmarks import smollm2
from benchmarks.greedy_identity import strip_padding
from benchmarks.paired import ratio
from benchmarks.progress import progress_bar
from benchmarks.prompts import Prompt, by_turns, encode, gsm8k, human_eval, spec_bench, spread
from benchmarks.reference import Plain, compare, plain_greedy
from benchmarks.settings import RESULTS, load_average, markdown_table, parser, settings, settings_lines, write_json
from benchmarks.verification import Store
from treespec import Chain, TreeSpeculation, WarmStart, load_drafter, shipped_head
from treespec.hf.cpu import prepack_linears
from treespec.viz import Measured, plot_comparison

PLAIN, CHAIN, MERGED, ASSISTED = (
    "plain generate",
    "chain of 4",
    "recycling + suffix",
    "transformers' assisted generation",
)
TEMPERATURES = (0.0, 1.0)
SHAPES: dict[str, Any] = {CHAIN: Chain(4), "tree of 16": 16, "tree of 32": 32}
"""Trees are counted with their root, a chain by what it drafts."""


class FirstStep:
    """A stopping criterion that never stops and notes when the first step ended, and with how many new tokens.

    It may be asked after every token of a step: `num_passes()` tells the steps apart.
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


Runs = dict[str, dict[str, list["Measurement"]]]
"""By temperature and contestant, one measurement per prompt."""


class Measurement(NamedTuple):
    """One prompt decoded by one contestant; `ms_per_token` is None where the first step was the last."""

    num_tokens: int
    num_passes: int
    ms_per_token: float | None
    is_identical: bool = True
    is_right: bool = True


class Bench:
    """The model, its passes counted, and plain greedy decoding to judge by."""

    def __init__(self, model: Any, tokenizer: Any, num_new: int) -> None:
        self.model, self._tokenizer, self._num_new, self.num_passes = model, tokenizer, num_new, 0
        self._plains: dict[str, Plain] = {}
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
        # treespec reads the prompt but for its last token in a pass that decides nothing.
        num_passes = self.num_passes - before - ("custom_generate" in options)
        tokens = strip_padding(out[0, width:].tolist(), self._tokenizer.eos_token_id)
        num_timed = len(tokens) - first.num_tokens
        ms = 1e3 * (end - first.seconds) / num_timed if num_timed > 0 else None
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
    """A way of decoding: `options()` gives `generate`'s arguments that set it apart, with fresh drafters."""

    name: str
    options: Callable[[], dict[str, Any]]
    temperatures: tuple[float, ...] = TEMPERATURES


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
        draft = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype).eval()
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
    return list(WarmStart.shipped(smollm2.NAME).drafters())


def measure(args: argparse.Namespace, bench: Bench, everyone: list[Contestant], store: Store, console: Console) -> Runs:
    """By temperature and contestant, one measurement per prompt."""
    chosen, deadline = held_out(args.spec_bench, args.prompts), time.perf_counter() + 60 * args.minutes
    runs: Runs = {f"T={t:g}": {c.name: [] for c in everyone} for t in TEMPERATURES}
    with progress_bar(console) as progress:
        task = progress.add_task("prompts", total=len(chosen))
        for number, prompt in enumerate(chosen):
            if time.perf_counter() > deadline:
                break
            for temperature in TEMPERATURES:
                key = f"T={temperature:g}"
                found = store.get(
                    f"{key}, {prompt.name}",
                    lambda p=prompt, t=temperature, n=number: measure_prompt(bench, p, t, everyone, n),
                )
                for name, measured in found.items():
                    runs[key][name].append(Measurement(*measured))
            progress.advance(task)
    return runs


def measure_prompt(
    bench: Bench, prompt: Prompt, temperature: float, everyone: list[Contestant], number: int
) -> dict[str, list[Any]]:
    """Every contestant once, in an order that rotates with `number`, which is the seed too."""
    first = number % len(everyone)
    found = {
        c.name: bench.decode(prompt, temperature, c.options(), number) for c in everyone[first:] + everyone[:first]
    }
    return {c.name: list(found[c.name]) for c in everyone}


def picture(data: dict[str, Any], path: Path) -> None:
    """Bars at temperature zero."""
    measured = []
    for name, found in data["runs"]["T=0"].items():
        runs = [Measurement(*run) for run in found]
        ms = [run.ms_per_token for run in runs if run.ms_per_token is not None]
        measured.append(Measured(name, ms, [run.num_tokens / run.num_passes for run in runs]))
    title = f"{smollm2.NAME}, greedy, float32, {data['num_prompts']} held-out prompts"
    note = f"{data['threads']} threads, load average {data['load_average']} before, {data['load_average_after']} after."
    plot_comparison(measured, path, title, note)


def report(data: dict[str, Any]) -> str:
    """The result file for people."""
    parts = []
    for key, by_name in data["runs"].items():
        runs = {name: [Measurement(*run) for run in found] for name, found in by_name.items()}
        parts.append(f"## {key}\n\n" + table(runs, is_greedy=key == "T=0"))
    return (
        f"# Trained drafters on {data['num_prompts']} held-out prompts\n\n"
        f"{data['new_tokens']} new tokens each. Tokens per target pass: all tokens of all prompts by all passes "
        "that decided any, 95 % bootstrap over prompts. Milliseconds per token after the first step: medians over "
        "prompts; speed: medians of the paired ratios to plain `generate`, with 95 % bootstrap intervals. All share "
        "the model, its packed linear layers and threads.\n\n"
        + "\n".join(parts)
        + f"\nLoad average {data['load_average']} before, {data['load_average_after']} after. {settings_lines(data)}"
    )


def table(runs: dict[str, list[Measurement]], is_greedy: bool) -> str:
    header = ["", "tokens per target pass", "ms per token", "speed"] + ["identical to plain"] * is_greedy
    rows = []
    for name, found in runs.items():
        pairs = [(a.ms_per_token, b.ms_per_token) for a, b in zip(runs[PLAIN], found, strict=True)]
        timed = [(a, b) for a, b in pairs if a is not None and b is not None]
        plain_ms, ms = zip(*timed, strict=True)
        rows.append([name, acceptance(found), f"{median(ms):.1f}", ratio(plain_ms, ms).text()])
        if is_greedy:
            same, wrong = sum(run.is_identical for run in found), sum(not run.is_right for run in found)
            ties = len(found) - same - wrong
            rows[-1].append(
                f"{same} of {len(found)}" + f", {ties} part at a tie" * (ties > 0) + f", {wrong} WRONG" * (wrong > 0)
            )
    return markdown_table(header, rows)


def acceptance(found: list[Measurement]) -> str:
    """All tokens by all passes, with its interval."""
    counts = np.array([[run.num_tokens, run.num_passes] for run in found], dtype=float)
    picks = np.random.default_rng(0).integers(0, len(counts), (10_000, len(counts)))
    low, high = np.percentile(np.divide(*counts[picks].sum(1).T), [2.5, 97.5])
    tokens, passes = counts.sum(0)
    return f"{tokens / passes:.2f} ({low:.2f} to {high:.2f})"


def digest(args: argparse.Namespace) -> str:
    """Of the package, the settings and the drafters' weights."""
    folders = [Path(folder) for _, folder in args.drafters + args.draft_models]
    files = [*sorted(Path(treespec.__file__ or "").parent.rglob("*.py")), Path(__file__)]
    files += [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    chosen = (args.new_tokens, args.threads, args.merged, args.drafters, args.draft_models)
    hasher = hashlib.sha256(repr(chosen).encode())
    for file in files:
        hasher.update(file.read_bytes())
    return hasher.hexdigest()[:16]


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    prepack_linears(model)
    data = settings(seed=args.seed, new_tokens=args.new_tokens)
    store = Store(smollm2.converted_folder().parent / "trained_heads" / f"{digest(args)}.jsonl")
    runs = measure(args, Bench(model, tokenizer, args.new_tokens), contestants(args, model), store, console)
    data |= {"num_prompts": len(runs["T=0"][PLAIN]), "load_average_after": load_average(), "runs": runs}
    write_json(args.output, data)
    picture(data, args.output.with_suffix(".png"))
    args.output.with_suffix(".md").write_text(report(data))
    console.print(report(data), markup=False)


def _named_folder(text: str) -> tuple[str, str]:
    name, _, folder = text.rpartition("=")
    return name or Path(folder).parent.name, folder


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
    options.add_argument("--minutes", type=float, default=1e9, help="no prompt is begun later than this")
    options.add_argument("--output", type=Path, default=RESULTS / "trained_heads.json")
    args = options.parse_args()
    if args.drafters is None:
        args.drafters = [] if args.draft_models else [("head", str(shipped_head(smollm2.NAME)))]
    return args


if __name__ == "__main__":
    main()
