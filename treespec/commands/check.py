"""`treespec check`: the self-test of a model with speculation."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from treespec.commands.console import check_out_file, print_json, progress_bar, say
from treespec.commands.options import Drafting, JsonOption, ModelOptions, TreeOption, with_groups
from treespec.lab.selftest.check import CHECKS, check
from treespec.lab.selftest.report import CheckReport, check_report_path

EXAMPLES = """Examples:

treespec check

treespec check ./my-model --drafter ./my-head --tree 8 --report check.md

treespec check ./my-model --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' --json"""
STYLES = {"ok": "green", "warning": "yellow", "FAILED": "bold red", "skipped": "dim"}


@with_groups
def run(
    model: ModelOptions,
    drafting: Drafting,
    tree: TreeOption = "auto",
    report: Annotated[Path | None, typer.Option(help="Write the report to this *.md or *.json file.")] = None,
    as_json: JsonOption = False,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Run only this check, several times: {', '.join(CHECKS)}.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="The most seconds of sampling per G-test.")] = 20.0,
    samples: Annotated[int, typer.Option(min=1, help="Continuations per G-test, at most.")] = 2048,
) -> None:
    """Test whether speculation is exact with a model, here and now.

    With --drafter, --tree, --rule, --setting or --speculative-config what they name is tested too, not the model
    alone. Exit code 0: nothing wrong; 1: a check failed; 2: wrong use, or the model cannot be loaded.
    """
    if report is not None:
        check_report_path(report)
        check_out_file(report)
    loaded = model.load()
    given = drafting.speculation(loaded, tree) if drafting.is_given(tree) else None
    with progress_bar() as progress:
        task = progress.add_task("", total=100)

        def on_progress(name: str, share: float) -> None:
            progress.update(task, description=name, completed=100 * share)

        options = {"num_samples": samples, "seconds": seconds, "seed": model.seed, "only": only}
        found = check(loaded.model, given, tokenizer=loaded.tokenizer, on_progress=on_progress, **options)
    if report is not None:
        found.save(report)
        say(f"report: {report}")
    if as_json:
        print_json(found.as_dict())
    else:
        _show(found)
    raise typer.Exit(0 if found.is_right else 1)


def _show(found: CheckReport) -> None:
    table = Table("check", "", "seen", box=None, padding=(0, 2, 0, 0))
    for finding in found.findings:
        table.add_row(finding.name, f"[{STYLES[finding.outcome]}]{finding.outcome}[/]", finding.text)
    console = Console()
    console.print(table)
    console.print(f"[bold {'green' if found.is_right else 'red'}]{found.verdict}[/]")
