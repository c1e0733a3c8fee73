"""Text under a JSON schema compared with free text: tokens per pass, time, and whether it is valid.

Three schemas (a person, a tool call, an order with nested items) with four requests each, by xgrammar. Every request
is answered freely and under its schema, by plain decoding and by trees, in rotating order; the objects with drafters
serve all requests, as in use. Reading the prompt is left out; for plain decoding a call for one token is timed and
subtracted. Free text is cut at 48 tokens. `forced tokens only`: without the tokenizer, so that a text which must follow
is drafted only where its tokens must follow too.

    python -m benchmarks.grammar
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.common.drafters import warm_start
from benchmarks.common.estimates import quotient, ratio
from benchmarks.common.prompts import Prompt, encode
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from benchmarks.common.store import Store, digest
from benchmarks.grammar.schemas import NEW_TOKENS, TASKS, compiler, processor
from treespec import TreeSpeculation, load_drafter, optimize, shipped_head
from treespec.hf.loading import smollm2
from treespec.lab.measure.estimates import bootstrap
from treespec.viz import ACCEPTED, REFERENCE

FREE, UNDER = "free text", "JSON schema"
FREE_TOKENS = 48
PLAIN, LOOKUPS, HEAD, MERGED = "plain", "lookups, tree", "head, tree", "head + lookups, tree"
TOKENS_ONLY = f"{LOOKUPS}, forced tokens only"
CONTESTANTS = (PLAIN, LOOKUPS, HEAD, MERGED)


class Bench:
    """The model, its grammars, and one `TreeSpeculation` per kind of text and contestant."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        grammars = compiler(tokenizer, model.config.vocab_size)
        self._processors = {name: processor(grammars, task.schema) for name, task in TASKS.items()}
        self._head = load_drafter(shipped_head(smollm2.NAME), model)
        make: dict[str, Callable[[], Any]] = {
            LOOKUPS: lambda: warm_start().drafters(),
            HEAD: lambda: load_drafter(shipped_head(smollm2.NAME), model),
            MERGED: lambda: [load_drafter(shipped_head(smollm2.NAME), model), *warm_start().drafters()],
        }
        self.contestants: dict[tuple[str, str], TreeSpeculation | None] = {(UNDER, TOKENS_ONLY): None}
        for kind in (FREE, UNDER):
            self.contestants[kind, PLAIN] = None
            for name, drafter in make.items():
                self.contestants[kind, name] = TreeSpeculation(drafter(), tree=16, tokenizer=tokenizer)
        self.contestants[UNDER, TOKENS_ONLY] = TreeSpeculation(make[LOOKUPS](), tree=16)

    def round(self, task: str, request: str, temperature: float, seed: int) -> dict[str, dict[str, Any]]:
        """Milliseconds, new tokens, passes and the text of every contestant."""
        inputs = encode(self._tokenizer, [Prompt(task, request)])
        names = list(self.contestants)
        first = seed * 4 % len(names)
        runs = {name: self._decode(*name, task, inputs, temperature, seed) for name in names[first:] + names[:first]}
        return {", ".join(name): runs[name] for name in names}

    def run(self, task: str, request: str, temperature: float, seed: int) -> dict[str, Any]:
        runs = self.round(task, request, temperature, seed)
        return {"task": task, "runs": runs, "load": load_average()}

    def _decode(
        self, kind: str, name: str, task: str, inputs: dict[str, Any], temperature: float, seed: int
    ) -> dict[str, Any]:
        options: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0}
        if not temperature:
            options = {"do_sample": False}
        options["max_new_tokens"] = FREE_TOKENS
        if kind == UNDER:
            options |= {"max_new_tokens": NEW_TOKENS, "logits_processor": [self._processors[task]]}
        speculation = self.contestants[kind, name]
        prefill = 0.0
        if speculation is None:
            start = time.perf_counter()
            self._model.generate(**inputs, **options | {"max_new_tokens": 1})
            prefill = time.perf_counter() - start
        else:
            options["custom_generate"] = speculation
        torch.manual_seed(seed)
        start = time.perf_counter()
        out = self._model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :]
        seconds = time.perf_counter() - start - prefill
        passes, text = len(out) - 1, self._tokenizer.decode(out, skip_special_tokens=True)
        tokens = len(out) - 1  # Plain decoding's first token belongs to the prefill.
        if speculation is not None:
            seconds -= speculation.stats.seconds["prefill"]
            passes, tokens = speculation.stats.num_target_passes, len(out)
        found = {"ms": 1e3 * seconds, "tokens": tokens, "passes": passes, "text": text}
        return found | ({"is_valid": is_valid(text, TASKS[task].schema)} if kind == UNDER else {})


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is JSON of the schema."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


