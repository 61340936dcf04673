"""A chunk of `benchmarks.gpu` as it is measured: its time, its parts, and what it has to leave out."""

from __future__ import annotations

import gc
import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

import torch

from workflow.bench.plan import Plan, Tier

logger = logging.getLogger(__name__)

TIER: Final = "single_gpu"
CHUNK_SECONDS: Final = 525.0
"""A chunk is cut off after this time, so that with its start and end it stays below nine minutes."""


class OutOfTimeError(Exception):
    """The chunk's time is over."""


@dataclass
class Session:
    """A chunk's measurement: where it computes and writes, and what it had to leave out."""

    out: Path
    device: torch.device
    quick: bool
    hardware: str
    seconds: float = CHUNK_SECONDS
    """The time of the chunk."""
    is_first: bool = False
    """Whether this is a part of ``--first``."""
    left_out: list[str] = field(default_factory=list)
    failed: bool = False

    def note(self, what: str, reason: str) -> None:
        """Note and print that something is left out."""
        self.left_out.append(f"{what}: {reason}")
        say(f"  {what} is left out: {reason}")

    @property
    def plan(self) -> Plan:
        """A plan without experiments: the probes measure the models that they are given."""
        tier = Tier(TIER, "true model sizes on one GPU", self.device.type, torch.get_num_threads(), 10.0, "float32")
        return Plan(tier, self.hardware, self.out, {}, ())


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


Result = TypeVar("Result")


def part(session: Session, what: str, measure: Callable[[], Iterable[Result]]) -> Iterator[Result]:
    """Yield what is measured in one part of a chunk; where it cannot be measured, note why.

    A failure that nothing explains is printed with its traceback; the command's exit status is then 1.
    """
    say(f"  {what}")
    try:
        yield from measure()
    except OutOfTimeError:
        raise
    except ModuleNotFoundError as error:
        session.note(what, f"the package {error.name} is not installed")
    except torch.OutOfMemoryError:
        session.note(what, "out of memory")
    except Exception as error:
        logger.exception("%s failed", what)
        session.note(what, f"failed: {(str(error).strip() or repr(error)).splitlines()[-1]}")
        session.failed = True
    if session.device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `OutOfTimeError` in the main thread once the time is over, or when the process is told to end."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
