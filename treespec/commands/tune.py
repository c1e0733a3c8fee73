"""`treespec tune`: the drafters, the tree and the rule that are fastest for a model and prompts, as a file."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from treespec.commands.console import check_out_file, command_line, print_json, progress_bar, say, warn
from treespec.commands.options import JsonOption, Measuring, ModelOptions, Sampling, with_groups
from treespec.errors import ConfigError
from treespec.lab.measure.candidates import Limits
from treespec.lab.measure.paired import Bench
from treespec.lab.measure.tune import Tuned, drafter_sets, tune

EXAMPLES = """Examples:

treespec tune --out setting.json

treespec tune ./my-model --prompts prompts.txt --drafter ./my-draft-model --max-nodes 16 --out setting.json

treespec generate ./my-model --prompt "Write a haiku about rivers." --setting setting.json"""
DRAFTER_HELP = (
    "Compare this too, alone and merged with what every model can have: a draft model or a trained head by name or "
    "folder, or a warm start (*.safetensors)."
)


@with_groups
def run(
    model: ModelOptions,
    measuring: Measuring,
    sampling: Sampling,
    drafter: Annotated[list[str] | None, typer.Option(help=DRAFTER_HELP, show_default=False)] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, help="Tree size, root included.", show_default=False)] = None,
    max_latency: Annotated[
        float | None, typer.Option(help="Milliseconds of a step, at most.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The setting is written here.")] = Path("setting.json"),
    as_json: JsonOption = False,
) -> None:
    """Measure which drafters, tree and rule are fastest with your model and prompts, and write them to a file.

    The drafters' acceptance on the prompts and the times of passes predict the best chains and trees; these are
    measured in pairs with plain decoding. generate, chat, bench and treespec.load_setting read the file. Exit code
    0: done; 2: wrong use, or something cannot be loaded or written.
    """
    if max_latency is not None and not max_latency > 0:
        raise ConfigError(f"--max-latency must be positive, got {max_latency:g}")
    check_out_file(out)
    torch.manual_seed(model.seed)
    loaded = model.load()
    sets = drafter_sets(drafter or (), loaded.name)
    for names in sets:
        loaded.drafters(names)  # Drafters that cannot be loaded end the command before anything is measured.
    bench = Bench(loaded.model, measuring.inputs(loaded), measuring.new_tokens, sampling.arguments)
    with progress_bar() as progress:
        task = progress.add_task("passes", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        options: dict[str, Any] = {"name": loaded.name, "about": {"command": command_line()}, "advance": advance}
        limits = Limits(max_nodes, max_latency)
        found = tune(bench, loaded.drafters, sets, limits=limits, num_rounds=measuring.rounds, **options)
    found.setting.save(out)
    if as_json:
        print_json(found.setting.as_dict())
    else:
        _show(found, Console(highlight=False))
    for warning in found.warnings:
        warn(warning)
    say(f"{out}: for --setting and treespec.load_setting")


def _show(found: Tuned, console: Console) -> None:
    table = Table("", title="measured in pairs; speed with its 95 % interval", title_justify="left")
    for name in ("speed", "ms/token", "tokens/pass", "ms/step"):
        table.add_column(name, justify="right", no_wrap=True)  # Names wrap on a narrow terminal, numbers do not.
    for candidate in sorted(found.candidates, key=lambda candidate: -candidate.speed.value):
        numbers = [candidate.ms_per_token, candidate.tokens_per_pass, candidate.step_ms]
        table.add_row(candidate.way.name, candidate.speed.text(), *(f"{number:.2f}" for number in numbers))
    console.print(table)
    setting = found.setting
    best = f"{' + '.join(setting.drafters)}, {setting.tree}, rule {setting.rule}"
    console.print(f"recommended: {'plain decoding' if found.best is None else best}", markup=False)
