"""`treespec generate`: one text."""

from time import perf_counter
from typing import Any

from rich.console import Console

from treespec.commands.console import CONSOLE, print_json, say
from treespec.commands.models import Loaded
from treespec.commands.options import (
    ColoursOption,
    Drafting,
    JsonOption,
    ModelOptions,
    Question,
    Sampling,
    TreeOption,
    with_groups,
)
from treespec.commands.stream import Stream
from treespec.engine.stats import SpeculationStats
from treespec.hf import TreeSpeculation, generate

EXAMPLES = """Examples:

treespec generate --prompt "Write a Python function that adds two numbers." --colours

treespec generate ./my-model --file question.txt --temperature 0.7 --json

treespec generate ./my-model --prompt "Write a haiku about rivers." --setting setting.json

echo "Once upon a time" | treespec generate ./my-model --raw --drafter ./my-draft-model"""


@with_groups
def run(
    model: ModelOptions,
    question: Question,
    sampling: Sampling,
    drafting: Drafting,
    tree: TreeOption = "auto",
    colours: ColoursOption = False,
    as_json: JsonOption = False,
) -> None:
    """Decode one text by speculation, streamed, with statistics at the end.

    Exit code 0: done; 2: wrong use, or something cannot be loaded.
    """
    text = question.read()
    loaded = model.load()
    speculation = drafting.speculation(loaded, tree, seed=model.seed, progress=as_json and CONSOLE.is_terminal)
    stream = Stream(loaded.tokenizer, speculation.drafter, None if as_json else Console(highlight=False), colours)
    found = answer(loaded, speculation, stream, text, question, sampling)
    if as_json:
        print_json(found)
    elif colours:
        CONSOLE.print(stream.legend())


def answer(
    loaded: Loaded, speculation: TreeSpeculation, stream: Stream, text: str, question: Question, sampling: Sampling
) -> dict[str, Any]:
    """Decode the answer; the text with its statistics, which are shown where the text is."""
    inputs = loaded.encode([{"role": "user", "content": text}], text if question.raw else None)
    options: dict[str, Any] = {**sampling.arguments, "max_new_tokens": question.max_new_tokens, "streamer": stream}
    start = perf_counter()
    generate(loaded.model, inputs, speculation, **options)
    found = summary(speculation.stats, stream, perf_counter() - start)
    if stream.console is not None:
        say(statistics_line(found), style="dim")
    return {"text": stream.text, **found}


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
