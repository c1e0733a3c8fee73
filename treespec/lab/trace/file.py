"""Traces as files: `TraceFile` appends to one, `read_trace` reads it."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from treespec.checks import check_count, check_flag
from treespec.data.tensor_file import write_tensors
from treespec.errors import CheckpointError, ConfigError, TraceError, TreespecWarning
from treespec.lab.trace.records import FORMAT, Trace, TracedCall, TracedStep

SHARD_FORMAT = "treespec-trace-distributions-1"


class TraceFile:
    """A file that calls append their steps to, as JSON lines, flushed after every step: a crash loses the last at most.

    Calls append to an existing trace. When a bound is reached recording stops, and the trace says so; decoding
    continues. A file that can no longer be written (a full disk) ends recording with a `TreespecWarning`.

    Args:
        path: the file, `*.jsonl`.
        max_steps: steps that are recorded in all, at most; a batch's step counts once.
        max_megabytes: what is written in all, at most, distributions included.
        has_distributions: record the distributions of every node too, so that `replay` can apply another rule or tree
            shape. They go into a folder named `<path>.distributions`, a file per step of nodes x vocabulary x 4 bytes.

    Raises `ConfigError`: a bound that is not a positive int, a path that is a folder or in no folder.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_steps: int = 100_000,
        max_megabytes: int = 512,
        has_distributions: bool = False,
    ) -> None:
        if not isinstance(path, (str, PathLike)):
            raise ConfigError(f"a trace needs the path of its file, got {path!r}")
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ConfigError(f"a trace needs the path of a file in an existing folder, got {self.path}")
        self.max_steps = check_count("max_steps", max_steps)
        self.max_megabytes = check_count("max_megabytes", max_megabytes)
        self.has_distributions = check_flag("has_distributions", has_distributions)
        self._num_steps, self._num_bytes, self._call = 0, 0, -1
        self._is_open, self._stopped = False, ""

    @property
    def is_recording(self) -> bool:
        """Whether further steps of this call are recorded."""
        return self._is_open and not self._stopped

    def begin(self, about: Mapping[str, Any]) -> None:
        """Begin a call with the line that describes it.

        Raises `TraceError`: the file exists and is not a trace.
        """
        self._call = _last_call(self.path) + 1
        self._is_open, self._stopped = True, ""
        self._write({"kind": "call", "format": FORMAT, "call": self._call, **about})

    def append(self, steps: Sequence[Mapping[str, Any]], distributions: Mapping[str, Tensor] | None = None) -> None:
        """Append one step, a record per row, with its distributions."""
        if not self.is_recording:
            return
        if self._num_steps >= self.max_steps:
            self._stopped = f"max_steps={self.max_steps} reached: later steps are not recorded"
        elif self._num_bytes >= self.max_megabytes * 1_000_000:
            self._stopped = f"max_megabytes={self.max_megabytes} reached: later steps are not recorded"
        else:
            self._num_steps += 1
            shard = None if distributions is None else self._write_shard(distributions)
            self._write(*({"kind": "step", **step, "shard": shard} for step in steps))

    def end(self, reason: str) -> None:
        """End a call."""
        self._write({"kind": "end", "reason": self._stopped or reason})
        self._is_open = False

    def _write_shard(self, distributions: Mapping[str, Tensor]) -> str | None:
        folder = Path(f"{self.path}.distributions")
        name = f"{folder.name}/call{self._call:03d}-step{self._num_steps:06d}.safetensors"
        try:
            folder.mkdir(exist_ok=True)
            write_tensors(self.path.parent / name, SHARD_FORMAT, distributions, {})
        except (OSError, CheckpointError) as error:
            self._give_up(error)
            return None
        self._num_bytes += sum(tensor.nbytes for tensor in distributions.values())
        return name

    def _write(self, *lines: Mapping[str, Any]) -> None:
        if not self._is_open:
            return
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(text)
        except OSError as error:
            self._give_up(error)
        self._num_bytes += len(text)

    def _give_up(self, error: Exception) -> None:
        warnings.warn(f"the trace {self.path} ends here, it cannot be written: {error}", TreespecWarning, stacklevel=2)
        self._is_open = False


def _last_call(path: Path) -> int:
    """The number of the last call in an existing trace, -1 without one; cuts off an incomplete last line."""
    if not path.exists() or not path.stat().st_size:
        return -1
    number, size = -1, 0
    with path.open("rb") as file:
        for line in file:
            if size == 0 and FORMAT.encode() not in line:
                raise TraceError(f"{path} exists and is not a trace of format {FORMAT}: choose another file")
            if line.endswith(b"\n"):
                size += len(line)
                number += line.startswith(b'{"kind":"call"')
    with path.open("rb+") as file:
        file.truncate(size)
    return number


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
            data = json.loads(line)
            if not isinstance(data, dict):
                raise TraceError("a line is not a JSON object")
            _add(calls, data)
        except (TraceError, TypeError, ValueError, KeyError) as error:
            raise TraceError(f"{path}, line {number}: {error}; expected a trace of format {FORMAT}") from error
    if not calls:
        raise TraceError(f"{path} holds no complete line: expected a trace of format {FORMAT}")
    return Trace(str(path), calls, is_cut)


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
        calls[-1] = replace(calls[-1], end=str(data["reason"]))
    else:
        raise TraceError(f"a line of unknown kind {kind!r}")
