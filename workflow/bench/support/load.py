"""The load that other processes put on this machine's cores while a probe measures, from ``/proc/stat``."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

STAT: Final = Path("/proc/stat")
BUSY: Final = 0.1
"""The share of the cores, taken by other processes, from which a machine counts as busy."""
LOAD_SECONDS: Final = 0.4
"""The shortest time over which the load is known: the kernel counts hundredths of a second on every core."""


class Reading(NamedTuple):
    """Seconds of this process's CPUs since the start of the system, and of the process with its ended children."""

    busy: float
    total: float
    own: float


def cpu_time(stat: str, cpus: Collection[int], ticks_a_second: int) -> tuple[float, float]:
    """Return the busy and the total seconds of some CPUs from the text of ``/proc/stat``.

    Time that the hypervisor gave to other machines (steal) is busy, since it slows this process down as well.
    """
    wanted = {f"cpu{number}" for number in cpus}
    busy = total = 0
    for name, *fields in (line.split() for line in stat.splitlines()):
        if name in wanted:
            ticks = [int(field) for field in fields[:8]]  # guest time, which follows, is part of user time
            busy, total = busy + sum(ticks) - ticks[3] - ticks[4], total + sum(ticks)
    return busy / ticks_a_second, total / ticks_a_second


class OtherLoad:
    """The share of the cores that other processes took, between calls."""

    def __init__(self) -> None:
        self._last = _reading()

    def share(self) -> float | None:
        """Return the share since the last call, or since the start; None on a system that does not tell."""
        before, self._last = self._last, _reading()
        return None if before is None or self._last is None else share_of_others(before, self._last)


def is_busy(share: float | None) -> bool:
    """Return whether other processes took so much of the cores that times are not to be trusted; not if unknown."""
    return share is not None and share >= BUSY


def share_of_others(before: Reading, after: Reading) -> float | None:
    """Return the share of the cores that other processes took between two readings; None if no time is recorded."""
    total = after.total - before.total
    if total <= 0:
        return None
    others = after.busy - before.busy - (after.own - before.own)
    return min(max(others / total, 0.0), 1.0)


def _reading() -> Reading | None:
    """Return the CPU times now; None on a system without ``/proc/stat``."""
    try:
        stat = STAT.read_text()
    except OSError:
        return None
    cpus = cpu_time(stat, os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK"))
    children = os.times()
    return Reading(*cpus, time.process_time() + children.children_user + children.children_system)
