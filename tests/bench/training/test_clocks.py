"""Every moment of a run belongs to one phase."""

from __future__ import annotations

from time import perf_counter_ns

import pytest

from workflow.bench.training import clocks
from workflow.bench.training.clocks import PHASES, Clock


class Time:
    """A clock that tests set, in nanoseconds."""

    now = 0

    def __call__(self) -> int:
        return self.now

    def passes(self, seconds: int) -> None:
        self.now += seconds * 10**9


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    stand_in = Time()
    monkeypatch.setattr(clocks, "perf_counter_ns", stand_in)
    return stand_in


def test_nested_phases_are_exclusive(time: Time):
    """Truth: seconds counted by hand, with a span inside a span inside a part of the loop."""
    clock = Clock()
    time.passes(100)  # before the start: not counted
    clock.start("data")
    time.passes(1)
    clock.switch("update")
    time.passes(2)
    with clock("factor"):
        time.passes(3)
        with clock("communication"):
            time.passes(4)
        time.passes(5)
    time.passes(6)
    clock.switch("evaluation")
    time.passes(7)
    clock.switch("checkpoint")
    time.passes(8)
    clock.stop()
    time.passes(100)  # after the stop: not counted
    used = {"data": 1, "update": 8, "factor": 8, "communication": 4, "evaluation": 7, "checkpoint": 8}
    assert clock.seconds == {phase: used.get(phase, 0) for phase in PHASES}
    assert clock.wall_seconds == 36
    assert clock.train_seconds == 21


def test_a_span_of_a_stopped_clock_counts_nothing(time: Time):
    clock = Clock()
    with clock("capture"):
        time.passes(1)
    assert clock.wall_seconds == 0


def test_an_error_inside_a_span_returns_to_the_surrounding_phase(time: Time):
    clock = Clock()
    clock.start("forward")

    def fail() -> None:
        with clock("capture"):
            time.passes(1)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    time.passes(2)
    clock.stop()
    assert (clock.seconds["capture"], clock.seconds["forward"]) == (1, 2)


def test_a_resumed_clock_continues_from_the_time_used(time: Time):
    clock = Clock()
    clock.start("forward")
    time.passes(2)
    clock.stop()
    later = Clock(nanoseconds=clock.nanoseconds)
    time.passes(50)
    later.start("forward")
    time.passes(3)
    later.stop()
    assert later.seconds["forward"] == 5


def test_an_unknown_phase_is_an_error():
    with pytest.raises(KeyError):
        Clock()("forwards")


def test_measuring_a_step_costs_a_few_microseconds():
    """A step of the autoencoder takes 700 microseconds: its four switches and twelve spans may cost 3 % of that."""
    clock = Clock()
    clock.start("data")
    best = float("inf")
    for _ in range(200):
        before = perf_counter_ns()
        for phase in ("data", "forward", "backward", "update"):
            clock.switch(phase)
        for _ in range(12):
            with clock("capture"):
                pass
        best = min(best, perf_counter_ns() - before)
    assert best < 21_000
