"""The line with which a command ends its log: the processor time, the time and the memory that it took."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

_STARTED: Final = time.perf_counter() - time.process_time()
"""When this process started, nearly: what it does before this import is importing, which waits for little."""
_LINE: Final = re.compile(r"^cost: ([0-9.]+) core-seconds(?: in ([0-9.]+) s)?(?:, peak ([0-9.]+) MB)?$", re.MULTILINE)
_BYTES: Final = 1 if sys.platform == "darwin" else 1024
"""The unit of `resource.getrusage`'s memory: bytes on macOS, kilobytes elsewhere."""
_STATUS_FILE: Final = Path("/proc/self/status")


class Cost(NamedTuple):
    """What one or several commands took."""

    core_seconds: float
    """Of a process and of those that worked for it."""
    seconds: float
    peak_mb: float | None = None
    """Peak resident memory of the largest process, in MB (10^6 bytes); None in logs of former versions."""


def print_cost(*, with_time: bool = True) -> None:
    """Print what this process has cost so far to stderr; the last thing that a job's command does.

    with_time: False in a process that works for another one, which prints the time that both took.
    """
    used = os.times()
    processors = used.user + used.system + used.children_user + used.children_system
    time_taken = f" in {time.perf_counter() - _STARTED:.1f} s" if with_time else ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES
    # On Linux, getrusage keeps its peak across execve (man 2 getrusage), and so counts the memory of the process that
    # started this one. The status file, which only Linux has, does not.
    with suppress(OSError):
        if found := re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS_FILE.read_text(), re.MULTILINE):
            peak = int(found[1]) * 1024
    peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _BYTES)
    print(f"cost: {processors:.1f} core-seconds{time_taken}, peak {peak / 1e6:.0f} MB", file=sys.stderr)


def exit_with_cost(code: int, *, worked: Collection[int] = (0,)) -> NoReturn:
    """End the process with this status, and print its cost if the status is one of ``worked``: an error is one line."""
    # Two lines would hide the error.
    if code in worked:
        print_cost()
    sys.exit(code)


def cost_in(log: str) -> Cost | None:
    """Return the sum of the costs in a log, which has several lines if a command was resumed; None if it has none."""
    found = [
        Cost(float(core_seconds), float(seconds or 0), float(peak) if peak else None)
        for core_seconds, seconds, peak in _LINE.findall(log)
    ]
    return total(found) if found else None


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs, with the largest peak."""
    given = list(costs)
    peak = max((cost.peak_mb for cost in given if cost.peak_mb is not None), default=None)
    return Cost(sum(cost.core_seconds for cost in given), sum(cost.seconds for cost in given), peak)
