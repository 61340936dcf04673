"""A thread on each rank that ends the whole job when one rank fails or stops responding.

Ranks in a collective wait for each other without a way to be interrupted. So each rank's thread increments a counter,
its heartbeat, in the job's store every second, and watches that of the next rank (the last one watches rank 0). The
first rank that finds a reason to end the job writes the exit code to the store and prints the reason; the others read
the code there and exit with it, silently.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
import traceback
from typing import Final, NoReturn

from torch._C._distributed_c10d import Store  # torch.distributed exports it without types
from typing_extensions import override

from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import first_line
from workflow.bench.training.launcher import LaunchedRank
from workflow.bench.training.stop_signals import EXIT_RESUMABLE, leave_mark

_BEAT_SECONDS: Final = 1.0
"""Seconds between two heartbeats of a rank."""

SILENCE_SECONDS: Final = 30.0
"""Seconds without a heartbeat after which a rank counts as lost."""

_EXIT_CODE_KEY: Final = "ended"
"""The key under which the store holds the exit code of the job, once it must end."""

_CONNECTION_ERROR: Final = re.compile(
    r"gloo|nccl|connection (was )?(closed|reset)|socket|broken pipe|timed? ?out", re.IGNORECASE
)
"""Matches torch's errors about an unreachable rank; they have no type of their own."""


class OneRankError(Exception):
    """A run ended on this rank alone, and is recorded; the other ranks cannot continue it."""


class Watchdog(threading.Thread):
    """Sends heartbeats, watches those of the next rank, and exits the process when the job must end.

    store: a connection for this thread alone, because a connection that waits for a key is blocked.
    """

    def __init__(
        self, place: LaunchedRank, store: Store, beat: float = _BEAT_SECONDS, silence: float = SILENCE_SECONDS
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._place = place
        self._store = store
        self._next = (place.rank + 1) % place.size
        self._beat = beat
        self._silence = silence
        self._stopped = threading.Event()
        self._exiting = threading.Lock()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()

    @override
    def run(self) -> None:
        beats, changed_at, reached_at = -1, time.monotonic(), time.monotonic()
        while not self._stopped.wait(self._beat):
            now = time.monotonic()
            try:
                self._store.add(f"beat/{self._place.rank}", 1)
                if self._store.check([_EXIT_CODE_KEY]):
                    self._exit(int(self._store.get(_EXIT_CODE_KEY)))
                latest = self._store.add(f"beat/{self._next}", 0)  # adding 0 reads the counter without waiting for it
            except RuntimeError as problem:
                if now - reached_at > self._silence:
                    self._print(f"cannot reach the others at {self._place.host}: {first_line(problem)}")
                    self._exit(1)
                continue
            reached_at = now
            if latest != beats:
                beats, changed_at = latest, now
            elif now - changed_at > self._silence:
                self._end(1, f"no heartbeat from rank {self._next} for {now - changed_at:.0f} s; the job ends")

    def end_all(self, problem: BaseException) -> NoReturn:
        """End the job because of an exception on this rank, with one message from one rank."""
        if isinstance(problem, OneRankError):
            self._end(EXIT_RESUMABLE, str(problem))
        elif isinstance(problem, ConfigError | OSError):
            self._end(1, str(problem))
        elif isinstance(problem, KeyboardInterrupt | SystemExit):
            self._end(1, "interrupted")
        elif isinstance(problem, RuntimeError) and _CONNECTION_ERROR.search(str(problem)):
            self._end(1, self._describe_lost(problem))
        else:
            self._end(1, "".join(traceback.format_exception(problem)).rstrip())

    def _describe_lost(self, problem: RuntimeError) -> str:
        """Wait for a few heartbeats, and return a message that names the ranks that sent none."""
        try:
            before = self._heartbeats()
            for _ in range(3):
                time.sleep(self._beat)
                if self._store.check([_EXIT_CODE_KEY]):
                    break
            silent = [rank for rank, beats in enumerate(self._heartbeats()) if beats == before[rank]]
        except RuntimeError:
            return (
                f"rank 0, or its launcher, no longer answers at {self._place.host} (killed?); the same command resumes "
                "from the last checkpoint"
            )
        lost = [rank for rank in silent if rank != self._place.rank]
        if not lost:
            return f"a connection between ranks broke: {first_line(problem)}"
        names = f"rank {lost[0]} is" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} are"
        return f"{names} gone (killed?); the same command resumes from the last checkpoint"

    def _heartbeats(self) -> list[int]:
        return [self._store.add(f"beat/{rank}", 0) for rank in range(self._place.size)]

    def _end(self, code: int, reason: str) -> NoReturn:
        """End the job with ``code``; only the first rank to call this prints its reason."""
        try:
            # compare_set writes the key only if no rank has, and returns its value. Two ranks may want the same code,
            # so the counter decides which one prints.
            is_written = self._store.compare_set(_EXIT_CODE_KEY, "", str(code)) == str(code).encode()
            prints = is_written and self._store.add("printed", 1) == 1
            code = int(self._store.get(_EXIT_CODE_KEY))
        except RuntimeError:
            prints = True
        if prints:
            if code == EXIT_RESUMABLE:
                leave_mark()
            self._print(reason)
        self._exit(code)

    def _print(self, message: str) -> None:
        print(f"rank {self._place.rank} of {self._place.size} ({socket.gethostname()}): {message}", file=sys.stderr)

    def _exit(self, code: int) -> NoReturn:
        """Exit the process at once: an orderly exit would wait for collectives that never end."""
        with self._exiting:  # never released: a second thread of this process waits here until the exit
            sys.stdout.flush()
            sys.stderr.flush()
            if self._place.rank == 0 and not self._place.has_store:
                # This process hosts the store, in which the other ranks look for the exit code at each heartbeat.
                time.sleep(2 * self._beat)
            os._exit(code)
