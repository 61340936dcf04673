"""A thread on each rank that ends the whole job when one rank fails or stops responding."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
import traceback
from typing import Final, NoReturn

# torch.distributed exports it untyped.
from torch._C._distributed_c10d import Store

from workflow.bench.support.config import ConfigError
from workflow.bench.training.launcher import Place
from workflow.bench.training.record import first_line
from workflow.bench.training.stop_signals import EXIT_RESUMABLE

_BEAT: Final = 1.0


SILENCE: Final = 30.0
"""Seconds between two signs of life of a rank, and without one until it counts as lost."""


_ENDED: Final = "ended"


_LOST: Final = re.compile(r"gloo|nccl|connection (was )?(closed|reset)|socket|broken pipe|timed? ?out", re.IGNORECASE)
"""What torch's errors say where a rank waited in vain for another; they have no type of their own."""


class OneRankError(Exception):
    """A run came to its end on this rank alone, and is recorded: the others cannot go on with it."""


class Watchdog(threading.Thread):
    """Gives signs of life, looks for those of the next rank, and ends the process where the job is over.

    store: a connection of its own, since one that waits for a word is blocked.
    """

    def __init__(self, place: Place, store: Store, beat: float = _BEAT, silence: float = SILENCE) -> None:
        super().__init__(name="watch", daemon=True)
        self._place = place
        self._store = store
        self._next = (place.rank + 1) % place.size
        self._beat = beat
        self._silence = silence
        self._over = threading.Event()
        self._ending = threading.Lock()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look around every few seconds until `stop`."""
        seen, since, reached = -1, time.monotonic(), time.monotonic()
        while not self._over.wait(self._beat):
            now = time.monotonic()
            try:
                self._store.add(f"beat/{self._place.rank}", 1)
                if self._store.check([_ENDED]):
                    self._exit(int(self._store.get(_ENDED)))
                beats = self._store.add(f"beat/{self._next}", 0)
            except RuntimeError as problem:
                if now - reached > self._silence:
                    self._say(f"cannot reach the others at {self._place.host}: {first_line(problem)}")
                    self._exit(1)
                continue
            reached = now
            if beats != seen:
                seen, since = beats, now
            elif now - since > self._silence:
                self._end(1, f"rank {self._next} has not been heard of for {now - since:.0f} s: the job ends here")

    def end_all(self, problem: BaseException) -> NoReturn:
        """Say what went wrong on this rank, unless another one's end explains it, and end the job."""
        if isinstance(problem, OneRankError):
            self._end(EXIT_RESUMABLE, str(problem))
        elif isinstance(problem, ConfigError | OSError):
            self._end(1, str(problem))
        elif isinstance(problem, KeyboardInterrupt | SystemExit):
            self._end(1, "interrupted")
        elif isinstance(problem, RuntimeError) and _LOST.search(str(problem)):
            self._end(1, self._who_is_lost(problem))
        else:
            self._end(1, "".join(traceback.format_exception(problem)).rstrip())

    def _who_is_lost(self, problem: RuntimeError) -> str:
        """Say which ranks give no signs of life, after having listened for some."""
        try:
            before = self._beats()
            for _ in range(3):
                time.sleep(self._beat)
                if self._store.check([_ENDED]):
                    break
            silent = [rank for rank, beats in enumerate(self._beats()) if beats == before[rank]]
        except RuntimeError:
            return (
                f"rank 0, or its launcher, no longer answers at {self._place.host} (killed?); the same command goes on "
                "from the last checkpoint"
            )
        lost = [rank for rank in silent if rank != self._place.rank]
        if not lost:
            return f"a connection between ranks broke: {first_line(problem)}"
        named = f"rank {lost[0]} is" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} are"
        return f"{named} gone (killed?); the same command goes on from the last checkpoint"

    def _beats(self) -> list[int]:
        return [self._store.add(f"beat/{rank}", 0) for rank in range(self._place.size)]

    def _end(self, code: int, why: str) -> NoReturn:
        """End the job with ``code``; the first rank that wants to says why."""
        try:
            speaks = self._store.compare_set(_ENDED, "", str(code)) == str(code).encode() and (
                self._store.add("told", 1) == 1
            )
            code = int(self._store.get(_ENDED))
        except RuntimeError:
            speaks = True
        if speaks:
            self._say(why)
        self._exit(code)

    def _say(self, what: str) -> None:
        print(f"rank {self._place.rank} of {self._place.size} ({socket.gethostname()}): {what}", file=sys.stderr)

    def _exit(self, code: int) -> NoReturn:
        """End this process now: an orderly exit waits for collectives that never end."""
        with self._ending:  # whoever comes second, watch or trainer, has nothing to add
            sys.stdout.flush()
            sys.stderr.flush()
            if self._place.rank == 0 and not self._place.has_store:
                # The others learn of the end from the store that this process hosts.
                time.sleep(2 * self._beat)
            os._exit(code)
