"""`treespec check`: the self-test of a model with speculation."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from treespec.commands.console import CONSOLE, SeedOption, ThreadsOption, check_out_file, progress_bar, use_threads
from treespec.commands.models import (
    ConfigOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    ModelArgument,
    PackOption,
    RuleOption,
    SettingOption,
    TreeOption,
    load,
    speculation_of,
)
from treespec.lab.selftest.check import CHECKS, check
from treespec.lab.selftest.report import CheckReport, check_report_path

EXAMPLES = """Examples:

treespec check

treespec check ./my-model --drafter ./my-head --tree 8 --report check.md

treespec check ./my-model --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' --json"""
STYLES = {"ok": "green", "warning": "yellow", "FAILED": "bold red", "skipped": "dim"}


def run(
    model: ModelArgument = None,
    drafter: DrafterOption = None,
    tree: TreeOption = "auto",
    rule: RuleOption = "auto",
    speculative_config: ConfigOption = None,
    setting: SettingOption = None,
    report: Annotated[Path | None, typer.Option(help="Write the report to this *.md or *.json file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Run only this check, several times: {', '.join(CHECKS)}.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of sampling per G-test, at most.")] = 20.0,
    samples: Annotated[int, typer.Option(min=1, help="Continuations per G-test, at most.")] = 2048,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    pack: PackOption = True,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
) -> None:
    """Test whether speculation is exact with a model, here and now.

    With --drafter, --tree, --rule, --setting or --speculative-config what they name is tested besides the model. Exit
    code 0: nothing wrong; 1: a check failed; 2: wrong use, or the model cannot be loaded.
    """
    use_threads(threads)
    if report is not None:
        check_report_path(report)
        check_out_file(report)
    loaded = load(model, dtype, device, is_packed=pack)
    given = None
    if drafter or speculative_config or setting or (tree, rule) != ("auto", "auto"):
        given = speculation_of(loaded, drafter, tree, rule, speculative_config, setting)
    names = only or [name for name in CHECKS if given is not None or not name.endswith("given drafter")]
    with progress_bar() as progress:
        task = progress.add_task("", total=100 * len(names))
        done: set[str] = set()

        def on_progress(name: str, share: float) -> None:
            if share >= 1:
                done.add(name)
            completed = 100 * len(done) + (0 if name in done else 99 * share)
            progress.update(task, description=name, completed=completed)

        options = {"num_samples": samples, "seconds": seconds, "seed": seed, "only": only}
        found = check(loaded.model, given, tokenizer=loaded.tokenizer, on_progress=on_progress, **options)
    if report is not None:
        found.save(report)
        CONSOLE.print(f"report: {report}")
    _show(found, as_json)
    raise typer.Exit(0 if found.is_right else 1)


def _show(found: CheckReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.as_dict(), indent=1))
        return
    table = Table("check", "", "seen", box=None, padding=(0, 2, 0, 0))
    for finding in found.findings:
        table.add_row(finding.name, f"[{STYLES[finding.outcome]}]{finding.outcome}[/]", finding.text)
    console = Console()
    console.print(table)
    console.print(f"[bold {'green' if found.is_right else 'red'}]{found.verdict}[/]")
