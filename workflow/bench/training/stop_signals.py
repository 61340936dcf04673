"""Requests to end the process: signals and a time limit. Imports no torch, to be ready from the first moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

EXIT_RESUMABLE: Final = 75
"""Exit code of a process that was asked to stop and saved its work: the same command resumes it.

This is EX_TEMPFAIL of the C library; cluster profiles take it as "continue in the next slice".
"""

_MARK: Final = "MKOR_SAVED"
"""The environment variable with the path of a file that says the same: launchers may turn the code into another."""

_QUEUE_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""Sent by a batch queue when a job's time is over, or some minutes before."""


def leave_mark() -> None:
    """Leave the file that says that the process exits with `EXIT_RESUMABLE`, if a cluster's job asks for one."""
    if os.environ.get(_MARK):
        with suppress(OSError):  # the exit code may still arrive
            Path(os.environ[_MARK]).touch()


class Stop:
    """Whether this process was asked to end: by SIGTERM or SIGUSR1 (a queue), SIGINT (Ctrl-C), or a time limit.

    The current step is then completed and saved. A second SIGINT interrupts at once, unless a launcher started the
    process, which may pass on the same Ctrl-C. A queue's signal may arrive twice, from the queue and the launcher.

    seconds: the time limit, counted from construction.
    launched: whether a launcher started this process.
    then: called at every signal, for example to pass it on.
    """

    def __init__(
        self, seconds: float | None = None, *, launched: bool = False, then: Callable[[], None] = lambda: None
    ) -> None:
        self.asked = False
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._launched = launched
        self._then = then

    def __call__(self) -> bool:
        """Return whether to end."""
        return self.asked

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Catch the signals, and restore the previous handlers at the end."""
        numbers = (*_QUEUE_SIGNALS, signal.SIGINT, signal.SIGALRM)
        before = {number: signal.signal(number, self._catch) for number in numbers}
        if self._deadline is not None:
            # An alarm costs a training step nothing; reading the clock in every step would.
            signal.setitimer(signal.ITIMER_REAL, max(self._deadline - time.monotonic(), 1e-6))
        try:
            yield self
        finally:
            if self._deadline is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._then()
        if number == signal.SIGINT and not self._launched:
            signal.signal(number, signal.default_int_handler)
