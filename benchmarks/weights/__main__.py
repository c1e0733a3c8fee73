"""Quantised and half-precision weights: SmolLM2-135M with each, treespec and plain `generate` of the same model.

    python -m benchmarks.weights identity --threads 1  # 50 short prompts, greedy; some minutes per scheme
    python -m benchmarks.weights time                  # milliseconds per token, for a quiet machine

Schemes whose package is not installed are skipped by name. Every scheme is written to benchmarks/results/weights/ when
it is finished; started again, a run does those that are missing there.

Where the texts differ, plain's gap between the two best logits at the first difference stands next to the model's own
noise: by how much its logits after the same tokens differ between six ways to read them without treespec, in one
pass, the prompt and then token by token, and with the prompt's last one to four tokens apart too. A gap of at most
twice that noise (each of the two logits has it) is the model's own tie.

What rounding does to the text itself, with longer texts:

    python -m benchmarks.weights identity --threads 1 --new-tokens 32 --schemes float32 bfloat16 \\
        "bfloat16, treespec.optimize" "treespec.optimize, bfloat16" "treespec.optimize, int8" \\
        --output benchmarks/results/weights/rounding.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.common.prompts import Prompt, encode, gsm8k, human_eval
from benchmarks.common.settings import RESULTS, load_average, parser, settings, write_json
from benchmarks.weights.report import report
from benchmarks.weights.schemes import SCHEMES
from treespec import SuffixLookup, TokenRecycling, TreespecError, TreeSpeculation
from treespec.hf.introspect import CACHE_NAME, cache_in
from treespec.hf.loading import smollm2
from treespec.hf.models.make_scorer import make_scorer
from treespec.lab.measure.paired import Bench, Contestant, in_turn
from treespec.lab.selftest.agreement import plain_greedy

NUM_NODES = 8
NUM_APART = 4
Prompts = list[tuple[str, dict[str, Tensor]]]


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    _, tokenizer = smollm2.load()
    count = args.prompts or {"time": 4}.get(args.step, 50)
    chosen = [(prompt.name, encode(tokenizer, [prompt])) for prompt in shortest(count, tokenizer)]
    step = args.step
    measure = partial({"identity": identity, "time": times}[step], prompts=chosen, num_new=args.new_tokens)
    data = json.loads(args.output.read_text()) if args.output.is_file() else {"schemes": {}, "settings": {}}
    for name in args.schemes or SCHEMES:
        known = data["schemes"].setdefault(name, {})
        if step in known and not args.again:
            continue
        if missing := SCHEMES[name].missing:
            print(f"{name}: skipped, not installed: {', '.join(missing)}")
            continue
        known[step] = attempt(name, measure) | {"load_average": load_average()}
        data["settings"][step] = settings(seed=args.seed, prompts=count, new_tokens=args.new_tokens)
        write_json(args.output, data)
        args.output.with_suffix(".md").write_text(report(data))
        print(name, {key: value for key, value in known[step].items() if key != "rows"}, flush=True)


def shortest(count: int, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """The shortest of HumanEval and of GSM8K, half of each: reading them is most of the work."""
    return [
        prompt
        for source, share in ((human_eval(), count - count // 2), (gsm8k(), count // 2))
        for prompt in sorted(source, key=lambda prompt: len(tokenizer(prompt.text)["input_ids"]))[:share]
    ]


def attempt(name: str, measure: Callable[[PreTrainedModel], dict[str, Any]]) -> dict[str, Any]:
    """Load and measure; what the scheme's package or treespec refuses is a result too."""
    packages = [package.partition(".")[0] for package in SCHEMES[name].packages]
    names = {"optimum": "optimum-quanto"}
    versions = {names.get(name, name): importlib.metadata.version(names.get(name, name)) for name in packages}
    start = time.perf_counter()
    try:
        model: Any = SCHEMES[name].load(smollm2.converted_folder())
        model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, do_sample=False)
    except Exception as error:
        return {"versions": versions, "fails_plainly": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    about = {"versions": versions, "dtype": str(model.dtype).removeprefix("torch."), "gigabytes": _size(model)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            scorer = make_scorer(model)
            about |= {"capability": scorer.capability.name.lower()} | measure(model)
        except TreespecError as error:
            about["refused"] = f"{type(error).__name__}: {error}"
    said = sorted({str(warning.message) for warning in caught if "treespec" in str(warning.filename)})
    return about | {"warnings": said, "seconds": round(time.perf_counter() - start, 1)}


def identity(model: PreTrainedModel, prompts: Prompts, num_new: int) -> dict[str, Any]:
    """Every prompt by plain `generate` and by trees; where they differ, gap and noise."""
    speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=NUM_NODES)
    rows = []
    for name, inputs in prompts:
        plain = plain_greedy(model, inputs, num_new)
        out: Any = model.generate(  # pyright: ignore[reportCallIssue]
            **inputs, max_new_tokens=num_new, do_sample=False, custom_generate=speculation
        )
        output = out[0, inputs["input_ids"].shape[1] :].tolist()
        position = first_difference(output, plain.tokens)
        row: dict[str, Any] = {"prompt": name, "tokens": len(output), "position": position}
        row |= {"plain": plain.tokens, "gaps": [round(float(gap), 4) for gap in plain.gaps]}
        if position is not None:
            row |= {
                "gap": plain.gaps[min(position, len(plain.gaps) - 1)],
                "noise": noise(model, inputs, plain.tokens[: position + 1]),
            }
        rows.append(row)
    return {
        "num_identical": sum(row["position"] is None for row in rows),
        "num_ties": sum(row["position"] is not None and row["gap"] <= 2 * row["noise"] for row in rows),
        "mean_acceptance_length": speculation.total_stats.mean_acceptance_length,
        "rows": rows,
    }


def first_difference(output: list[int], plain: list[int]) -> int | None:
    """The first position where the texts differ; a missing token is a difference."""
    pairs = zip_longest(output, plain)
    return next((position for position, (ours, theirs) in enumerate(pairs) if ours != theirs), None)


@torch.no_grad()
def noise(model: PreTrainedModel, inputs: dict[str, Tensor], tokens: list[int]) -> float:
    """The largest difference of a logit after the last of `tokens` but one between several ways to read the text.

    Also right after the prompt these are five different ones: fewer may agree by luck.
    """
    ids, new = inputs["input_ids"], torch.tensor([tokens[:-1]], dtype=torch.int64)
    ways = [[torch.cat([ids, new], dim=1)], [ids, *new.split(1, dim=1)]]
    ways += [[ids[:, :-last], ids[:, -last:], *new.split(1, dim=1)] for last in range(1, NUM_APART + 1)]
    logits = torch.stack([read(model, [part for part in parts if part.numel()]) for parts in ways])
    return float((logits.amax(0) - logits.amin(0)).max())


def read(model: Any, parts: list[Tensor]) -> Tensor:
    """The logits [V] after ids [1, L] that are read part by part."""
    state = model(input_ids=parts[0], use_cache=True)
    for part in parts[1:]:
        state = model(input_ids=part, **{CACHE_NAME: cache_in(state)}, use_cache=True)
    return state.logits[0, -1].float()


def times(model: PreTrainedModel, prompts: Prompts, num_new: int) -> dict[str, Any]:
    """Milliseconds per token without the prompt, plainly and with `tree="auto"`, prompt by prompt in turns."""
    speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()])
    ways = [Contestant("plain", dict), Contestant("treespec", lambda: {"custom_generate": speculation})]
    bench = Bench(model, dict(prompts), num_new, {"do_sample": False, "min_new_tokens": num_new})
    found: dict[str, list[float]] = {way.name: [] for way in ways}
    for _, runs in in_turn(ways, bench, 1, list(bench.inputs)):
        for name, run in runs.items():
            found[name].append(1e3 * (run.seconds - run.reading) / (run.num_tokens - run.num_read))
    return {"ms_per_token": found, "speedup": fmean(found["plain"]) / fmean(found["treespec"])}


def _size(model: PreTrainedModel) -> float:
    return round(model.get_memory_footprint() / 1e9, 3)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("step", choices=("identity", "time"))
    options.add_argument("--schemes", nargs="+", choices=SCHEMES, metavar="NAME", help=", ".join(SCHEMES))
    options.add_argument("--prompts", type=int, help="default: 50 for identity, 4 for time")
    options.add_argument("--new-tokens", type=int, default=16)
    options.add_argument("--again", action="store_true", help="measure what is there already")
    options.add_argument("--output", type=Path, default=RESULTS / "weights" / "weights.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
