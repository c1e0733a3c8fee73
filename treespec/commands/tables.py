"""What was measured, as tables for a terminal."""

from statistics import median

from rich.table import Table

from treespec.lab.measure.paired import PLAIN, Agreements, Runs, ms_per_token, speeds, tokens_per_pass, verdict


def summary_table(runs: Runs, agreements: Agreements, title: str) -> Table:
    """Medians over prompts."""
    table = Table(title=title, title_justify="left")
    for name in ("", "ms per token", "speed", "tokens per pass", "identical outputs"):
        table.add_column(name, justify="left" if not name else "right")
    for name, mine in runs.items():
        table.add_row(
            name,
            f"{median(map(ms_per_token, mine.values())):.1f}",
            f"{median(speeds(runs, name)):.2f}×",
            f"{median(map(tokens_per_pass, mine.values())):.2f}",
            verdict(list(agreements[name].values())),
        )
    return table


def prompt_table(runs: Runs) -> Table:
    table = Table(title="ms per token by prompt", title_justify="left")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right")
    for prompt in runs[PLAIN]:
        table.add_row(prompt, *(f"{ms_per_token(mine[prompt]):.1f}" for mine in runs.values()))
    return table
