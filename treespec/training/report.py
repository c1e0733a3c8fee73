"""What a training run leaves to read: its log as CSV, its evaluation as JSON, its curve as a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treespec.training.evaluate import Evaluation


def write_log(path: Path, log: Sequence[Mapping[str, Any]]) -> None:
    """One line per entry, one column per name."""
    names = list(dict.fromkeys(name for line in log for name in line))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({name: round(v, 5) if isinstance(v, float) else v for name, v in line.items()} for line in log)


def write_evaluation(path: Path, evaluation: Evaluation, about: Mapping[str, Any]) -> None:
    """All numbers, and what they are of."""
    path.write_text(json.dumps({**about, "evaluation": evaluation.as_dict()}, indent=2) + "\n", encoding="utf-8")
