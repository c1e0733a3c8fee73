"""`treespec bench`: plain, chain, tree and auto on your model and prompts, paired."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from treespec.commands.console import check_out_folder, command_line, print_json, progress_bar, say, warn
from treespec.commands.models import Loaded
from treespec.commands.options import Drafting, JsonOption, Measuring, ModelOptions, with_groups
from treespec.errors import ConfigError
from treespec.hf.machine import OtherWork, is_busy
from treespec.lab.measure.paired import (
    PLAIN,
    Agreements,
    Bench,
    Contestant,
    Runs,
    measure_checked,
    ms_per_token,
    raw_numbers,
    speeds,
    tokens_per_pass,
    verdict,
)
from treespec.policies import Chain

if TYPE_CHECKING:
    from treespec.viz import Measured

EXAMPLES = """Examples:

treespec bench

treespec bench ./my-model --prompts prompts.txt --drafter ./my-draft-model --tree 8 --tree 16 --out results"""


@with_groups
def run(
    model: ModelOptions,
    measuring: Measuring,
    drafting: Drafting,
    chain: Annotated[list[int] | None, typer.Option(min=1, help="Lengths of chains; default: 4.")] = None,
    tree: Annotated[list[int] | None, typer.Option(min=2, help="Budgets of trees; default: 8.")] = None,
    auto: Annotated[bool, typer.Option(help="Measure tree='auto' too.")] = True,
    out: Annotated[Path | None, typer.Option(file_okay=False, help="A folder for results and picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare plain greedy decoding with chains, trees and tree="auto" on your prompts.

    Every prompt is decoded by all in turn, so that ratios are paired; all outputs are compared with plain ones. Exit
    code 0: all outputs are plain's, near-ties aside; 1: an output differs; 2: wrong use, or a failed load.
    """
    config, setting = drafting.speculative_config, drafting.setting
    if config is not None and (drafting.drafter or chain or tree):
        raise ConfigError("--speculative-config names drafter and tree: leave out --drafter, --chain and --tree")
    if setting is not None and config is not None:
        raise ConfigError("give --setting or --speculative-config, got both")
    if out is not None:
        check_out_folder(out)
    loaded = model.load()
    ways: dict[str, Any] = {"given configuration": "auto"} if config else _shapes(chain or [4], tree or [8], auto)
    contestants = _contestants(loaded, drafting, ways, model.seed)
    bench, rounds = Bench(loaded.model, measuring.inputs(loaded), measuring.new_tokens), measuring.rounds
    found: dict[str, Any] = {"command": command_line(), "model": loaded.name, "rounds": rounds}
    work = OtherWork()
    with progress_bar() as progress:
        task = progress.add_task("measuring", total=bench.num_calls(len(contestants), rounds))
        runs, agreements = measure_checked(contestants, bench, rounds, partial(progress.advance, task))
    share = work.share()
    if is_busy(share):
        warn(f"other processes used {share:.0%} of the processors meanwhile")
    numbers = raw_numbers(runs, agreements)
    found |= {"new_tokens": measuring.new_tokens, "others_share": share, "runs": numbers}
    if out is not None:
        _save(found, runs, out, loaded.name)
    if as_json:
        print_json(found)
    else:
        console, title = Console(), f"{loaded.name}, {len(bench.inputs)} prompts, {rounds} rounds, greedy"
        console.print(summary_table(runs, agreements, title))
        console.print(prompt_table(runs))
    raise typer.Exit(0 if all(a.is_right for mine in agreements.values() for a in mine.values()) else 1)


def _shapes(chains: list[int], trees: list[int], has_auto: bool) -> dict[str, Any]:
    """Policies to measure besides plain decoding, by name."""
    shapes: dict[str, Any] = {f"chain of {k}": Chain(k) for k in chains}
    return shapes | {f"tree of {n} nodes": str(n) for n in trees} | ({"auto": "auto"} if has_auto else {})


def _contestants(loaded: Loaded, drafting: Drafting, ways: dict[str, Any], seed: int) -> list[Contestant]:
    """Plain decoding, these trees, and the setting as it is."""
    given = Drafting(drafting.drafter, drafting.rule, drafting.speculative_config)
    pairs = [(name, given, tree) for name, tree in ways.items()]
    if drafting.setting is not None:
        pairs.append((f"setting {drafting.setting.name}", Drafting(setting=drafting.setting), "auto"))
    contestants = [Contestant(PLAIN, dict)]
    for name, way, tree in pairs:
        make = partial(way.speculation, loaded, tree, seed=seed)
        make()  # Wrong options and drafters that cannot be loaded end the command before anything is measured.
        contestants.append(Contestant(name, lambda make=make: {"custom_generate": make()}))
    return contestants


def summary_table(runs: Runs, agreements: Agreements, title: str) -> Table:
    """Medians over prompts."""
    table = Table("", title=title, title_justify="left")
    for name in ("ms per token", "speed", "tokens per pass", "identical outputs"):
        table.add_column(name, justify="right")
    for name, mine in runs.items():
        ms, length = (median(map(of, mine.values())) for of in (ms_per_token, tokens_per_pass))
        speed, outputs = median(speeds(runs, name)), verdict(list(agreements[name].values()))
        table.add_row(name, f"{ms:.1f}", f"{speed:.2f}×", f"{length:.2f}", outputs)
    return table


def prompt_table(runs: Runs) -> Table:
    table = Table("", title="ms per token by prompt", title_justify="left")
    for name in runs:
        table.add_column(name, justify="right")
    for prompt in runs[PLAIN]:
        table.add_row(prompt, *(f"{ms_per_token(mine[prompt]):.1f}" for mine in runs.values()))
    return table


def measured_of(runs: Runs, name: str) -> Measured:
    """A contestant's prompts for the picture."""
    from treespec.viz import Measured

    mine = runs[name].values()
    return Measured(name, [ms_per_token(r) for r in mine], [tokens_per_pass(r) for r in mine], speeds(runs, name))


def _save(found: dict[str, Any], runs: Runs, folder: Path, title: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    try:
        from treespec.viz import plot_comparison
    except ImportError:
        say("there is no picture without matplotlib: pip install 'treespec[plots]'")
        return
    plot_comparison([measured_of(runs, name) for name in runs], folder / "comparison.png", f"{title}, greedy")
    say(f"{folder}/results.json, {folder}/comparison.png")
