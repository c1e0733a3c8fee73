"""Paired statistics of a table of runs: every cell and its difference to the baseline, as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treespec.errors import ConfigError
from treespec.lab.measure.paired import Estimate, bootstrap, difference, mean_ratio, ratios
from treespec.lab.tables import markdown_table
from treespec.verification import RULES

Row = Mapping[str, Any]
Levels = tuple[tuple[str, Any], ...]
ROUNDING = 1e-4
"""Smaller gains count as zero: equal rules sum in different orders."""


@dataclass(frozen=True)
class Compared:
    """A cell: tokens per pass, and its paired differences to the baseline over units, prompts mostly.

    `gain`: in tokens per pass. `speed`: times as fast, the geometric mean. None: of the baseline itself, and where no
    time was measured.
    """

    levels: dict[str, Any]
    num_units: int
    length: Estimate
    gain: Estimate | None
    speed: Estimate | None

    @property
    def is_lossless(self) -> bool:
        rule = RULES.get(self.levels.get("rule", "auto"))
        return rule is None or rule.is_lossless

    def label(self, factors: Sequence[str]) -> str:
        """Its levels of these factors, in words."""
        return ", ".join(shown_level(name, self.levels[name]) for name in factors)


def compare(rows: Sequence[Row], factors: Sequence[str], units: Sequence[str], baseline: Any) -> list[Compared]:
    """Every cell with its differences to its baseline, paired by unit, with 95 % bootstrap intervals.

    Args:
        rows: with the columns `tokens_per_pass` and, where times were measured, `ms_per_token`; runs that were
            `refused` are left out.
        factors, units: names of columns: what makes a cell, and what its runs are paired by.
        baseline: a function from a cell's levels to those of its baseline.

    Raises `ConfigError`: the baseline was not run in the units of a cell.
    """
    cells: dict[Levels, dict[Levels, Row]] = {}
    for row in rows:
        if row.get("refused") is None:
            unit = tuple((name, row[name]) for name in units)
            cells.setdefault(tuple((name, row[name]) for name in factors), {})[unit] = row
    found = []
    for key, mine in cells.items():
        levels = dict(key)
        wanted = {name: level for name, level in baseline(levels).items() if name in levels}
        other = cells.get(tuple((name, wanted[name]) for name in factors), {})
        if not set(mine) <= set(other):
            raise ConfigError(f"no baseline {wanted} was run on the prompts of {levels}")
        pairs = [(run, other[unit]) for unit, run in mine.items()]
        own, theirs = ([run["tokens_per_pass"] for run in side] for side in zip(*pairs, strict=True))
        gains = (None, None) if levels == wanted else (difference(own, theirs), _speed(pairs))
        found.append(Compared(levels, len(pairs), bootstrap(own), *gains))
    return found


def _speed(pairs: Sequence[tuple[Row, Row]]) -> Estimate | None:
    own, theirs = ([run.get("ms_per_token") for run in side] for side in zip(*pairs, strict=True))
    return None if None in own + theirs else mean_ratio(ratios(theirs, own))


def varied(cells: Sequence[Compared]) -> list[str]:
    """The factors with more than one level."""
    return [name for name in cells[0].levels if len({cell.levels[name] for cell in cells}) > 1]


def panels_of(cells: Sequence[Compared], by: Sequence[str]) -> dict[str, list[Compared]]:
    """Cells by their levels of some factors, in words."""
    panels: dict[str, list[Compared]] = {}
    for cell in cells:
        panels.setdefault(cell.label(by), []).append(cell)
    return panels


def finding(cells: Sequence[Compared], factors: Sequence[str]) -> str:
    """One sentence: the best cell, and how many are above and below the baseline beyond the paired noise."""
    compared = [(cell, cell.gain) for cell in cells if cell.gain is not None and cell.is_lossless]
    if not compared:
        return "nothing to compare with the baseline."
    above = sum(gain.low > ROUNDING for _, gain in compared)
    below = sum(gain.high < -ROUNDING for _, gain in compared)
    best, gain = max(compared, key=lambda pair: pair[0].length.value)
    timed = [(cell.speed, cell) for cell, _ in compared if cell.speed is not None]
    speed, fastest = max(timed, key=lambda pair: pair[0].value, default=(None, best))
    faster = f"; the fastest is {fastest.label(factors)}, {speed.text()} times the baseline" if speed else ""
    return (
        f"of {len(compared)} lossless cells {above} emit more tokens per pass than the baseline beyond the paired "
        f"noise, {below} fewer; the most is {best.label(factors)} with {best.length.value:.2f}, "
        f"{gain.text(sign='+')}{faster}."
    )


def report(cells: Sequence[Compared], title: str, about: str, picture: str, by: Sequence[str] = ()) -> str:
    """The statistics in Markdown: a sentence and a table per panel."""
    factors = [name for name in varied(cells) if name not in by] or list(cells[0].levels)[:1]
    panels = panels_of(cells, by)
    lines = [f"# {title}", "", about, ""]
    lines += [f"- {panel + ': ' if panel else ''}{finding(group, factors)}" for panel, group in panels.items()]
    lines += ["", f"![Gains over the baseline]({picture})", ""]
    for panel, group in panels.items():
        lines += [f"## {panel}", ""] if panel else []
        rows = [_row(cell, factors) for cell in group]
        lines += [markdown_table([*factors, "runs", "tokens per pass", "gain", "speed"], rows), ""]
    return "\n".join(lines)


def _row(cell: Compared, factors: Sequence[str]) -> list[str]:
    gain = "baseline" if cell.gain is None else cell.gain.text(sign="+")
    levels = [shown_level(name, cell.levels[name]) for name in factors]
    return [*levels, str(cell.num_units), cell.length.text(), gain, "" if cell.speed is None else cell.speed.text()]


def shown_level(name: str, level: Any) -> str:
    """A level in a table or a picture."""
    if isinstance(level, str):
        is_lossy = name == "rule" and level in RULES and not RULES[level].is_lossless
        return f"{level} (lossy)" if is_lossy else level
    if level is None:
        return "any depth" if name == "depth" else "none"
    return f"{name.replace('_', '-')} {level:g}"
