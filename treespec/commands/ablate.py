"""`treespec ablate`: a study of your model, from a file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from torch import Tensor

from treespec.commands.console import check_out_folder, command_line, print_json, progress_bar, say
from treespec.commands.models import encode
from treespec.commands.models import load as load_model
from treespec.commands.options import PROMPTS, JsonOption, PackOption
from treespec.hf.machine import is_busy
from treespec.lab.measure.study.cells import FACTORS, Cell
from treespec.lab.measure.study.runs import run_study
from treespec.lab.measure.study.study import Study, read_study
from treespec.lab.measure.study.summary import Compared, compare, panels_of, report, shown_level, varied
from treespec.training.text.chat import read_prompts

EXAMPLES = """Examples:

treespec ablate study.yaml

treespec ablate study.yaml --out results --workers 2"""
UNITS = ("prompt", "seed")
PACKED = {True: "; float32 weights on a CPU are packed", False: "; no weights are packed"}
PANELS = ("temperature", "top_p", "processors", "batch")
"""Factors whose levels are compared within themselves, a table and a plot each."""


def run(
    study: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The study, *.yaml.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="The folder of the results; default: the study's name.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; each loads the model.")] = 1,
    as_json: JsonOption = False,
    pack: PackOption = True,
) -> None:
    """Run a grid of drafters, policies, budgets, depths, rules, temperatures, processors, batches and seeds.

    Writes runs.parquet (a row per cell and prompt), report.md and pictures. Run the same command again to resume an
    interrupted study. Exit code 0: done; 2: wrong use, or something cannot be loaded or written.
    """
    read = read_study(study, lambda file: PROMPTS if file is None else read_prompts(file))
    read = replace(read, is_packed=pack)
    folder = out or study.with_suffix("")
    check_out_folder(folder)
    load = f"load average {os.getloadavg()[0]:.2f} before" if hasattr(os, "getloadavg") else "load unknown"
    blocks = read.blocks()
    with progress_bar() as progress:
        task = progress.add_task(f"{len(read.cells)} cells", total=len(blocks))

        def advance(done: int) -> None:
            progress.update(task, completed=done)

        rows = run_study(read, folder, load_subject, encode_prompts, workers, advance)
    factors = [name for name in FACTORS if name not in UNITS]
    cells = compare(rows, factors, UNITS, lambda levels: asdict(read.baseline_of(Cell(**levels))))
    about = _about(read, rows, workers, load)
    by = [name for name in PANELS if name in varied(cells)]
    (folder / "report.md").write_text(report(cells, read.name, about, "gain.png", by))
    _draw(cells, by, folder, read)
    if as_json:
        print_json([_as_dict(cell) for cell in cells])
    say(f"{folder}: report.md, gain.png, speed.png, runs.parquet")


def load_subject(study: Study) -> tuple[Any, Any, Any]:
    """The study's model, tokenizer and drafters, in any process."""
    loaded = load_model(study.model, study.dtype, is_packed=study.is_packed)
    loaded.tokenizer.padding_side = "left"
    if loaded.tokenizer.pad_token is None:
        loaded.tokenizer.pad_token = loaded.tokenizer.eos_token
    return loaded.model, loaded.tokenizer, loaded.drafters


def encode_prompts(tokenizer: Any, prompts: Sequence[str]) -> dict[str, Tensor]:
    """Users' messages in a batch."""
    return encode(tokenizer, [[{"role": "user", "content": text}] for text in prompts])


def _about(study: Study, rows: Sequence[Mapping[str, Any]], workers: int, load: str) -> str:
    refused = [row for row in rows if row["refused"] is not None]
    baseline = ", ".join(f"{name} {level}" for name, level in study.baseline.items())
    lines = [
        f"{len(study.prompts)} prompts, at most {study.new_tokens} new tokens each. The gain is the mean paired "
        f"difference in tokens per pass to the baseline ({baseline}, other factors alike), the speed the geometric "
        "mean of paired ratios of milliseconds per token, both with 95 % bootstrap intervals over prompts and seeds. "
        f"Every run starts with new drafters{PACKED[study.is_packed]}.",
        f"Command: `{command_line()}`; {workers} process{'es' * (workers > 1)} of {study.threads} "
        f"thread{'s' * (study.threads > 1)}; {load}{_others(rows, workers)}.",
    ]
    if refused:
        lines.append(f"{len(refused)} runs were refused and left out, such as: {refused[0]['refused']}")
    return "\n\n".join(lines)


def _others(rows: Sequence[Mapping[str, Any]], workers: int) -> str:
    """A note on the load of other processes, if one process ran all: several would count each other."""
    shares = [row["others_share"] for row in rows if row["others_share"] is not None]
    if not shares or workers > 1:
        return ""
    warning = ", so that speeds mislead" if is_busy(median(shares)) else ""
    return f"; other processes used {median(shares):.0%} of the processors{warning}"


def _draw(cells: Sequence[Compared], by: Sequence[str], folder: Path, study: Study) -> None:
    """Two pictures: gains in tokens per pass, and speeds."""
    try:
        from treespec.viz import Gain, plot_gains
    except ImportError:
        say("there are no pictures without matplotlib: pip install 'treespec[plots]'")
        return
    factors = [name for name in varied(cells) if name not in by] or ["policy"]
    group = "rule" if "rule" in factors and len(factors) > 1 else ("policy" if "policy" in factors else factors[-1])
    rest = [name for name in factors if name != group] or [group]
    baseline = ", ".join(shown_level(name, level) for name, level in study.baseline.items())
    for name, zero, quantity in (("gain", 0.0, "tokens per pass more than"), ("speed", 1.0, "times as fast as")):
        panels = {
            panel: [
                Gain(c.label(rest), c.label([group]), *(zero,) if getattr(c, name) is None else getattr(c, name))
                for c in mine
            ]
            for panel, mine in panels_of(cells, by).items()
        }
        plot_gains(panels, folder / f"{name}.png", study.name, f"{quantity} {baseline}", zero)


def _as_dict(cell: Compared) -> dict[str, Any]:
    estimates = {name: getattr(cell, name) for name in ("length", "gain", "speed")}
    shown = {name: None if found is None else found._asdict() for name, found in estimates.items()}
    return {"levels": cell.levels, "num_units": cell.num_units, **shown}
