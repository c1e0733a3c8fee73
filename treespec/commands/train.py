"""`treespec train` and `treespec export`: a drafter from text that the target wrote."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from treespec.commands.console import CONSOLE, command_line, progress_bar, say
from treespec.commands.models import device_of, load_target
from treespec.commands.options import DeviceOption, TargetArgument, ThreadsOption, use_threads
from treespec.hf.loading.models import dtype_of, load_tokenizer
from treespec.training import Evaluation, TrainingConfig, export_head, parse_settings
from treespec.training import train as run_training
from treespec.training.loop import Run
from treespec.training.options import KINDS
from treespec.training.report import acceptance_table
from treespec.training.text.texts import join, read_folder

EXAMPLES = """Examples:

treespec train ./my-model --texts texts --kind eagle3 --minutes 60 --out my-head

treespec export ./my-model my-head --out my-head-complete"""
NUM_MARKS = 1000  # Marks of the progress bar.


def train(
    model: TargetArgument,
    texts: Annotated[list[Path], typer.Option(file_okay=False, help="Text that it wrote; may be given several times.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of the run and the drafter.")],
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "eagle3",
    minutes: Annotated[float | None, typer.Option(help="Time of training, which the schedule follows.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; default: one pass over the text.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any field of TrainingConfig, name=value; several times.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(file_okay=False, help="The target's features, shared by runs; default: OUT/features.")
    ] = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the files; default: as given.")] = None,
) -> None:
    """Train a drafter on text that the target wrote. Run the same command again to resume an interrupted run."""
    use_threads(threads)
    given = {"kind": kind, "minutes": minutes, "num_steps": steps} | parse_settings(settings or [], kind)
    config = TrainingConfig(**given)
    target = load_target(model, device=device_of(device))
    written = join([read_folder(folder) for folder in texts])
    tokenizer = load_tokenizer(model) if KINDS[config.kind].is_model else None
    about = {"name": name or model, "command": command_line()}
    with progress_bar() as progress:
        callbacks = training_callbacks(progress, int(written.lengths.clamp(max=config.max_length).sum()))
        result = run_training(target, written, out, config, features=features, **about, **callbacks)
    if tokenizer is not None:
        tokenizer.save_pretrained(result.folder)
    with suppress(ImportError):  # Without matplotlib there is no curve.
        from treespec.viz import plot_training

        log, acceptance = result.progress.log, result.evaluation.acceptance
        plot_training(log, acceptance, out / "curve.png", f"{config.kind} for {name or model}")
    CONSOLE.print("Held-out acceptance:", acceptance_table(result.evaluation), sep="\n", soft_wrap=True)
    say(f"{result.folder}: {_shown(result.evaluation)}")


def export(
    model: TargetArgument,
    head: Annotated[str, typer.Argument(help="Its trained head: a hub name or a folder.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder to write.")],
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    whole: Annotated[
        bool, typer.Option(help="With the output rows and the embedding, or without those that the target has.")
    ] = True,
    markov_rank: Annotated[int | None, typer.Option(min=1, help="A smaller rank for a DSpark head's bias.")] = None,
) -> None:
    """Write a complete trained head in the speculators format, for readers that take no weights from the target."""
    file_dtype = dtype_of(dtype)  # Checked before the model is loaded.
    export_head(head, load_target(model), out, file_dtype, whole, markov_rank)


def training_callbacks(progress: Progress, num_tokens: int | None) -> dict[str, Any]:
    """The callbacks of `train`: tokens whose features are read, then the share of the run that is done."""
    reading = progress.add_task("features read", total=num_tokens)
    training = progress.add_task("training", total=NUM_MARKS, visible=False)

    def on_step(run: Run) -> None:
        state = run.progress
        speed = state.num_tokens / max(state.seconds, 1e-9)
        loss = next((f", loss {line['loss']:.3f}" for line in reversed(state.log) if "loss" in line), "")
        text = f"step {state.step}, {speed:.0f} tokens/s{loss}"
        progress.update(training, completed=int(NUM_MARKS * run.share_done), description=text, visible=True)

    def on_evaluation(evaluation: Evaluation) -> None:
        progress.console.print(_shown(evaluation))

    return {"on_tokens": partial(progress.advance, reading), "on_step": on_step, "on_evaluation": on_evaluation}


def _shown(evaluation: Evaluation) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in evaluation.summary().items())
