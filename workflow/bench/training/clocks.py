"""Where a run's time goes: exclusive seconds by phase, cheap enough to run in every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
#: Phases that are not training: time to target leaves them out.
APART: Final = ("evaluation", "checkpoint")


class Clock:
    """Splits wall time over `PHASES`; every moment between `start` and `stop` belongs to exactly one.

    A loop calls `switch` between its parts; code called inside a part takes out its own share with
    ``with clock("factor"):``, as deep as it likes.  An unknown phase is a KeyError.

    synchronize: waits for the device, so that a phase pays for the work that it launched; None on a CPU.
    nanoseconds: what an interrupted run had used before.
    """

    def __init__(
        self,
        synchronize: Callable[[], None] | None = None,
        nanoseconds: Mapping[str, int] | None = None,
    ) -> None:
        self._synchronize = synchronize
        self._used = {phase: (nanoseconds or {}).get(phase, 0) for phase in PHASES}
        self._spans = {phase: _Span(self, phase) for phase in PHASES}
        self._phase: str | None = None
        self._outer: list[str | None] = []
        self.last = 0
        """The latest reading, in nanoseconds of ``perf_counter_ns``: the time of day in a loop, for nothing."""

    def start(self, phase: str) -> None:
        """Start the clock in ``phase``."""
        if self._synchronize:
            self._synchronize()
        self.last = perf_counter_ns()
        self._phase = phase

    def switch(self, phase: str | None) -> None:
        """Charge the time since the last call to the phase that ran, and go on with ``phase``."""
        if self._synchronize:
            self._synchronize()
        now = perf_counter_ns()
        if self._phase is not None:
            self._used[self._phase] += now - self.last
        self.last = now
        self._phase = phase

    def stop(self) -> None:
        """Stop the clock; `start` lets it go on."""
        self.switch(None)

    def __call__(self, phase: str) -> _Span:
        """Return a context that charges its time to ``phase`` and not to what is around it."""
        return self._spans[phase]

    def enter(self, phase: str) -> None:
        """Begin a span inside the current phase.  A stopped clock stays stopped in it."""
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
        """The time of every phase up to the latest reading."""
        return dict(self._used)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of every phase up to the latest reading; they add up to `wall_seconds`."""
        return {phase: used / 1e9 for phase, used in self._used.items()}

    @property
    def wall_seconds(self) -> float:
        """Seconds between start and the latest reading."""
        return sum(self._used.values()) / 1e9

    @property
    def train_seconds(self) -> float:
        """`wall_seconds` without evaluations and checkpoints."""
        return sum(used for phase, used in self._used.items() if phase not in APART) / 1e9


class _Span:
    """A phase as a reusable context: its state is on the clock's stack, so that one object serves every call."""

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
