"""`treespec trace`: record a run, say what holds it back, look at it in a browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec.commands.console import CONSOLE, check_out_file, print_json, say
from treespec.commands.generate import answer
from treespec.commands.options import (
    MODEL_HELP,
    Drafting,
    JsonOption,
    ModelOptions,
    Question,
    Sampling,
    TreeOption,
    with_groups,
)
from treespec.commands.stream import Stream
from treespec.errors import ConfigError
from treespec.lab.diagnosis import Diagnosis, diagnose, of_trace
from treespec.lab.trace import Trace, TraceFile, read_trace, to_networkx, write_graph

EXAMPLES = """Examples:

treespec trace record run.jsonl --prompt "Write a haiku about rivers."

treespec trace summary run.jsonl

treespec trace view run.jsonl --out run.html

treespec trace graph run.jsonl --step 12 --out tree.graphml"""

app = typer.Typer(help="Record runs, find out why they are slow, and look into them.", no_args_is_help=True)
FileArgument = Annotated[Path, typer.Argument(help="The trace, *.jsonl.", show_default=False)]


@dataclass(frozen=True)
class TracedModel(ModelOptions):
    """The argument is the trace, so the model is an option."""

    model: Annotated[str | None, typer.Option(help=MODEL_HELP, show_default=False)] = None


@app.command(epilog=EXAMPLES)
@with_groups
def record(
    file: FileArgument,
    model: TracedModel,
    question: Question,
    sampling: Sampling,
    drafting: Drafting,
    tree: TreeOption = "auto",
    distributions: Annotated[
        bool, typer.Option("--distributions", help="Record all distributions, to replay other rules and trees.")
    ] = False,
    max_steps: Annotated[int, typer.Option(min=1, help="Recorded at most.")] = 100_000,
    as_json: JsonOption = False,
) -> None:
    """Decode one text as `treespec generate` does, and append every step to a trace.

    Exit code 0: done; 2: wrong use, or something cannot be loaded or written.
    """
    text = question.read()
    written = TraceFile(file, max_steps=max_steps, has_distributions=distributions)
    if file.exists() and file.stat().st_size:
        read_trace(file)  # Before a model is loaded: an existing file that is not a trace is left unchanged.
    loaded = model.load()
    options = {"trace": written, "tokenizer": loaded.tokenizer, "progress": as_json and CONSOLE.is_terminal}
    speculation = drafting.speculation(loaded, tree, seed=model.seed, **options)
    stream = Stream(loaded.tokenizer, speculation.drafter, None if as_json else Console(highlight=False))
    found = answer(loaded, speculation, stream, text, question, sampling)
    if as_json:
        print_json({"file": str(file), **found})
    else:
        say(f"{file}: now treespec trace summary {file}, or treespec trace view {file}")


@app.command("summary", epilog=EXAMPLES)
def summarize(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show what was recorded, what holds the run back, and what to change.

    Exit code 0: done; 2: there is no such trace, or it is damaged.
    """
    trace = read_trace(file)
    found = diagnose(of_trace(trace))
    if as_json:
        print_json(summary_of(trace, found))
        return
    console = Console(highlight=False)
    for line in heading(trace):
        console.print(line, markup=False, soft_wrap=True, style="dim")
    console.print(str(found), markup=False, soft_wrap=True)


@app.command(epilog=EXAMPLES)
def view(
    file: FileArgument,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Default: the trace's name with .html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML page that shows the run: text, time line, trees, acceptance. It needs no network.

    Exit code 0: done; 2: there is no such trace, it is damaged, or the page cannot be written.
    """
    from treespec.viz import write_page

    page = out or file.with_suffix(".html")
    if page == file:
        raise ConfigError(f"the page would replace the trace: give --out another name than {file}")
    check_out_file(page)
    write_page(read_trace(file), page)
    if as_json:
        print_json({"page": str(page)})
    say(f"{page}: open it in a browser")


@app.command(epilog=EXAMPLES)
def graph(
    file: FileArgument,
    out: Annotated[Path, typer.Option(dir_okay=False, help="*.graphml, or *.json for node-link JSON.")],
    step: Annotated[int, typer.Option(min=1, help="Which record of the trace, from 1.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Write one step's tree as a graph, for networkx and other tools.

    Exit code 0: done; 2: there is no such trace or step, or the graph cannot be written.
    """
    trace = read_trace(file)
    if step > len(trace.steps):
        raise ConfigError(f"--step must be at most {len(trace.steps)}, the records of {file}, got {step}")
    texts = {token: text for call in trace.calls for token, text in call.texts.items()}
    check_out_file(out)
    write_graph(to_networkx(trace.steps[step - 1], texts), out)
    if as_json:
        print_json({"graph": str(out), "step": step})
    say(f"{out}: the tree of record {step}")


def heading(trace: Trace) -> list[str]:
    """A line per call: model, drafter, policy, sampling, and how it ended."""
    lines = []
    for call in trace.calls:
        parts = (*(call.about.get(name) for name in ("model", "drafter", "policy")), call.sampling)
        end = call.end or "interrupted, or still at work"
        lines.append(f"{', '.join(str(part) for part in parts if part)}: {end}")
    return [*lines, "the last line is incomplete and was left out"] if trace.is_cut else lines


def summary_of(trace: Trace, found: Diagnosis) -> dict[str, Any]:
    """The data for JSON."""
    calls = [{**call.about, "end": call.end, "num_records": len(call.steps)} for call in trace.calls]
    for call in calls:
        call.pop("prompt_ids", None)
    return {"file": trace.path, "is_cut": trace.is_cut, "calls": calls, **found.as_dict()}
