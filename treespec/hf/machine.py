"""The machine that measurements are made on: its processor, and how busy it is with other work, which misleads."""

from __future__ import annotations

import functools
import os
import platform
import time
from pathlib import Path

BUSY_SHARE = 0.15
"""The share of its processors' time that other processes use, above which a machine counts as busy."""
QUIET_SECONDS = 0.2
"""How long `is_quiet` watches the machine."""
VALID_SECONDS = 60.0

_latest: tuple[float, bool] | None = None
"""When the machine was watched last, and whether it was quiet."""


class OtherWork:
    """Watches, from its creation on, how much of its processors other processes use; on Linux only.

    Its processors are those that this process may run on (`taskset` limits them).
    """

    def __init__(self) -> None:
        self._start = _processor_seconds()

    def share(self) -> float | None:
        """The others' share of the processors' time since the start, 0 to 1; None where the system does not say it."""
        if self._start is None or (now := _processor_seconds()) is None:
            return None
        all_, idle, own = (end - start for start, end in zip(self._start, now, strict=True))
        return round(min(max((all_ - idle - own) / all_, 0.0), 1.0), 3) if all_ > 0 else 0.0


def is_busy(share: float | None) -> bool:
    """Whether other processes used so much that a measurement is not to be relied on; unknown counts as quiet."""
    return share is not None and share > BUSY_SHARE


def is_quiet() -> bool:
    """Whether the machine is quiet: watches it for a moment; the answer holds for `VALID_SECONDS`."""
    global _latest
    if _latest is None or time.monotonic() - _latest[0] > VALID_SECONDS:
        work = OtherWork()
        time.sleep(QUIET_SECONDS)
        _latest = time.monotonic(), not is_busy(work.share())
    return _latest[1]


def _processor_seconds() -> tuple[float, float, float] | None:
    """Seconds of the processors that this process may use, since the system's start: all, idle, and its own."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().split("\n") if line.startswith("cpu")]
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        fields = [[int(field) for field in line[1:9]] for line in lines if line[0] in usable]
    except (OSError, ValueError, AttributeError):  # No such file, no such call: not Linux.
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    all_, idle = sum(map(sum, fields)) / ticks, sum(times[3] + times[4] for times in fields) / ticks
    return all_, idle, time.process_time()


@functools.cache
def processor() -> str:
    """The processor's model and abilities."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.is_file() else []
    known = [line for line in lines if line.split("\t")[0].strip() in ("model name", "stepping", "flags", "Features")]
    return "\n".join([platform.machine(), *known]) if known else f"{platform.machine()} {platform.processor()}"
