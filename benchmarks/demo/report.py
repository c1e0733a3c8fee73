"""What the demo measured, in tables and a picture: medians of paired runs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from rich.table import Table

from treespec.hf.selftest.agreement import Agreement
from treespec.viz import Measured

PLAIN = "plain generate"


@dataclass(frozen=True)
class Run:
    """One decoded prompt: the new tokens, the time of the whole call and the passes of the target."""

    tokens: list[int]
    seconds: float
    num_passes: int

    @property
    def ms_per_token(self) -> float:
        return 1e3 * self.seconds / len(self.tokens)

    @property
    def tokens_per_pass(self) -> float:
        return len(self.tokens) / self.num_passes


Runs = dict[str, dict[str, list[Run]]]
"""By contestant and prompt, one run per round."""

Agreements = dict[str, dict[str, Agreement]]
"""By contestant and prompt, the worst agreement with plain greedy decoding over the rounds."""


def ms_per_token(rounds: list[Run]) -> float:
    return median(run.ms_per_token for run in rounds)


def tokens_per_pass(rounds: list[Run]) -> float:
    return median(run.tokens_per_pass for run in rounds)


def speeds(runs: Runs, name: str) -> list[float]:
    """By prompt, how many times as fast as plain: the median of the ratios round by round."""
    pairs = [zip(runs[PLAIN][prompt], rounds, strict=True) for prompt, rounds in runs[name].items()]
    return [median(plain.ms_per_token / mine.ms_per_token for plain, mine in rounds) for rounds in pairs]


def measured_of(runs: Runs, name: str) -> Measured:
    """A contestant's prompts for the picture."""
    mine = runs[name].values()
    return Measured(name, [ms_per_token(r) for r in mine], [tokens_per_pass(r) for r in mine], speeds(runs, name))


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


def verdict(agreements: list[Agreement]) -> str:
    same, ties = sum(a.is_identical for a in agreements), sum(a.is_excused for a in agreements)
    wrong = len(agreements) - same - ties
    parts = [
        f"{same} of {len(agreements)}",
        f"{ties} differ after a tie" if ties else "",
        f"{wrong} WRONG" if wrong else "",
    ]
    return ", ".join(part for part in parts if part)
