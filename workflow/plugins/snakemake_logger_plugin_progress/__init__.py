"""One line of progress in place of Snakemake's log: ``snakemake --logger progress``, with this folder on PYTHONPATH.

Errors and warnings are printed whole; the full log is a file in ``.snakemake/log``. Snakemake finds a logger by the
name of its module.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from logging import WARNING, LogRecord
from typing import Any, Final

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

_PRIOR: Final = 60.0
"""Seconds for which the first estimates trust the expected pace rather than this machine's."""
_STEPS: Final = 20
"""Lines of a run whose output is a file: one for each twentieth of the work."""

_expected: dict[int, float] = {}
_cores: float = 1


def expect(core_seconds: Mapping[int, float], cores: float) -> None:
    """Tell what each job that will run takes, by its id, and how many cores there are."""
    global _cores
    _expected.update(core_seconds)
    _cores = cores


def left(done: float, total: float, elapsed: float, cores: float) -> float:
    """Return the seconds that the rest takes.

    Args:
        done: core-seconds of the jobs that have ended, as they were expected.
        total: those of all jobs.
        elapsed: seconds since the start.
        cores: core-seconds in a second, if jobs take as long as expected.
    """
    return (total - done) * (elapsed + _PRIOR) / (done + _PRIOR * cores)


def in_words(seconds: float) -> str:
    """Return a duration for people: ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class LogHandler(LogHandlerBase):
    """Prints one line of progress, which a terminal overwrites; see the module."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._running: dict[int, str] = {}
        self._done = 0.0
        self._ended = 0
        self._jobs = 0
        self._printed = -1
        # Only a terminal can overwrite a line.
        self._overwrites = sys.stderr.isatty()

    def emit(self, record: LogRecord) -> None:
        """Take in one event of Snakemake's."""
        told: dict[str, Any] = vars(record)
        event = told.get("event")
        if record.levelno >= WARNING or event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR, LogEvent.ERROR):
            self._say(self.format(record))
        elif event == LogEvent.RUN_INFO:
            self._jobs = told["stats"]["total"]
        elif event == LogEvent.JOB_INFO:
            self._running[told["jobid"]] = told["rule_name"]
            self._show()
        elif event == LogEvent.JOB_FINISHED:
            self._running.pop(told["job_id"], None)
            self._done += _expected.get(told["job_id"], 1.0)
            self._ended += 1
            self._show()
        elif event is None and record.getMessage().startswith((NOTHING_TO_BE_DONE_MSG, "Complete log")):
            self._say(record.getMessage())

    def _show(self) -> None:
        elapsed = time.monotonic() - self._start
        if self._ended == self._jobs:
            text = f"100%, {self._jobs:,} jobs in {in_words(elapsed)}"
        else:
            # The jobs of a workflow that tells no times, such as one that imports this one, count alike.
            total = sum(_expected.values()) or self._jobs
            share = min(self._done / total, 1.0)
            rest = in_words(left(self._done, total, elapsed, _cores))
            text = f"{share:4.0%}, {self._ended:,} of {self._jobs:,} jobs, {rest} left"
            if not self._overwrites and int(share * _STEPS) == self._printed:
                return
            self._printed = int(share * _STEPS)
        if self._overwrites:
            line = ": ".join(filter(None, (text, ", ".join(self._running.values()))))
            text = f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}"
        end = "" if self._overwrites and self._ended < self._jobs else "\n"
        print(text, end=end, file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        """Print text on lines of its own."""
        print(f"\r\x1b[K{text}" if self._overwrites else text, file=sys.stderr, flush=True)
