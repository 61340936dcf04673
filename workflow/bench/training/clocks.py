"""Clocks that divide a run's time among phases, cheap enough to run in every step.

A CPU is clocked by the host's time. On a GPU, changes of phase are events in the GPU's own queue of work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

# Tables and figures name the phases too, and start without torch.
if TYPE_CHECKING:
    import torch

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

PER_LAYER: Final = frozenset({"capture"})
"""Phases that begin and end twice in each layer. An event takes a device about a microsecond: with four a layer, those
of a BERT-Large would take some per cent of a step, of the methods that capture in every step most of all."""
LOOK_EVERY: Final = 256
"""Changes of phase between two looks at which events the device has passed."""
_NO_SPAN: Final = nullcontext()


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

    It reads the host's time, which suits a CPU; `EventClock` is the clock of a GPU.

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


class EventClock(Clock):
    """A `Clock` that never makes the host wait while it runs.

    A change of phase queues an event behind the work of the phase that ends. A phase has the time between the events
    at its ends, on the device: that of the work it launched, and of the host where the device had nothing to do. Events
    are read once the device has passed them; reading the times waits for the latest one.

    per_layer: whether the phases of `PER_LAYER` are clocked. Otherwise their time is part of the phases around them.
    make_event: makes an event as ``torch.cuda.Event(enable_timing=True)`` is one, a mark in the queue of the current
        device; by default one of a GPU.
    """

    def __init__(
        self,
        nanoseconds: Mapping[str, int] | None = None,
        *,
        per_layer: bool = False,
        make_event: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(nanoseconds)
        if make_event is None:
            from torch.cuda import Event

            make_event = partial(Event, enable_timing=True)
        self._per_layer = per_layer
        self._make_event = make_event
        self._spare: list[Any] = []
        # The events that were not read yet, each with the phase that began there: None where the clock was stopped.
        self._marks: deque[tuple[Any, str | None]] = deque()
        self._look_at = LOOK_EVERY

    @override
    def __call__(self, phase: str) -> AbstractContextManager[None]:
        if phase in PER_LAYER and not self._per_layer:
            return _NO_SPAN
        return super().__call__(phase)

    @override
    def start(self, phase: str) -> None:
        self.switch(phase)

    @override
    def switch(self, phase: str | None) -> None:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        self._marks.append((event, phase))
        self.last = perf_counter_ns()
        self._phase = phase
        if len(self._marks) >= self._look_at:
            self._read_passed()
            self._look_at = len(self._marks) + LOOK_EVERY

    def _read_passed(self) -> None:
        """Charge the time between the events that the device has passed."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0].query():
            event, phase = marks.popleft()
            if phase is not None:
                self._used[phase] += round(event.elapsed_time(marks[0][0]) * 1e6)
            self._spare.append(event)

    @override
    def _measured(self) -> Mapping[str, int]:
        if self._marks:
            self._marks[-1][0].synchronize()
            self._read_passed()
        return self._used


def clock_of(device: torch.device, nanoseconds: Mapping[str, int] | None = None, *, per_layer: bool = False) -> Clock:
    """Return a clock for training on a device.

    nanoseconds: time used by earlier slices of the run, by phase.
    per_layer: as for `EventClock`; a `Clock` always divides these phases, which costs a CPU nothing that counts.
    """
    return EventClock(nanoseconds, per_layer=per_layer) if device.type == "cuda" else Clock(nanoseconds)
