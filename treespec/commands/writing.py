"""`treespec warm-up` and `treespec write`: a target writes text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from treespec.commands.console import (
    CONSOLE,
    SeedOption,
    TargetArgument,
    ThreadsOption,
    check_out_folder,
    command_line,
    progress_bar,
    use_threads,
)
from treespec.errors import ConfigError, TreespecError

if TYPE_CHECKING:
    from treespec.training.text.batch import Writing

PROMPTS_HELP = 'Users\' messages to answer first, one per line; in *.jsonl one {"prompt": "..."} per line.'
OPENINGS_HELP = "How the model's own messages begin, in turn; it continues them. A file like that of --prompts."

TokensOption = Annotated[int, typer.Option(min=1, help="How much text the model writes.")]
PromptsOption = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=PROMPTS_HELP)]
OpeningsOption = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=OPENINGS_HELP)]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Texts written in one batch.")]
MaxLengthOption = Annotated[int, typer.Option(min=2, help="The longest text in tokens.")]
Made = TypeVar("Made")
EXAMPLES = """Examples:

treespec warm-up ./my-model --tokens 200000 --out warm.safetensors

treespec write ./my-model --tokens 2000000 --prompts prompts.txt --out texts"""


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
    from treespec.training.text.batch import Writing
    from treespec.training.text.writing import warm_up as make

    if out.is_dir():
        raise ConfigError(f"{out} cannot be written: it is a folder")
    check_out_folder(out.parent)
    folder = texts or out.with_name(f"{out.stem}-texts")
    writing = Writing(batch_size=batch_size, max_length=max_length, seed=seed)
    start = _let_write(make, threads, model, tokens, folder, writing, prompts=prompts)
    replace(start, about={"model": name or model, "command": command_line(), **start.about}).save(out)
    size = out.stat().st_size / 1e6
    CONSOLE.print(f"{out}: {start.num_tokens} tokens of text, {size:.1f} MB; the text is in {folder}")


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
    from treespec.training.text.batch import Writing
    from treespec.training.text.writing import write_texts

    options = {"max_message": max_message, "max_length": max_length, "batch_size": batch_size, "seed": seed}
    writing = Writing(temperatures=tuple(temperature or Writing.temperatures), **options)
    texts = _let_write(write_texts, threads, model, tokens, out, writing, dtype, prompts=prompts, openings=openings)
    CONSOLE.print(f"{out}: {len(texts.tokens)} tokens in {len(texts.lengths)} texts")


def _let_write(
    make: Callable[..., Made],
    threads: int | None,
    model: str,
    tokens: int,
    folder: Path,
    writing: Writing,
    dtype: str | None = None,
    **messages: Path | None,
) -> Made:
    """Call `make`, that is `write_texts` or `warm_up`, with a progress bar of the written tokens."""
    from treespec.hf.loading.models import dtype_of, load_model, load_tokenizer
    from treespec.training.text.chat import read_prompts

    use_threads(threads)
    options = {} if dtype is None else {"dtype": dtype_of(dtype)}
    given = {name: read_prompts(path) for name, path in messages.items() if path}
    with CONSOLE.status(f"loading {model}"):
        target = load_model(model, **options).eval()
        tokenizer = load_tokenizer(model)
    with _packed(target, writing.batch_size), progress_bar() as progress:
        task = progress.add_task("tokens written", total=tokens)
        on_tokens = partial(progress.advance, task)
        return make(target, tokenizer, tokens, folder, **given, writing=writing, on_tokens=on_tokens)


def _packed(model, batch_size: int):
    """Packed linear layers where the model has any, which halve the time of small batches on a CPU."""
    from treespec.cpu import prepack_linears

    try:
        return prepack_linears(model, batch_size)
    except TreespecError:
        return nullcontext()
