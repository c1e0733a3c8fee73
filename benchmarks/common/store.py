"""What a long run has measured so far, in a file of the user's cache folder: started again, it goes on from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import treespec


class Store:
    """Finished measurements, one line each; with None as the path they are kept in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines(keepends=True) if path is not None and path.is_file() else []
        if path is not None and lines and not lines[-1].endswith("\n"):
            # A run was stopped while it wrote this line.
            path.write_text("".join(lines[:-1]))
            lines.pop()
        self._known = dict(map(json.loads, lines))

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """What is known under `key`, else what `compute` gives, as JSON has it: tuples are lists then."""
        if key not in self._known:
            line = json.dumps([key, compute()])
            self._known[key] = json.loads(line)[1]
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a") as file:
                    file.write(line + "\n")
        return self._known[key]


def digest(*settings: Any, files: Iterable[Path] = ()) -> str:
    """A digest of settings, files, the package and the benchmarks: no results of other ones are reused."""
    hasher = hashlib.sha256(repr(settings).encode())
    for package in (Path(treespec.__file__ or "").parent, Path(__file__).parents[1]):
        files = [*files, *sorted(package.rglob("*.py"))]
    for file in files:
        hasher.update(file.read_bytes())
    return hasher.hexdigest()[:16]