def measure(args: argparse.Namespace, model: Any, tokenizer: Any, console: Console) -> dict[str, Any]:
    """By temperature: rounds, one per request. Finished rounds are kept in the user's cache folder."""
    requests = [(task, TASKS[task].requests[n]) for n in range(4) for task in TASKS][: args.requests]
    store = Store(smollm2.converted_folder().parent / "grammar" / f"{digest(args.seed, args.threads)}.jsonl")
    bench, found = Bench(model, tokenizer), {}
    for temperature in args.temperatures:
        rounds: list[dict[str, Any]] = []
        for turn, (task, request) in enumerate(requests):
            chosen = (task, request, temperature, args.seed + turn)
            rounds.append(store.get(str(chosen), lambda chosen=chosen: bench.run(*chosen)))
            console.print(f"T = {temperature:g}: {turn + 1} of {len(requests)}, {task}")
        found[f"T = {temperature:g}"] = {"rounds": rounds}
    return found


def names_of(rounds: list[dict[str, Any]]) -> list[str]:
    return sorted(rounds[0]["runs"], key=lambda name: (not name.startswith(FREE), "only" in name))


def per_token(rounds: list[dict[str, Any]], name: str) -> list[float]:
    return [part["runs"][name]["ms"] / max(part["runs"][name]["tokens"], 1) for part in rounds]


def table(rounds: list[dict[str, Any]]) -> str:
    """A row per kind of text and contestant."""
    plain = {kind: per_token(rounds, f"{kind}, {PLAIN}") for kind in (FREE, UNDER)}
    rows = []
    for name in names_of(rounds):
        runs, ms = [part["runs"][name] for part in rounds], per_token(rounds, name)
        free = name.replace(UNDER, FREE).replace(TOKENS_ONLY, LOOKUPS)
        valid = [run["is_valid"] for run in runs if "is_valid" in run]
        rows.append(
            [
                name,
                f"{sum(run['tokens'] for run in runs)}",
                quotient([run["tokens"] for run in runs], [run["passes"] for run in runs]).text(),
                f"{np.median(ms):.1f}",
                *(ratio(plain[kind], ms).text() for kind in (FREE, UNDER)),
                "" if name.startswith(FREE) else ratio(per_token(rounds, free), ms).text(),
                f"{sum(valid)} of {len(valid)}" if valid else "",
            ]
        )
    header = ["text, decoding", "tokens", "tokens per pass", "ms per token", "times plain free", "times plain JSON"]
    return markdown_table([*header, "times its own free text", "valid"], rows)


def report(data: dict[str, Any]) -> str:
    about = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    lines = ["# Text under a JSON schema", "", about, "", "![Times](grammar.png)", ""]
    for name, found in data["found"].items():
        rounds = found["rounds"]
        loads = [part["load"] for part in rounds]
        about_load = f"{len(rounds)} requests; load {min(loads)} to {max(loads)}."
        lines += [f"## {name}", "", about_load, "", table(rounds)]
    lines += ["Medians; ratios are medians of paired ratios of milliseconds per token, more is faster, with 95 %"]
    lines[-1] += " bootstrap intervals."
    sample = next(iter(data["found"].values()))["rounds"][:3]
    lines += ["", "Answers to the first requests:", ""]
    lines += [f"- {part['task']}: `{part['runs'][f'{UNDER}, {LOOKUPS}']['text']}`" for part in sample]
    return "\n".join([*lines, "", settings_lines(data)])


def picture(data: dict[str, Any], path: Any) -> None:
    """Median milliseconds per token by contestant: free text open, under a schema filled."""
    found = data["found"]
    figure = Figure(figsize=(5.5 * len(found), 2.8), dpi=120)
    plots = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for plot, (title, cell) in zip(plots, found.items(), strict=True):
        for number, name in enumerate(CONTESTANTS):
            for kind, colour, shift in ((FREE, REFERENCE, -0.16), (UNDER, ACCEPTED, 0.16)):
                value, low, high = bootstrap(per_token(cell["rounds"], f"{kind}, {name}"), np.median)
                label = kind if number == 0 else None
                plot.barh(number + shift, value, 0.3, color=colour, label=label)
                plot.plot([low, high], [number + shift] * 2, color="black", linewidth=1)
                plot.text(high + 0.5, number + shift, f"{value:.1f}", va="center", fontsize=7)
        plot.set_yticks(range(len(CONTESTANTS)), CONTESTANTS, fontsize=8)
        plot.set_title(f"{title}: milliseconds per token", fontsize=9, loc="left")
        plot.spines[["top", "right"]].set_visible(False)
    plots[0].invert_yaxis()
    plots[-1].legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--requests", type=int, default=12)
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    data = settings(seed=args.seed)
    with optimize(model):
        data["found"] = measure(args, model, tokenizer, console)
    output = RESULTS / "grammar" / "grammar.json"
    write_json(output, data)
    picture(data, output.with_suffix(".png"))
    output.with_suffix(".md").write_text(report(data))
    console.print(report(data), markup=False)


if __name__ == "__main__":
    main()
