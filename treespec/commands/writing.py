"""`treespec warm-up` and `treespec write`: a target writes text."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from treespec.commands.console import check_out_folder, command_line, progress_bar, say
from treespec.commands.models import load_target
from treespec.commands.options import PromptsOption, SeedOption, TargetArgument, ThreadsOption, use_threads, with_groups
from treespec.errors import ConfigError
from treespec.hf.loading.models import load_tokenizer
from treespec.training.text import writing as texts_of
from treespec.training.text.batch import Writing
from treespec.training.text.chat import read_prompts

OPENINGS_HELP = "How the model's own messages begin, in turn; it continues them. A file like that of --prompts."
OpeningsOption = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=OPENINGS_HELP)]
Made = TypeVar("Made")
EXAMPLES = """Examples:

treespec warm-up ./my-model --tokens 200000 --out warm.safetensors

treespec write ./my-model --tokens 2000000 --prompts prompts.txt --out texts"""


@dataclass(frozen=True)
class Written:
    """How much text is written, and how."""

    tokens: Annotated[int, typer.Option(min=1, help="How much text the model writes.")] = 200_000
    prompts: PromptsOption = None
    batch_size: Annotated[int, typer.Option(min=1, help="Texts written in one batch.")] = 64
    max_length: Annotated[int, typer.Option(min=2, help="The longest text in tokens.")] = 320
    seed: SeedOption = 0
    threads: ThreadsOption = None

    def by(
        self,
        make: Callable[..., Made],
        name: str,
        folder: Path,
        dtype: str | None = None,
        openings: Path | None = None,
        **options: object,
    ) -> Made:
        """Call `make`, that is `write_texts` or `warm_up`, with a progress bar of the written tokens."""
        use_threads(self.threads)
        sizes = {"batch_size": self.batch_size, "max_length": self.max_length, "seed": self.seed}
        writing = Writing(**sizes, **options)  # pyright: ignore[reportArgumentType]
        messages = {"prompts": self.prompts, "openings": openings}
        given: dict[str, Any] = {kind: read_prompts(path) for kind, path in messages.items() if path is not None}
        target, tokenizer = load_target(name, dtype), load_tokenizer(name)
        with progress_bar() as progress:
            task = progress.add_task("tokens written", total=self.tokens)
            given["on_tokens"] = partial(progress.advance, task)
            return make(target, tokenizer, self.tokens, folder, **given, writing=writing)


@with_groups
def warm_up(
    model: TargetArgument,
    written: Written,
    out: Annotated[Path, typer.Option(help="The file to write, *.safetensors.")],
    texts: Annotated[
        Path | None, typer.Option(file_okay=False, help="The folder of the text; default: OUT-texts, next to OUT.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the file; default: as given.")] = None,
) -> None:
    """Let the target write text from its own chat template; save its recycling table and the text for suffix lookup.

    Run the same command again to resume an interrupted run.
    """
    if out.is_dir():
        raise ConfigError(f"{out} cannot be written: it is a folder")
    check_out_folder(out.parent)
    folder = texts or out.with_name(f"{out.stem}-texts")
    start = written.by(texts_of.warm_up, model, folder)
    replace(start, about={"model": name or model, "command": command_line(), **start.about}).save(out)
    size = out.stat().st_size / 1e6
    say(f"{out}: {start.num_tokens} tokens of text, {size:.1f} MB; the text is in {folder}")


@with_groups
def write(
    model: TargetArgument,
    written: Written,
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of the text.")],
    openings: OpeningsOption = None,
    max_message: Annotated[int, typer.Option(min=1, help="The longest message of its own in tokens.")] = 96,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Answers have these in turn; default: 0, 0.7 and 1.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, where the hardware is faster in it; default: the checkpoint's.")
    ] = None,
) -> None:
    """Let the target write text: answers to given prompts, then messages of its own with their answers.

    Run the same command again to resume an interrupted run.
    """
    options = {"max_message": max_message, "temperatures": tuple(temperature or Writing.temperatures)}
    texts = written.by(texts_of.write_texts, model, out, dtype, openings, **options)
    say(f"{out}: {len(texts.tokens)} tokens in {len(texts.lengths)} texts")
