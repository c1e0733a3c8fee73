"""What a training run leaves to read: its log as CSV, its evaluation as JSON, a model card."""

import csv
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from treespec.training.evaluate import Evaluation
from treespec.training.state import Progress

NAMES = {"eagle3": "EAGLE-3 head", "dflash": "DSpark head", "draft_model": "Draft model"}


def write_report(folder: Path, about: Mapping[str, Any], progress: Progress, evaluation: Evaluation) -> None:
    """Write `log.csv` and `evaluation.json` to the run's folder, and the model card to the drafter's folder in it.

    `about` says what was trained (`model`, `config`, `command`, `num_weights`, `machine`) on which text (`num_tokens`,
    `num_texts`, and `coverage`, its share in the draft vocabulary).
    """
    with (folder / "log.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for line in progress.log for name in line)))
        writer.writeheader()
        for line in progress.log:
            writer.writerow({name: round(v, 5) if isinstance(v, float) else v for name, v in line.items()})
    state = {"step": progress.step, "seconds": progress.seconds, "num_trained_tokens": progress.num_tokens}
    found = {**about} | state | {"evaluation": asdict(evaluation)}
    (folder / "evaluation.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (folder / "drafter" / "README.md").write_text(model_card(about, progress, evaluation), encoding="utf-8")


def model_card(about: Mapping[str, Any], progress: Progress, evaluation: Evaluation) -> str:
    """Markdown: what the drafter is, how to use it, what it was trained on and for how long, what was measured."""
    config = about["config"]
    num_tokens = about["num_tokens"]
    kind = config["kind"]
    model = about["model"] or "the target"
    start = config["start"]
    lines = [
        "---",
        "library_name: treespec",
        *([f"base_model: {model}"] if about["model"] else []),
        "tags: [speculative-decoding]",
        "---",
        "",
        f"# {NAMES[kind]} for {model}",
        "",
        f"Drafts for {model} in tree speculative decoding; {about['num_weights'] / 1e6:.1f} M trained weights.",
        "",
        "```python",
        'drafter = AutoModelForCausalLM.from_pretrained("THIS FOLDER")'
        if kind == "draft_model"
        else 'drafter = treespec.load_drafter("THIS FOLDER", model)',
        "model.generate(**inputs, custom_generate=treespec.TreeSpeculation(drafter, tree=16))",
        "```",
        "",
        "## Training",
        "",
        f"- Data: {num_tokens:,} tokens in {about['num_texts']:,} texts that {model} wrote itself; "
        f"{progress.num_tokens:,} tokens were read in training ({progress.num_tokens / num_tokens:.1f} passes).",
        *([f"- Begins with the weights of another run, `{start}`."] if start else []),
        f"- Draft vocabulary: {about['coverage']:.2%} of the texts' tokens.",
        f"- {progress.step:,} steps, {progress.seconds / 60:.1f} minutes on {about['machine']}.",
        *([f"- Command: `{about['command']}`"] if about["command"] else []),
        f"- Settings: `{json.dumps(config)}`",
        "",
        "## Measured on held-out texts",
        "",
        f"{evaluation.num_positions:,} positions, {evaluation.num_greedy_positions:,} of them at temperature 0.",
        "",
        *acceptance_table(evaluation),
        "",
        *_length_table(evaluation),
    ]
    return "\n".join(lines) + "\n"


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = next(line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def acceptance_table(evaluation: Evaluation) -> list[str]:
    """The lines of a Markdown table of acceptance by depth and rank."""
    has_greedy = evaluation.num_greedy_positions > 0
    num_ranks = len(evaluation.acceptance[0])
    head = ["depth", *(f"rank {rank + 1}" for rank in range(num_ranks)), "rank 1 at T = 0", "shared mass"]
    parts = zip(evaluation.acceptance, evaluation.greedy_acceptance, evaluation.overlap, strict=True)
    rows = [
        [str(depth), *(f"{share:.3f}" for share in row), f"{greedy[0]:.3f}" if has_greedy else "", f"{overlap:.3f}"]
        for depth, (row, greedy, overlap) in enumerate(parts, start=1)
    ]
    return _table(head, rows)


def _length_table(evaluation: Evaluation) -> list[str]:
    rows = [[f"chain of {k}, T = 0", f"{length:.3f}"] for k, length in evaluation.chain.items()]
    rows += [[f"best fixed tree of {n} nodes, T = 0", f"{length:.3f}"] for n, length in evaluation.tree.items()]
    rows += [[f"chain of {k}, T = 1, expected", f"{length:.3f}"] for k, length in evaluation.sampled_chain.items()]
    return _table(["draft", "tokens per round"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
