"""The report of a training run: its log as CSV, its evaluation as JSON, a model card."""

import csv
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from treespec.hf.machine import processor
from treespec.lab.tables import markdown_table
from treespec.training.evaluate import Evaluation
from treespec.training.options import KINDS
from treespec.training.state import Progress

CARD = """---
library_name: treespec
{base}tags: [speculative-decoding]
---

# {name} for {model}

Drafts for {model} in tree speculative decoding; {size:.1f} M trained weights.

```python
drafter = {load}
model.generate(**inputs, custom_generate=treespec.TreeSpeculation(drafter, tree=16))
```

## Training

{facts}

## Measured on held-out texts

{num_positions:,} positions, {num_greedy:,} of them at temperature 0.

{acceptance}

{lengths}
"""


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
    config, model = about["config"], about["model"] or "the target"
    kind = KINDS[config["kind"]]
    passes = progress.num_tokens / about["num_tokens"]
    facts = [
        f"Data: {about['num_tokens']:,} tokens in {about['num_texts']:,} texts that {model} wrote itself; "
        f"{progress.num_tokens:,} tokens were read in training ({passes:.1f} passes).",
        f"Begins with the weights of another run, `{config['start']}`." if config["start"] else "",
        f"Draft vocabulary: {about['coverage']:.2%} of the texts' tokens.",
        f"{progress.step:,} steps, {progress.seconds / 60:.1f} minutes on {about['machine']}.",
        f"Command: `{about['command']}`" if about["command"] else "",
        f"Settings: `{json.dumps(config)}`",
    ]
    return CARD.format(
        base=f"base_model: {model}\n" if about["model"] else "",
        name=kind.name,
        model=model,
        size=about["num_weights"] / 1e6,
        load=kind.load,
        facts="\n".join(f"- {fact}" for fact in facts if fact),
        num_positions=evaluation.num_positions,
        num_greedy=evaluation.num_greedy_positions,
        acceptance=acceptance_table(evaluation),
        lengths=_length_table(evaluation),
    )


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = dict(line.split("\t", 1) for line in processor().splitlines() if "\t" in line)
    name = known.get("model name", platform.machine()).lstrip(": ")
    return f"{name}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def acceptance_table(evaluation: Evaluation) -> str:
    """Acceptance by depth and rank, in Markdown."""
    has_greedy = evaluation.num_greedy_positions > 0
    ranks = [f"rank {rank + 1}" for rank in range(len(evaluation.acceptance[0]))]
    parts = zip(evaluation.acceptance, evaluation.greedy_acceptance, evaluation.overlap, strict=True)
    rows = [
        [str(depth), *(f"{share:.3f}" for share in row), f"{greedy[0]:.3f}" if has_greedy else "", f"{overlap:.3f}"]
        for depth, (row, greedy, overlap) in enumerate(parts, start=1)
    ]
    return markdown_table(["depth", *ranks, "rank 1 at T = 0", "shared mass"], rows)


def _length_table(evaluation: Evaluation) -> str:
    found = {f"chain of {k}, T = 0": length for k, length in evaluation.chain.items()}
    found |= {f"best fixed tree of {n} nodes, T = 0": length for n, length in evaluation.tree.items()}
    found |= {f"chain of {k}, T = 1, expected": length for k, length in evaluation.sampled_chain.items()}
    return markdown_table(["draft", "tokens per round"], [[name, f"{length:.3f}"] for name, length in found.items()])
