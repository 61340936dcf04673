"""Clocks that divide a run's time among phases, cheap enough to run in every step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import TracebackType
from typing import Final

PHASES: Final = (
    "data",
    "forward",
    "backward",
    "capture",
    "factor",
    "precondition",
    "communication",
    "update",
    "evaluation",
    "checkpoint",
)
NOT_TRAINING: Final = ("evaluation", "checkpoint")
"""Phases that training seconds, and with them the time to a target, leave out."""


class Clock:
    """Divides wall time among `PHASES`: every moment between `start` and `stop` belongs to exactly one.

    A loop calls `switch` between its phases. Code called within a phase takes its own part out with
    ``with clock("factor"):``, nested to any depth. An unknown phase raises `KeyError`. Example::

        clock.start("data")        # data
        clock.switch("update")     #         update
        with clock("factor"):      #                 factor
            ...
        ...                        #                         update
        clock.stop()

    It reads the host's time, which suits a CPU; `device_clocks.EventClock` is the clock of a GPU.

    nanoseconds: time already used by earlier slices of the run, by phase.
    """

    def __init__(self, nanoseconds: Mapping[str, int] | None = None) -> None:
        self._used = {phase: (nanoseconds or {}).get(phase, 0) for phase in PHASES}
        self._spans = {phase: _Span(self, phase) for phase in PHASES}
        self._phase: str | None = None
        self._outer: list[str | None] = []
        self.last = 0
        """The host's time at the latest change of phase, by ``perf_counter_ns``: gives a loop the time at no cost."""

    def start(self, phase: str) -> None:
        """Start the clock in ``phase``."""
        self.last = perf_counter_ns()
        self._phase = phase

    def switch(self, phase: str | None) -> None:
        """Charge the time since the last change to the current phase, and continue with ``phase``."""
        now = perf_counter_ns()
        if self._phase is not None:
            self._used[self._phase] += now - self.last
        self.last = now
        self._phase = phase

    def stop(self) -> None:
        """Stop the clock; `start` continues it."""
        self.switch(None)

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Return a context manager that charges its time to ``phase`` instead of the surrounding one."""
        return self._spans[phase]

    def enter(self, phase: str) -> None:
        """Begin a span inside the current phase. A stopped clock stays stopped."""
        self._outer.append(self._phase)
        if self._phase is not None:
            self.switch(phase)

    def leave(self) -> None:
        """End the innermost span."""
        outer = self._outer.pop()
        if self._phase is not None:
            self.switch(outer)

    @property
    def nanoseconds(self) -> dict[str, int]:
        """Time of every phase up to the latest change of phase."""
        return dict(self._measured())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of every phase up to the latest change of phase; they add up to `wall_seconds`."""
        return {phase: used / 1e9 for phase, used in self._measured().items()}

    @property
    def wall_seconds(self) -> float:
        """Seconds between start and the latest change of phase."""
        return sum(self._measured().values()) / 1e9

    @property
    def train_seconds(self) -> float:
        """`wall_seconds` without evaluations and checkpoints."""
        return sum(used for phase, used in self._measured().items() if phase not in NOT_TRAINING) / 1e9

    def _measured(self) -> Mapping[str, int]:
        """Return the nanoseconds of every phase up to the latest change of phase."""
        return self._used


class _Span(AbstractContextManager[None]):
    """A phase as a reusable context manager: its state is on the clock's stack, so one object serves every call."""

    __slots__ = ("_clock", "_phase")

    def __init__(self, clock: Clock, phase: str) -> None:
        self._clock = clock
        self._phase = phase

    def __enter__(self) -> None:
        self._clock.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.leave()
