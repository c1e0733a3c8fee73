"""Text under a JSON schema compared with free text: tokens per pass, time, and whether it is valid.

Three schemas (a person, a tool call, an order with nested items) with four requests each, by xgrammar. Every request
is answered freely and under its schema, by plain decoding and by trees, in rotating order; the objects with drafters
serve all requests, as in use. Reading the prompt is left out. Free text is cut at 48 tokens. `forced tokens only`:
without the tokenizer, so that a text which must follow is drafted only where its tokens must follow too.

    python -m benchmarks.grammar
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import numpy as np
import torch
from rich.console import Console

from benchmarks.common.drafters import warm_start
from benchmarks.common.estimates import quotient, ratio
from benchmarks.common.prompts import Prompt, encode
from benchmarks.common.settings import RESULTS, digest, load_average, markdown_table, parser, publish, settings
from benchmarks.grammar.schemas import FILE, NEW_TOKENS, TASKS, compiler, processor
from treespec import TreeSpeculation, load_drafter, optimize, shipped_head
from treespec.lab import smollm2
from treespec.lab.measure.paired import Bench, Contestant, Run, in_turn
from treespec.lab.store import Store

FREE, UNDER = "free text", "JSON schema"
FREE_TOKENS = 48
PLAIN, LOOKUPS, HEAD, MERGED = "plain", "lookups, tree", "head, tree", "head + lookups, tree"
TOKENS_ONLY = f"{LOOKUPS}, forced tokens only"


@dataclass(frozen=True)
class UnderSchema(Contestant):
    """A contestant whose text is under the schema of the prompt's task; `processors` by task."""

    processors: dict[str, Any] = field(default_factory=dict)

    def start(self, bench: Bench) -> Callable[[str], Run]:
        options = self.options()
        return lambda prompt: bench.decode(prompt, options | {"logits_processor": [self.processors[task_of(prompt)]]})


def task_of(prompt: str) -> str:
    return prompt.split(": ")[0]


def contestants(model: Any, tokenizer: Any) -> list[Contestant]:
    """Every way of decoding freely and under a schema, an object each that serves all requests."""
    grammars = compiler(tokenizer, model.config.vocab_size)
    processors = {name: processor(grammars, task.schema) for name, task in TASKS.items()}

    def ways(tokenizer: Any) -> dict[str, dict[str, Any]]:
        made: dict[str, Any] = {
            LOOKUPS: warm_start().drafters(),
            HEAD: load_drafter(shipped_head(smollm2.NAME), model),
            MERGED: [load_drafter(shipped_head(smollm2.NAME), model), *warm_start().drafters()],
        }
        trees = {name: TreeSpeculation(drafters, tree=16, tokenizer=tokenizer) for name, drafters in made.items()}
        return {PLAIN: {}} | {name: {"custom_generate": tree} for name, tree in trees.items()}

    under = ways(tokenizer) | {TOKENS_ONLY: ways(None)[LOOKUPS]}
    longest = {"max_new_tokens": NEW_TOKENS}
    free = [Contestant(f"{FREE}, {name}", lambda way=way: way) for name, way in ways(tokenizer).items()]
    return free + [
        UnderSchema(f"{UNDER}, {name}", lambda way=way: way | longest, processors=processors)
        for name, way in under.items()
    ]


def as_plain(run: Run, name: str, prompt: str, tokenizer: Any) -> dict[str, Any]:
    """Milliseconds, tokens and passes without reading the prompt, and the text."""
    text = tokenizer.decode(run.tokens, skip_special_tokens=True)
    found = {"ms": 1e3 * (run.seconds - run.reading), "tokens": run.num_tokens - run.num_read}
    found |= {"passes": run.num_passes - 1, "text": text}
    return found | ({"is_valid": is_valid(text, TASKS[task_of(prompt)].schema)} if name.startswith(UNDER) else {})


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
    inputs = {f"{task}: {request}": encode(tokenizer, [Prompt(task, request)]) for task, request in requests}
    cache = smollm2.converted_folder().parent / "grammar"
    store = Store(cache / f"{digest(args.seed, args.threads, files=[FILE])}.jsonl")
    everyone, found = contestants(model, tokenizer), {}
    for temperature in args.temperatures:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        bench = Bench(model, inputs, FREE_TOKENS, sampling, args.seed)
        keys = {prompt: f"{temperature:g}, {prompt}" for prompt in inputs}
        for prompt, runs in in_turn(everyone, bench, 1, [prompt for prompt in inputs if keys[prompt] not in store]):
            plain = {name: as_plain(run, name, prompt, tokenizer) for name, run in runs.items()}
            done = {"task": task_of(prompt), "runs": plain, "load": load_average()}
            store.get(keys[prompt], lambda done=done: done)
            console.print(f"T = {temperature:g}: {prompt}", markup=False)
        found[f"T = {temperature:g}"] = {"rounds": [store.get(key, dict) for key in keys.values()]}
    return found


def per_token(rounds: list[dict[str, Any]], name: str) -> list[float]:
    return [part["runs"][name]["ms"] / max(part["runs"][name]["tokens"], 1) for part in rounds]


def table(rounds: list[dict[str, Any]]) -> str:
    """A row per kind of text and contestant."""
    plain = {kind: per_token(rounds, f"{kind}, {PLAIN}") for kind in (FREE, UNDER)}
    rows = []
    for name in sorted(rounds[0]["runs"], key=lambda name: (not name.startswith(FREE), "only" in name)):
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
    lines = ["# Text under a JSON schema", "", about, ""]
    for name, found in data["found"].items():
        rounds = found["rounds"]
        loads = [part["load"] for part in rounds]
        about_load = f"{len(rounds)} requests; load {min(loads)} to {max(loads)}."
        lines += [f"## {name}", "", about_load, "", table(rounds)]
    lines += ["Medians; ratios, more is faster: of paired milliseconds per token, with 95 % bootstrap intervals."]
    sample = next(iter(data["found"].values()))["rounds"][:3]
    lines += ["", "Answers to the first requests:", ""]
    lines += [f"- {part['task']}: `{part['runs'][f'{UNDER}, {LOOKUPS}']['text']}`" for part in sample]
    return "\n".join([*lines, ""])


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
    publish(RESULTS / "grammar" / "grammar.json", data, report(data))


if __name__ == "__main__":
    main()
