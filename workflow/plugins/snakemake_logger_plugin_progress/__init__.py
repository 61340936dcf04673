"""One line of progress in place of Snakemake's log: ``snakemake --logger progress``, with this folder on PYTHONPATH.

A terminal shows it on one line, a file gets at most `_STEPS` of them. Errors and warnings follow on lines of their own,
which are cut; the full log is a file in ``.snakemake/log``. Snakemake finds a logger by the name of its module.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping
from logging import WARNING, LogRecord
from typing import Any, Final, NamedTuple

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

_PRIOR: Final = 60.0
"""Seconds for which the first estimates trust the expected pace rather than this machine's."""
_STEPS: Final = 20
"""Lines of a run whose output is a file: one for each twentieth of the work."""
_CREDIT: Final = 0.95
"""The most of a job that counts as done while it runs."""
_REDRAW: Final = 1.0
"""Seconds after which a terminal's line is drawn again, because jobs may take minutes."""
_WIDTH: Final = 120
_LINES: Final = 40
"""The longest line and the most lines of one warning or error."""

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


def shortened(text: str) -> str:
    """Return a message with long lines cut and with its middle left out if it has many lines."""
    lines = [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in text.splitlines()]
    if len(lines) > _LINES:
        half = _LINES // 2
        lines[half:-half] = [f"... {len(lines) - 2 * half} more lines in .snakemake/log ..."]
    return "\n".join(lines)


class Running(NamedTuple):
    """A job that runs."""

    rule: str
    threads: int
    started: float


class LogHandler(LogHandlerBase):
    """Prints one line of progress, which a terminal overwrites; see the module."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._first_job: float | None = None
        self._running: dict[int, Running] = {}
        self._done = 0.0
        self._ended = 0
        self._jobs = 0
        self._printed = -1
        self._has_open_line = False
        # Only a terminal can overwrite a line.
        self._overwrites = sys.stderr.isatty()
        self._over = threading.Event()
        if self._overwrites:
            threading.Thread(target=self._redraw, daemon=True).start()

    def emit(self, record: LogRecord) -> None:
        """Take in one event of Snakemake's."""
        told: dict[str, Any] = vars(record)
        event = told.get("event")
        if record.levelno >= WARNING or event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR, LogEvent.ERROR):
            self._say(shortened(self.format(record)))
        elif event == LogEvent.RUN_INFO:
            self._jobs = told["stats"]["total"]
        elif event == LogEvent.JOB_INFO:
            now = time.monotonic()
            # What Snakemake did before is no measure of how fast jobs are.
            self._first_job = self._first_job or now
            self._running[told["jobid"]] = Running(told["rule_name"], told["threads"], now)
            self._show()
        elif event == LogEvent.JOB_FINISHED:
            self._running.pop(told["job_id"], None)
            self._done += _expected.get(told["job_id"], 1.0)
            self._ended += 1
            self._show()
        elif event is None and record.getMessage().startswith((NOTHING_TO_BE_DONE_MSG, "Complete log")):
            self._say(record.getMessage())

    def close(self) -> None:
        """End the line of a run that was broken off."""
        self._over.set()
        if self._has_open_line:
            print(file=sys.stderr, flush=True)
            self._has_open_line = False
        super().close()

    def _redraw(self) -> None:
        while not self._over.wait(_REDRAW):
            self.acquire()
            try:
                if self._running:
                    self._show()
            finally:
                self.release()

    def _done_now(self, now: float) -> float:
        """Return the core-seconds that are done, with those of running jobs at the pace of the ended ones."""
        elapsed = now - (self._first_job or now)
        pace = (self._done + _PRIOR * _cores) / ((elapsed + _PRIOR) * _cores)
        return self._done + sum(
            min(_CREDIT * _expected.get(number, 1.0), (now - job.started) * job.threads * pace)
            for number, job in self._running.items()
        )

    def _show(self) -> None:
        now = time.monotonic()
        if self._ended == self._jobs:
            text = f"100%, {self._jobs:,} jobs in {in_words(now - self._start)}"
        else:
            # The jobs of a workflow that tells no times, such as one that imports this one, count alike.
            total = sum(_expected.values()) or self._jobs
            done = min(self._done_now(now), total)
            rest = in_words(left(done, total, now - (self._first_job or now), _cores))
            share = done / total
            text = f"{share:4.0%}, {self._ended:,} of {self._jobs:,} jobs, {rest} left"
            if not self._overwrites and int(share * _STEPS) == self._printed:
                return
            self._printed = int(share * _STEPS)
        if self._overwrites:
            line = ": ".join(filter(None, (text, ", ".join(job.rule for job in self._running.values()))))
            text = f"\r\x1b[K{line[: min(_WIDTH, shutil.get_terminal_size().columns - 1)]}"
        self._has_open_line = self._overwrites and self._ended < self._jobs
        print(text, end="" if self._has_open_line else "\n", file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        """Print text on lines of its own."""
        print(f"\r\x1b[K{text}" if self._overwrites else text, file=sys.stderr, flush=True)
        self._has_open_line = False
