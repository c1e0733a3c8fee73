"""Times of README's first block: its first call in new processes, then whole calls on held-out prompts.

The block itself is run, with SmolLM2-135M-Instruct from the installed wheel for the hub's name. First calls: seconds
from a loaded model to the text of 64 tokens, everything that `speed_up` does included, once on a machine that knows
nothing (no compiled kernels, nothing measured) and once again; plain `generate` likewise. Then every prompt by all in
turn, whole calls with the prompt: plain `generate` of the model as loaded, plain decoding from the layers that the
block made faster, the block's own object, which learns from prompt to prompt, and the plainest rival, a fixed tree of 8
of the same drafters, its head in 8 bits as the block's.

    python -m benchmarks.speed_up --spec-bench question.jsonl
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from rich.progress import Progress
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.common.drafters import make_fast
from benchmarks.common.prompts import QUESTIONS, encode, held_out
from benchmarks.common.settings import RESULTS, SAMPLING, load_average, markdown_table, parser, publish, settings
from benchmarks.peers.contestants import BLOCK, OPTIMIZED, PLAIN, title
from benchmarks.peers.report import Prompts, as_plain, in_total, ms_per_token, runs_of_one, speed, tokens_per_pass
from treespec.heads.drafting.base import HeadDrafter
from treespec.hf import TreeSpeculation
from treespec.lab import smollm2
from treespec.lab.measure.paired import Bench, Contestant, in_turn
from treespec.speedup.sources import find_drafters

README = Path(__file__).parents[1] / "README.md"
TREE = "tree-8"


def block() -> str:
    """README's first Python block."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert found is not None
    return found[1]


def run_block(is_plain: bool = False) -> tuple[dict[str, Any], float]:
    """The names that the block defines, and the seconds after the model was loaded; `is_plain`: without speculation."""
    begin, _, rest = block().partition("speculation = ")
    if is_plain:
        rest = rest.partition("\n")[2].replace(", custom_generate=speculation", "").replace("print(speculation)", "")
    else:
        rest = "speculation = " + rest
    names: dict[str, Any] = {}
    model, tokenizer = smollm2.load()
    with (
        patch.object(AutoModelForCausalLM, "from_pretrained", lambda name: model),
        patch.object(AutoTokenizer, "from_pretrained", lambda name: tokenizer),
    ):
        exec(begin, names)
        start = time.perf_counter()
        exec(rest, names)
    return names, time.perf_counter() - start


def first_calls(threads: int) -> dict[str, float]:
    """Seconds by contestant and by what the machine knows, each in a process of its own."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        smollm2.load()
        cache = Path(folder) / "treespec"
        cache.mkdir()
        (cache / smollm2.converted_folder().name).symlink_to(smollm2.converted_folder())
        for name in ("plain", "first on the machine", "plain again", "known"):
            command = [sys.executable, "-m", "benchmarks.speed_up", "--first", name, "--threads", str(threads)]
            made = subprocess.run(
                command, env=os.environ | {"XDG_CACHE_HOME": folder}, check=True, capture_output=True, text=True
            )
            found[name] = json.loads(made.stdout.splitlines()[-1])
    return found


def whole_calls(names: dict[str, Any], prompts: dict[str, Any], num_new: int, seed: int) -> dict[str, Any]:
    """By temperature the runs, and the prompts whose greedy texts differ."""
    model, speculation = names["model"], names["speculation"]
    drafters = find_drafters(model, is_download_allowed=False).drafters
    for drafter in drafters:
        if isinstance(drafter, HeadDrafter):
            make_fast(drafter.head)
    rival = TreeSpeculation(drafters, tree=8)
    contestants = [
        Contestant(PLAIN, dict, smollm2.load()[0]),
        Contestant(OPTIMIZED, dict),
        Contestant(BLOCK, lambda: {"custom_generate": speculation}),
        Contestant(TREE, lambda: {"custom_generate": rival}),
    ]
    found: dict[str, Prompts] = {}
    differing: list[str] = []
    with Progress() as progress:
        for name, sampling in SAMPLING.items():
            bench = Bench(model, prompts, num_new, sampling, seed)
            bar = progress.add_task(name, total=len(contestants) * (len(prompts) + 1))
            turns = in_turn(contestants, bench, 1, list(prompts), lambda bar=bar: progress.advance(bar))
            found[name] = {}
            for key, runs in turns:
                found[name][key] = {who: as_plain(run) for who, run in runs.items()}
                is_one = name != "T = 0" or len({tuple(run.tokens) for run in runs.values()}) == 1
                differing += [] if is_one else [key]
    return {"found": found, "differing": differing}


def report(data: dict[str, Any]) -> str:
    num_prompts = len(data["found"]["T = 0"])
    lines = [
        "# What README's first block gives\n",
        f"{num_prompts} held-out prompts, {data['new_tokens']} new tokens, whole calls with the prompt: "
        "all but plain `generate` by the block's layers, the tree by its drafters too. Medians over prompts, brackets: "
        f"95 % intervals. Load average {data['load_average']} before, {data['load_average_after']} after. Greedy texts "
        f"that differ between contestants: {len(data['differing'])}.\n",
    ]
    for name, prompts in data["found"].items():
        rows = [
            [
                title(who),
                f"{median(ms_per_token(prompts, who, is_whole=True)):.1f}",
                *(speed(prompts, who, plain, is_whole=True) for plain in (PLAIN, OPTIMIZED)),
                in_total(prompts, who, PLAIN),
                tokens_per_pass(prompts, who),
            ]
            for who in runs_of_one(prompts)
        ]
        times = [f"times {title(plain)}" for plain in (PLAIN, OPTIMIZED)]
        header = [name, "ms per token", *times, "in total", "tokens per pass"]
        lines.append(markdown_table(header, rows))
    header = ["first call, 64 tokens, from a loaded model", "seconds"]
    lines.append(markdown_table(header, [[name, f"{seconds:.2f}"] for name, seconds in data["first"].items()]))
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--spec-bench", type=Path, help=QUESTIONS)
    options.add_argument("--prompts", type=int, default=40)
    options.add_argument("--new-tokens", type=int, default=64)
    options.add_argument("--first", help="internal: one first call")
    options.add_argument("--output", type=Path, default=RESULTS / "speed_up.json")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    if args.first:
        print(json.dumps(run_block(args.first.startswith("plain"))[1]))
        return
    data = settings(new_tokens=args.new_tokens)
    data["first"] = first_calls(args.threads)
    names, _ = run_block()
    prompts = {prompt.name: encode(names["tokenizer"], [prompt]) for prompt in held_out(args.spec_bench, args.prompts)}
    data |= whole_calls(names, prompts, args.new_tokens, args.seed)
    data |= {"load_average_after": load_average(), "report": str(names["speculation"])}
    publish(args.output, data, report(data))


if __name__ == "__main__":
    main()
