"""The command line: `treespec warm-up`, `treespec write`, `treespec train`, `treespec export`.

Commands import torch and transformers when they run, so that `--help` and wrong options answer at once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

try:
    import typer
    from rich import progress as bars
    from rich.console import Console
except ImportError as error:
    raise SystemExit("treespec's commands need typer and rich: pip install 'treespec[cli]'") from error

from treespec.errors import ConfigError, TreespecError

if TYPE_CHECKING:
    import torch

    from treespec.training.text.writing import Writing

PROMPTS_HELP = 'Users\' messages to answer first, one per line; in *.jsonl one {"prompt": "..."} per line.'
OPENINGS_HELP = "How the model's own messages begin, in turn; it continues them. A file like that of --prompts."

TargetArgument = Annotated[str, typer.Argument(help="The target: a hub name or a folder.")]
TokensOption = Annotated[int, typer.Option(min=1, help="How much text the model writes.")]
PromptsOption = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=PROMPTS_HELP)]
OpeningsOption = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=OPENINGS_HELP)]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Texts written in one batch.")]
MaxLengthOption = Annotated[int, typer.Option(min=2, help="The longest text in tokens.")]
SeedOption = Annotated[int, typer.Option(help="Of all random numbers.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="PyTorch's threads; default: its own choice.")]

Made = TypeVar("Made")

app = typer.Typer(
    help="Tree speculative decoding: prepare drafters for a model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("warm-up")
def warm_up(
    model: TargetArgument,
    out: Annotated[Path, typer.Option(help="The file to write, *.safetensors.")],
    tokens: TokensOption = 200_000,
    prompts: PromptsOption = None,
    texts: Annotated[
        Path | None, typer.Option(file_okay=False, help="The folder of the text; default: OUT-texts, next to OUT.")
    ] = None,
    batch_size: BatchSizeOption = 64,
    max_length: MaxLengthOption = 320,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the file; default: as given.")] = None,
) -> None:
    """Let the target write text from its own chat template; save its recycling table and the text for suffix lookup.

    Run the same command again to resume an interrupted run.
    """
    from treespec.training.text.warm_up import warm_up as make
    from treespec.training.text.writing import Writing

    _use_threads(threads)
    folder, console = texts or out.with_name(f"{out.stem}-texts"), Console(stderr=True)
    writing = Writing(batch_size=batch_size, max_length=max_length, seed=seed)
    start = _let_write(make, console, model, tokens, folder, writing, prompts=prompts)
    replace(start, about={"model": name or model, "command": _command(), **start.about}).save(out)
    size = out.stat().st_size / 1e6
    console.print(f"{out}: {start.num_tokens} tokens of text, {size:.1f} MB; the text is in {folder}")


@app.command("write")
def write(
    model: TargetArgument,
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of the text.")],
    tokens: TokensOption = 200_000,
    prompts: PromptsOption = None,
    openings: OpeningsOption = None,
    batch_size: BatchSizeOption = 64,
    max_message: Annotated[int, typer.Option(min=1, help="The longest message of its own in tokens.")] = 96,
    max_length: MaxLengthOption = 320,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Of the answers, several in turn; default: 0, 0.7 and 1.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, where the hardware is faster in it; default: the checkpoint's.")
    ] = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
) -> None:
    """Let the target write text: answers to given prompts, then messages of its own with their answers.

    Run the same command again to resume an interrupted run.
    """
    from treespec.training.text.writing import Writing, write_texts

    _use_threads(threads)
    console, sizes = Console(stderr=True), {"max_message": max_message, "max_length": max_length}
    temperatures = tuple(temperature or Writing.temperatures)
    writing = Writing(temperatures=temperatures, batch_size=batch_size, seed=seed, **sizes)
    texts = _let_write(write_texts, console, model, tokens, out, writing, dtype, prompts=prompts, openings=openings)
    console.print(f"{out}: {len(texts.tokens)} tokens in {len(texts.lengths)} texts")


@app.command("train")
def train(
    model: TargetArgument,
    texts: Annotated[list[Path], typer.Option(file_okay=False, help="Text that it wrote; may be given several times.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of the run and the drafter.")],
    kind: Annotated[str, typer.Option(help="eagle3, dflash or draft_model.")] = "eagle3",
    minutes: Annotated[float | None, typer.Option(help="Of training; the schedule follows the clock.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of training; default: one pass over the text.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any field of TrainingConfig, name=value; several times.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(file_okay=False, help="The target's features, shared by runs; default: OUT/features.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Default: a GPU if there is one.")] = None,
    threads: ThreadsOption = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the files; default: as given.")] = None,
) -> None:
    """Train a drafter on text that the target wrote. Run the same command again to resume an interrupted run."""
    import torch

    from treespec.hf.loading.models import load_model, load_tokenizer
    from treespec.training import TrainingConfig, parse_settings
    from treespec.training import train as run_training
    from treespec.training.console import callbacks_of
    from treespec.training.report import acceptance_table
    from treespec.training.text.texts import join, read_folder

    _use_threads(threads)
    given = {"kind": kind, "minutes": minutes, "num_steps": steps} | parse_settings(settings or [], kind)
    config, console, processor = TrainingConfig(**given), Console(stderr=True), _device(device)
    with console.status(f"loading {model}"):
        target, written = load_model(model).eval(), join([read_folder(folder) for folder in texts])
        tokenizer = load_tokenizer(model) if config.kind == "draft_model" else None
    torch.nn.Module.to(target, processor)
    about = {"name": name or model, "command": _command()}
    with _progress(console) as progress:
        callbacks = callbacks_of(progress, int(written.lengths.clamp(max=config.max_length).sum()))
        result = run_training(target, written, out, config, features=features, **about, **callbacks)
    if tokenizer is not None:
        tokenizer.save_pretrained(result.folder)
    _draw_curve(result, out / "curve.png", f"{config.kind} for {name or model}")
    console.print("Held-out acceptance:", *acceptance_table(result.evaluation), sep="\n", soft_wrap=True)
    console.print(f"{result.folder}: {', '.join(f'{k} {v:.3f}' for k, v in result.evaluation.summary().items())}")


@app.command("export")
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
    from treespec.hf.loading.models import load_model
    from treespec.training.export import dtype_of, export_head

    file_dtype = dtype_of(dtype)  # Checked before the model is loaded.
    export_head(head, load_model(model).eval(), out, file_dtype, whole, markov_rank)


def main() -> None:
    """The entry point; errors of treespec become messages."""
    # With large pages growing caches and gradients cause half as many page faults (see docs/training.md).
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        app()
    except TreespecError as error:
        sys.exit(f"treespec: {error}")


def _use_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def _device(name: str | None) -> torch.device:
    """The device of that name, or a GPU if there is one; a `ConfigError` for a device that does not exist."""
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).tolist()
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA raises an AssertionError.
        raise ConfigError(f"--device must be an existing cpu, cuda or cuda:NUMBER, got {name!r} ({error})") from error
    return torch.device(name)


def _let_write(
    make: Callable[..., Made],
    console: Console,
    model: str,
    tokens: int,
    folder: Path,
    writing: Writing,
    dtype: str | None = None,
    **messages: Path | None,
) -> Made:
    """Call `make`, that is `write_texts` or `warm_up`, with a progress bar of the written tokens."""
    from treespec.hf.loading.models import load_model, load_tokenizer
    from treespec.training.export import dtype_of
    from treespec.training.text.chat import read_prompts

    options = {} if dtype is None else {"dtype": dtype_of(dtype)}
    given = {name: read_prompts(path) for name, path in messages.items() if path}
    with console.status(f"loading {model}"):
        target, tokenizer = load_model(model, **options).eval(), load_tokenizer(model)
    with _packed(target, writing.batch_size), _progress(console) as progress:
        task = progress.add_task("tokens written", total=tokens)
        on_tokens = partial(progress.advance, task)
        return make(target, tokenizer, tokens, folder, **given, writing=writing, on_tokens=on_tokens)


def _packed(model, batch_size: int):
    """Packed linear layers where the model has any, which halve the time of small batches on a CPU."""
    from treespec.hf.cpu import prepack_linears

    try:
        return prepack_linears(model, batch_size)
    except TreespecError:
        return nullcontext()


def _draw_curve(result, path: Path, title: str) -> None:
    with suppress(ImportError):  # Without matplotlib there is no curve.
        from treespec.viz import plot_training

        plot_training(result.progress.log, result.evaluation.acceptance, path, title)


def _progress(console: Console) -> bars.Progress:
    counts = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn())
    times = (bars.TimeElapsedColumn(), bars.TextColumn("left:"), bars.TimeRemainingColumn())
    return bars.Progress(*counts, *times, console=console)


def _command() -> str:
    """The command as given, but with absolute paths cut to their last part."""
    return " ".join(["treespec", *(re.sub(r"(^|=)[/~].*?([^/]*)/?$", r"\1\2", argument) for argument in sys.argv[1:])])


if __name__ == "__main__":
    main()
