"""The clock of a GPU, whose changes of phase are events in the GPU's own queue of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from typing import Any, Final, Protocol

import torch
from typing_extensions import override

from workflow.bench.training.clocks import Clock

PER_LAYER: Final = frozenset({"capture"})
"""Phases that begin and end twice in each layer. An event takes a device about a microsecond: with four a layer, those
of a BERT-Large would take some per cent of a step, of the methods that capture in every step most of all."""
LOOK_EVERY: Final = 256
"""Changes of phase between two looks at which events the device has passed."""


class Event(Protocol):
    """A mark in a device's queue of work, as ``torch.cuda.Event(enable_timing=True)`` is one."""

    def record(self) -> None:
        """Put the mark behind the work that is queued now."""

    def query(self) -> bool:
        """Return whether the device has passed the mark."""

    def synchronize(self) -> None:
        """Wait until the device has passed the mark."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds between this mark and a later one, both passed."""


class EventClock(Clock):
    """A `Clock` that never makes the host wait while it runs.

    A change of phase queues an event behind the work of the phase that ends. A phase has the time between the events
    at its ends, on the device: that of the work it launched, and of the host where the device had nothing to do. Events
    are read once the device has passed them; reading the times waits for the latest one.

    per_layer: whether the phases of `PER_LAYER` are clocked. Otherwise their time is part of the phases around them.
    make_event: makes an event of the current device.
    """

    def __init__(
        self,
        nanoseconds: Mapping[str, int] | None = None,
        *,
        per_layer: bool = False,
        make_event: Callable[[], Event] | None = None,
    ) -> None:
        super().__init__(nanoseconds)
        self._per_layer = per_layer
        self._make_event = make_event or _timing_event
        self._spare: list[Event] = []
        # The events that were not read yet, each with the phase that began there: None where the clock was stopped.
        self._marks: deque[tuple[Event, str | None]] = deque()
        self._look_at = LOOK_EVERY

    @override
    def __call__(self, phase: str) -> AbstractContextManager[None]:
        if phase in PER_LAYER and not self._per_layer:
            return _NO_SPAN
        return super().__call__(phase)

    @override
    def start(self, phase: str) -> None:
        self._mark(phase)

    @override
    def switch(self, phase: str | None) -> None:
        self._mark(phase)

    def _mark(self, phase: str | None) -> None:
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


_NO_SPAN: Final = nullcontext()


def _timing_event() -> Event:
    return torch.cuda.Event(enable_timing=True)


def clock_of(device: torch.device, nanoseconds: Mapping[str, int] | None = None, *, per_layer: bool = False) -> Clock:
    """Return a clock for training on a device.

    nanoseconds: time used by earlier slices of the run, by phase.
    per_layer: as for `EventClock`; a `Clock` always divides these phases, which costs a CPU nothing that counts.
    """
    return EventClock(nanoseconds, per_layer=per_layer) if device.type == "cuda" else Clock(nanoseconds)
