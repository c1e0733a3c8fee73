"""`treespec tune`: the drafters, the tree and the rule that are fastest for a model and prompts, as a file."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from treespec.commands.bench import PROMPTS, NewTokensOption, prompt_inputs
from treespec.commands.console import (
    CONSOLE,
    SeedOption,
    ThreadsOption,
    check_out_file,
    command_line,
    progress_bar,
    use_threads,
)
from treespec.commands.generate import TemperatureOption, TopPOption, sampling
from treespec.commands.models import DeviceOption, DtypeOption, ModelArgument, PackOption, load
from treespec.commands.writing import PromptsOption
from treespec.errors import ConfigError
from treespec.lab.measure.candidates import Limits
from treespec.lab.measure.paired import Bench
from treespec.lab.measure.tune import Tuned, drafter_sets, tune
from treespec.training.text.chat import read_prompts

EXAMPLES = """Examples:

treespec tune --out setting.json

treespec tune ./my-model --prompts prompts.txt --drafter ./my-draft-model --max-nodes 16 --out setting.json

treespec generate ./my-model --prompt "Write a haiku about rivers." --setting setting.json"""
DRAFTER_HELP = (
    "Compare this too, alone and merged with what every model can have: a draft model or a trained head by name or "
    "folder, or a warm start (*.safetensors)."
)


def run(
    model: ModelArgument = None,
    prompts: PromptsOption = None,
    drafter: Annotated[list[str] | None, typer.Option(help=DRAFTER_HELP, show_default=False)] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, help="Of a tree, root included.", show_default=False)] = None,
    max_latency: Annotated[
        float | None, typer.Option(help="Milliseconds of a step, at most.", show_default=False)
    ] = None,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    new_tokens: NewTokensOption = 48,
    rounds: Annotated[int, typer.Option(min=1, help="Of all prompts, in pairs.")] = 3,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The setting is written here.")] = Path("setting.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the setting as JSON too.")] = False,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    pack: PackOption = True,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
) -> None:
    """Measure which drafters, tree and rule are fastest with your model and prompts, and write them to a file.

    The drafters' acceptance on the prompts and the times of passes predict the best chains and trees; these are
    measured in pairs with plain decoding. generate, chat, bench and treespec.load_setting read the file. Exit code
    0: done; 2: wrong use, or something cannot be loaded or written.
    """
    if max_latency is not None and not max_latency > 0:
        raise ConfigError(f"--max-latency must be positive, got {max_latency:g}")
    check_out_file(out)
    use_threads(threads)
    torch.manual_seed(seed)
    texts = PROMPTS if prompts is None else read_prompts(prompts)
    loaded = load(model, dtype, device, is_packed=pack)
    sets = drafter_sets(drafter or (), loaded.name)
    for names in sets:
        loaded.drafters(names)  # What cannot be loaded ends the command before anything is measured.
    bench = Bench(loaded.model, prompt_inputs(loaded, texts), new_tokens, sampling(temperature, top_p))
    with progress_bar() as progress:
        task = progress.add_task("passes", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        limits = {"limits": Limits(max_nodes, max_latency), "num_rounds": rounds, "name": loaded.name}
        found = tune(bench, loaded.drafters, sets, **limits, about={"command": command_line()}, advance=advance)
    found.setting.save(out)
    if as_json:
        print(json.dumps(found.setting.as_dict(), indent=1))
    else:
        _show(found, Console(highlight=False))
    for warning in found.warnings:
        CONSOLE.print(f"treespec: warning: {warning}", markup=False, highlight=False, soft_wrap=True)
    CONSOLE.print(f"{out}: for --setting and treespec.load_setting", markup=False)


def _show(found: Tuned, console: Console) -> None:
    table = Table(title="measured in pairs; speed with its 95 % interval", title_justify="left")
    # Names wrap on a narrow terminal, numbers do not.
    for name in ("", "speed", "ms/token", "tokens/pass", "ms/step"):
        table.add_column(name, justify="right" if name else "left", no_wrap=bool(name))
    for candidate in sorted(found.candidates, key=lambda candidate: -candidate.speed.value):
        numbers: list[Any] = [candidate.ms_per_token, candidate.tokens_per_pass, candidate.step_ms]
        table.add_row(candidate.way.name, candidate.speed.text(), *(f"{number:.2f}" for number in numbers))
    console.print(table)
    setting = found.setting
    best = f"{' + '.join(setting.drafters)}, {setting.tree}, rule {setting.rule}"
    console.print(f"recommended: {'plain decoding' if found.best is None else best}", markup=False)
