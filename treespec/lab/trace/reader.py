"""Reading traces."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from treespec.errors import TraceError
from treespec.lab.trace.records import FORMAT, Trace, TracedCall, TracedStep


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read the trace that `TreeSpeculation(..., trace=path)` has written, also one that is still being written.

    An incomplete last line, which an interrupted process leaves, is left out.

    Raises `TraceError`: no such file, an empty one, one that is not a trace, or one that is damaged before its end.
    """
    if not Path(path).is_file():
        raise TraceError(f"there is no trace {path}" + (": it is a folder" if Path(path).is_dir() else ""))
    try:
        lines = Path(path).read_bytes().decode().splitlines(keepends=True)
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not a trace: it is not UTF-8 text ({error})") from error
    if not lines:
        raise TraceError(f"{path} is empty: nothing was recorded")
    is_cut = not lines[-1].endswith("\n")
    calls: list[TracedCall] = []
    for number, line in enumerate(lines[: len(lines) - is_cut], start=1):
        try:
            _add(calls, _object(line))
        except (TraceError, TypeError, ValueError, KeyError) as error:
            raise TraceError(f"{path}, line {number}: {error}; expected a trace of format {FORMAT}") from error
    if not calls:
        raise TraceError(f"{path} holds no complete line: expected a trace of format {FORMAT}")
    return Trace(str(path), calls, is_cut)


def _object(line: str) -> dict[str, Any]:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise TraceError("a line is not a JSON object")
    return data


def _add(calls: list[TracedCall], data: dict[str, Any]) -> None:
    kind = data.pop("kind", None)
    if kind == "call":
        if data.pop("format", None) != FORMAT:
            raise TraceError("a call has another format")
        calls.append(TracedCall(data, [], {}))
    elif not calls:
        raise TraceError(f"it begins with {kind!r}, not with a call")
    elif kind == "step":
        calls[-1].texts.update({int(token): text for token, text in data.pop("texts", {}).items()})
        calls[-1].steps.append(TracedStep.from_json(data))
    elif kind == "end":
        calls[-1] = TracedCall(calls[-1].about, calls[-1].steps, calls[-1].texts, str(data["reason"]))
    else:
        raise TraceError(f"a line of unknown kind {kind!r}")
