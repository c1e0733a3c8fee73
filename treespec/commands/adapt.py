"""`treespec adapt`: a head or an MTP layer becomes better on one's own prompts."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.commands.console import CONSOLE, command_line, progress_bar, say
from treespec.commands.models import device_of, load_target
from treespec.commands.options import DeviceOption, TargetArgument, ThreadsOption, use_threads
from treespec.commands.train import training_callbacks
from treespec.hf.loading.models import load_tokenizer
from treespec.training import adapt, adaptation, parse_settings
from treespec.training.text.chat import read_prompts

EXAMPLES = """Examples:

treespec adapt ./my-model --prompts prompts.txt --out adapted

treespec generate ./my-model --drafter adapted/drafter --prompt "Write a haiku about rivers." """
HEAD_HELP = "A head's hub name or folder, a trained MTP layer's folder, or \"mtp\"; default: what speed_up finds."


def run(
    model: TargetArgument,
    prompts: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help='One per line; *.jsonl: {"prompt": "..."} per line.')
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of the answers, the run and the drafter.")],
    head: Annotated[str | None, typer.Option(help=HEAD_HELP, show_default=False)] = None,
    minutes: Annotated[float | None, typer.Option(help="Time of training; default: 10.", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps, in place of --minutes.")] = None,
    answers: Annotated[int, typer.Option(min=1, help="To every prompt.")] = 3,
    max_length: Annotated[int, typer.Option(min=64, help="The longest prompt and answer together, in tokens.")] = 512,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A field of TrainingConfig, name=value; several times.")
    ] = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the files; default: as given.")] = None,
) -> None:
    """Train a head or an MTP layer on the model's answers to your prompts, and measure the gain on held-out ones.

    Run the same command again to resume an interrupted run. Where nothing gets better the drafter is left unchanged.
    """
    use_threads(threads)
    length = {name: value for name, value in (("minutes", minutes), ("num_steps", steps)) if value is not None}
    config = adaptation(**length, **parse_settings(settings or []))
    texts = read_prompts(prompts)
    target, tokenizer = load_target(model, device=device_of(device)), load_tokenizer(model)
    with progress_bar() as progress:
        written = progress.add_task("tokens written", total=None)
        callbacks = training_callbacks(progress, None)
        callbacks["on_written"] = partial(progress.advance, written)
        options: dict[str, Any] = {"head": head, "config": config, "answers": answers, "max_length": max_length}
        about = {"name": name or model, "command": command_line()}
        found = adapt(target, tokenizer, texts, out, **options, **about, **callbacks)
    CONSOLE.print(str(found), soft_wrap=True)
    say(f"{found.folder}: {'adapted' if found.is_better else 'unchanged'}, for load_drafter and --drafter")
