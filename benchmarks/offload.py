"""A model whose layers are on disk: every pass costs their transfer, so what counts is tokens per pass.

SmolLM2-135M with `device_map={"model.layers.0": "disk", ...}`: accelerate reads every layer's weights at every pass.
The shipped head drafts; it stays in memory. All prompts are decoded greedily by all contestants in rotating order, and
whole calls are timed, reading the prompt included. Before each layer the system is asked to drop the files from its
cache (`--cached` leaves that out: the case of a machine whose memory has room for the files).

    python -m benchmarks.offload [--prompts 4 --new-tokens 32] [--cached]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from transformers import AutoModelForCausalLM

from benchmarks.common.estimates import ratio
from benchmarks.common.progress import progress_bar
from benchmarks.common.prompts import Prompt, by_turns, encode, gsm8k, human_eval, spread
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec import Chain, Eagle3, TreeSpeculation, load_drafter, optimize, shipped_head
from treespec.hf.loading import smollm2
from treespec.hf.models.pass_times import pass_times
from treespec.lab.measure.estimates import bootstrap
from treespec.viz import ACCEPTED, REFERENCE

PLAIN, AUTO = "plain", "auto"
TREES: dict[str, Any] = {
    "chain of 4": Chain(4),
    "chain of 6": Chain(6),
    "tree of 16": 16,
    "tree of 32": 32,
    "tree of 64": 64,
    AUTO: "auto",
}


def load_on_disk(folder: Path, offload_folder: str) -> Any:
    """The model with its layers on disk and the rest in memory."""
    num_layers = 30
    devices = {f"model.layers.{i}": "disk" for i in range(num_layers)}
    devices |= dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    with smollm2.quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(folder, device_map=devices, offload_folder=offload_folder).eval()


def forget_files_before_layers(model: Any, folders: list[Path]) -> None:
    """Drop the weights' files from the system's cache before every layer, so that each pass reads the disk."""
    files = [path for folder in folders for path in folder.iterdir() if path.suffix in (".safetensors", ".dat")]

    def forget(*_: Any) -> None:
        for path in files:
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)

    for layer in model.model.layers:
        layer.register_forward_pre_hook(forget)


def decode(model: Any, inputs: dict[str, Any], speculation: TreeSpeculation | None, num_new: int) -> dict[str, Any]:
    """One call: milliseconds per token, passes, tokens."""
    start = time.perf_counter()
    out = model.generate(**inputs, max_new_tokens=num_new, do_sample=False, custom_generate=speculation)
    seconds = time.perf_counter() - start
    tokens = out[0, inputs["input_ids"].shape[1] :].tolist()
    passes = len(tokens) if speculation is None else speculation.stats.num_target_passes + 1
    return {"ms_per_token": 1e3 * seconds / len(tokens), "passes": passes, "tokens": tokens}


def measure(args: argparse.Namespace, model: Any, tokenizer: Any, console: Console) -> Iterator[dict[str, Any]]:
    """By contestant one run per prompt; what `tree="auto"` chose; loads: after every prompt all so far."""
    drafter = load_drafter(shipped_head(smollm2.NAME), model)
    assert isinstance(drafter, Eagle3)
    speculations: dict[str, TreeSpeculation | None] = {PLAIN: None}
    speculations |= {
        name: TreeSpeculation(Eagle3(drafter.head, drafter.hidden_layers), tree=tree) for name, tree in TREES.items()
    }
    prompts: list[Prompt] = by_turns([spread(source, -(-args.prompts // 2)) for source in (human_eval(), gsm8k())])
    prompts, names = prompts[: args.prompts], list(speculations)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    loads = [load_average()]
    with optimize(drafter.head), progress_bar(console) as progress:
        profile = pass_times(model, is_remeasured=True)
        task = progress.add_task("prompts", total=len(prompts) * len(names))
        for turn, prompt in enumerate(prompts):
            inputs = encode(tokenizer, [prompt])
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                runs[name].append(decode(model, inputs, speculations[name], args.new_tokens))
                progress.advance(task)
            loads.append(load_average())
            auto = speculations[AUTO]
            assert auto is not None
            yield {"runs": runs, "pass_ms": profile, "choices": auto.total_stats.choices, "loads": loads}


def report(data: dict[str, Any], name: str) -> str:
    """The table, in Markdown, with the picture of this name."""
    runs = data["runs"]
    times = {contestant: [run["ms_per_token"] for run in found] for contestant, found in runs.items()}
    same = [run["tokens"] for run in runs[PLAIN]]
    rows = []
    for contestant, found in runs.items():
        passes = sum(run["passes"] for run in found)
        tokens = sum(len(run["tokens"]) for run in found)
        equal = sum(run["tokens"] == plain for run, plain in zip(found, same, strict=True))
        speed = "1" if contestant == PLAIN else ratio(times[PLAIN], times[contestant]).text()
        median = f"{np.median(times[contestant]):.0f}"
        rows.append([contestant, median, speed, f"{tokens / passes:.2f}", f"{equal} of {len(found)}"])
    header = ["contestant", "ms per token", "times plain", "tokens per pass", "texts equal to plain's"]
    profile = markdown_table(
        ["nodes of a pass", *map(str, data["pass_ms"])], [["ms", *(f"{ms:.0f}" for ms in data["pass_ms"].values())]]
    )
    chosen = ", ".join(f"{choice} {count}x" for choice, count in Counter(data["choices"]).most_common(5))
    about = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    how = "Here the files stay in the cache." if data["cached"] else "Here they leave the cache before every layer."
    return "\n".join(
        [
            "# Layers on disk", "", f"{about} {how}", "", f"![Times]({name}.png)", "",
            f"{len(same)} prompts, {data['new_tokens']} new tokens, load {min(data['loads'])} to {max(data['loads'])}.",
            "", markdown_table(header, rows),
            "Medians; ratios are medians of paired ratios with 95 % bootstrap intervals.", "",
            f"`tree=\"auto\"` chose: {chosen}.", "", profile, settings_lines(data),
        ]
    )  # fmt: skip


def picture(data: dict[str, Any], path: Path) -> None:
    """Milliseconds per token of every contestant and prompt, and the medians."""
    figure = Figure(figsize=(7, 3.2), dpi=110)
    plot = figure.subplots()
    for number, (name, found) in enumerate(data["runs"].items()):
        times = [run["ms_per_token"] for run in found]
        colour = REFERENCE if name == PLAIN or name.startswith("chain") else ACCEPTED
        plot.barh(number, bootstrap(times, np.median).value, color=colour, alpha=0.5)
        plot.plot(times, [number] * len(times), "o", color=colour, markersize=3)
    plot.set_yticks(range(len(data["runs"])), list(data["runs"]), fontsize=8)
    plot.invert_yaxis()
    plot.set_xlabel("ms per token: medians as bars, prompts as dots", fontsize=8)
    plot.set_title(f"{smollm2.NAME}, layers on disk, greedy", fontsize=9, loc="left")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    options = parser(__doc__ or "", threads=2)
    options.add_argument("--prompts", type=int, default=4)
    options.add_argument("--new-tokens", type=int, default=32)
    options.add_argument("--cached", action="store_true", help="leave the files in the system's cache")
    options.add_argument("--output", type=Path, default=RESULTS / "offload" / "offload.json")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    console = Console()
    _, tokenizer = smollm2.load(say=console.print)
    data = settings(seed=args.seed, new_tokens=args.new_tokens, cached=args.cached)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        model = load_on_disk(smollm2.converted_folder(), folder)
        if not args.cached:
            forget_files_before_layers(model, [smollm2.converted_folder(), Path(folder)])
        for found in measure(args, model, tokenizer, console):
            data |= found
            write_json(args.output, data)
            picture(data, args.output.with_suffix(".png"))
            args.output.with_suffix(".md").write_text(report(data, args.output.stem))
    console.print(report(data, args.output.stem), markup=False)


if __name__ == "__main__":
    main()
