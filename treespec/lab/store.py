"""Files of results that are appended to, so that a run that was stopped continues where it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Store:
    """Finished measurements by key, as lines of JSON; with None as the path they are kept in memory only.

    What cannot be read, such as a line that a killed process did not finish, counts as not measured.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._known = path, dict[str, Any]()
        lines = path.read_text().splitlines(keepends=True) if path is not None and path.is_file() else []
        if path is not None and lines and not lines[-1].endswith("\n"):
            path.write_text("".join(lines[:-1]))
        for line in lines:
            try:
                key, value = json.loads(line)
            except ValueError:
                continue
            self._known[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def put(self, key: str, value: Any) -> None:
        """Keep a value as JSON has it: tuples are lists then."""
        line = json.dumps([key, value])
        self._known[key] = json.loads(line)[1]
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(line + "\n")

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the value under `key`; an unknown one is computed and stored."""
        if key not in self:
            self.put(key, compute())
        return self[key]
