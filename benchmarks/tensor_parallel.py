"""A model split over processes (tensor parallel): every layer of a pass waits for all of them, tree or not.

SmolLM2-135M with `tp_plan="auto"`; its nine heads and three key-value heads are split over three processes. Lookups
draft, from the warm start that ships with treespec. All prompts are decoded greedily by all contestants in rotating
order, and whole calls are timed by rank 0, reading the prompt included. The tokens are compared with those of plain
`generate`, of the split model on every rank and of the whole model in one process.

    torchrun --nproc-per-node 3 -m benchmarks.tensor_parallel [--prompts 4 --new-tokens 32]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig  # pyright: ignore[reportPrivateImportUsage]

from benchmarks.common.drafters import warm_start
from benchmarks.common.estimates import ratio
from benchmarks.common.prompts import by_turns, encode, gsm8k, human_eval, spread
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from benchmarks.offload import decode
from treespec import Chain, TreeSpeculation
from treespec.hf.loading import smollm2

PLAIN = "plain"
TREES: dict[str, Any] = {"chain of 4": Chain(4), "tree of 8": 8, "tree of 16": 16, "auto": "auto"}


def load_split() -> Any:
    """The model, split over the processes that torchrun started."""
    with smollm2.quiet_transformers():
        split = DistributedConfig(tp_plan="auto")
        return AutoModelForCausalLM.from_pretrained(smollm2.converted_folder(), distributed_config=split).eval()


def measure(args: argparse.Namespace, model: Any, whole: Any, tokenizer: Any) -> dict[str, Any]:
    """By contestant one run per prompt, with whether all ranks and the whole model have its tokens; loads."""
    speculations: dict[str, TreeSpeculation | None] = {PLAIN: None}
    speculations |= {name: TreeSpeculation([*warm_start().drafters()], tree=tree) for name, tree in TREES.items()}
    prompts = by_turns([spread(source, -(-args.prompts // 2)) for source in (human_eval(), gsm8k())])[: args.prompts]
    names, loads = list(speculations), [load_average()]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for speculation in speculations.values():  # The first call checks the model.
        decode(model, encode(tokenizer, prompts[:1]), speculation, 4)
    for turn, prompt in enumerate(prompts):
        inputs = encode(tokenizer, [prompt])
        expected = decode(whole, inputs, None, args.new_tokens)["tokens"]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            distributed.barrier()
            run = decode(model, inputs, speculations[name], args.new_tokens)
            tokens: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(tokens, run["tokens"])
            runs[name].append(run | {"is_same": all(found == expected for found in tokens)})
        loads.append(load_average())
    return {"runs": runs, "loads": loads, "processes": distributed.get_world_size()}


def report(data: dict[str, Any]) -> str:
    """The table, in Markdown."""
    runs, rows = data["runs"], []
    times = {name: [run["ms_per_token"] for run in found] for name, found in runs.items()}
    for name, found in runs.items():
        per_pass = sum(len(run["tokens"]) for run in found) / sum(run["passes"] for run in found)
        speed = "1" if name == PLAIN else ratio(times[PLAIN], times[name]).text()
        same = f"{sum(run['is_same'] for run in found)} of {len(found)}"
        rows.append([name, f"{np.median(times[name]):.0f}", speed, f"{per_pass:.2f}", same])
    header = ["contestant", "ms per token", "times plain", "tokens per pass", "equal on all ranks, and to one process"]
    about = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    counts = f"{len(runs[PLAIN])} prompts, {data['new_tokens']} new tokens, {data['processes']} processes of one thread"
    return "\n".join(
        [
            "# Tensor parallel", "", about, "", f"{counts}, load {min(data['loads'])} to {max(data['loads'])}.", "",
            markdown_table(header, rows),
            "Medians; ratios are medians of paired ratios with 95 % bootstrap intervals.", "", settings_lines(data),
        ]
    )  # fmt: skip


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--prompts", type=int, default=4)
    options.add_argument("--new-tokens", type=int, default=32)
    options.add_argument("--output", type=Path, default=RESULTS / "tensor_parallel" / "tensor_parallel.json")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    whole, tokenizer = smollm2.load()
    data = settings(seed=args.seed, new_tokens=args.new_tokens)
    data |= measure(args, load_split(), whole, tokenizer)
    if distributed.get_rank() == 0:
        write_json(args.output, data)
        args.output.with_suffix(".md").write_text(report(data))
        print(report(data))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
