"""`treespec generate`: one text."""

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from treespec.commands.console import CONSOLE, SeedOption, ThreadsOption, use_threads
from treespec.commands.models import (
    ConfigOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    Loaded,
    ModelArgument,
    PackOption,
    RuleOption,
    SettingOption,
    TreeOption,
    load,
    speculation_of,
)
from treespec.commands.stream import Stream
from treespec.engine.stats import SpeculationStats
from treespec.errors import ConfigError
from treespec.hf import generate

EXAMPLES = """Examples:

treespec generate --prompt "Write a Python function that adds two numbers." --colours

treespec generate ./my-model --file question.txt --temperature 0.7 --json

treespec generate ./my-model --prompt "Write a haiku about rivers." --setting setting.json

echo "Once upon a time" | treespec generate ./my-model --raw --drafter ./my-draft-model"""

PromptOption = Annotated[str | None, typer.Option("--prompt", "-p", help="The prompt.", show_default=False)]
PromptFileOption = Annotated[
    Path | None,
    typer.Option("--file", exists=True, dir_okay=False, help="A file with it; default: the standard input."),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Continue the text, without the chat template.")]
LengthOption = Annotated[int, typer.Option(min=1, help="The longest answer in tokens.")]
TemperatureOption = Annotated[float, typer.Option(min=0, help="0: greedy.")]
TopPOption = Annotated[float, typer.Option(min=0.0, max=1.0, help="1: off.")]
ColoursOption = Annotated[bool, typer.Option("--colours", help="Accepted draft tokens by their drafter.")]


def run(
    model: ModelArgument = None,
    prompt: PromptOption = None,
    file: PromptFileOption = None,
    raw: RawOption = False,
    max_new_tokens: LengthOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    drafter: DrafterOption = None,
    tree: TreeOption = "auto",
    rule: RuleOption = "auto",
    speculative_config: ConfigOption = None,
    setting: SettingOption = None,
    colours: ColoursOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print text and statistics as JSON.")] = False,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    pack: PackOption = True,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
) -> None:
    """Decode one text by speculation, streamed, with statistics at the end.

    Exit code 0: done; 2: wrong use, or something cannot be loaded.
    """
    text = read_prompt(prompt, file)
    use_threads(threads)
    loaded = load(model, dtype, device, is_packed=pack)
    shown = {"seed": seed, "progress": as_json and CONSOLE.is_terminal}
    speculation = speculation_of(loaded, drafter, tree, rule, speculative_config, setting, **shown)
    stream = Stream(loaded.tokenizer, speculation.drafter, None if as_json else Console(highlight=False), colours)
    inputs = encode(loaded, [{"role": "user", "content": text}], text if raw else None)
    start = perf_counter()
    options = sampling(temperature, top_p) | {"max_new_tokens": max_new_tokens}
    generate(loaded.model, inputs, speculation, streamer=stream, **options)  # pyright: ignore[reportArgumentType]
    found = summary(speculation.stats, stream, perf_counter() - start)
    if as_json:
        print(json.dumps({"text": stream.text, **found}, indent=1))
        return
    CONSOLE.print(statistics_line(found), style="dim", highlight=False)
    if colours:
        CONSOLE.print(stream.legend())


def encode(loaded: Loaded, messages: list[dict[str, str]], raw: str | None = None) -> dict[str, torch.Tensor]:
    """A text as it is, or messages by the chat template, where there is one, else the last message as it is."""
    if raw is None and getattr(loaded.tokenizer, "chat_template", None) is not None:
        text = loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        encoded = loaded.tokenizer(text, add_special_tokens=False, return_tensors="pt")
    else:
        encoded = loaded.tokenizer(messages[-1]["content"] if raw is None else raw, return_tensors="pt")
    return {name: encoded[name].to(loaded.model.device) for name in ("input_ids", "attention_mask")}


def sampling(temperature: float, top_p: float) -> dict[str, Any]:
    """The arguments of `generate`; the checkpoint's own sampling settings do not count."""
    if temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}


def summary(stats: SpeculationStats, stream: Stream, seconds: float) -> dict[str, Any]:
    count = stats.num_emitted_tokens
    return {
        "num_tokens": count,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(count / seconds, 2),
        "tokens_per_pass": round(stats.block_efficiency, 3),
        "drafted_per_pass": round(stats.mean_acceptance_length - 1, 3) if stats.num_drafts else 0.0,
        "draft_acceptance_rate": round(stats.draft_acceptance_rate, 3),
        "tokens_by_drafter": dict(stream.counts),
        "seconds_by_phase": {phase: round(total, 3) for phase, total in stats.seconds.items()},
    }


def statistics_line(found: dict[str, Any]) -> str:
    """Tokens per pass; most nodes of a tree are alternatives, so the share of accepted nodes says little."""
    count = found["num_tokens"]
    return (
        f"{found['tokens_per_pass']:.2f} tokens per model pass, {found['drafted_per_pass']:.2f} of them drafted; "
        f"{count} token{'s' * (count > 1)} in {found['seconds']:.1f} s, {found['tokens_per_second']:.1f} per second"
    )


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt by option, file or standard input. Raises `ConfigError`: none, several, an empty one."""
    if prompt is not None and file is not None:
        raise ConfigError("the prompt comes by --prompt or by --file, got both")
    if prompt is None and file is None and sys.stdin.isatty():
        raise ConfigError("there is no prompt: give --prompt or --file, or pipe it in")
    text = prompt
    try:
        if text is None:
            text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompt must be UTF-8 text: {error}") from error
    if not text.strip():
        raise ConfigError("the prompt is empty")
    return text
