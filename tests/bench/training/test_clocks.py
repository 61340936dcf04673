"""Every moment of a run belongs to one phase, of the host's time or of a device's, for which the host does not wait."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tests.support.calls import counted
from tests.support.events import Device
from workflow.bench.training import clocks
from workflow.bench.training.clocks import LOOK_EVERY, PHASES, Clock, EventClock, clock_of


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
    clock = Clock(nanoseconds={"data": 10**9})  # used by an earlier slice of the run
    with clock("capture"):
        time.passes(100)  # before the start: not counted, even in a span
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
    used = {"data": 2, "update": 8, "factor": 8, "communication": 4, "evaluation": 7, "checkpoint": 8}
    assert clock.seconds == {phase: used.get(phase, 0) for phase in PHASES}
    assert clock.wall_seconds == 37
    assert clock.train_seconds == 22


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


def test_an_unknown_phase_is_an_error():
    with pytest.raises(KeyError):
        Clock()("forwards")


def test_measuring_a_step_costs_a_few_calls():
    """A step of the autoencoder takes 700 microseconds, and 160 calls 10 to 30."""
    clock = Clock()
    clock.start("data")
    with counted() as calls:
        for phase in ("data", "forward", "backward", "update"):
            clock.switch(phase)
        for _ in range(12):
            with clock("capture"):
                pass
    assert calls() < 160


def test_a_phase_has_the_device_s_time_and_the_host_does_not_wait():
    """Truth: a timeline by hand. The device is behind the host until the span; from ``evaluation`` on it waits."""
    device = Device()
    clock = EventClock({"forward": 10**9}, per_layer=True, make_event=device.event)
    assert clock.wall_seconds == 1  # of an earlier slice: no event is read
    device.works_on_host(100)  # before the start: not counted
    clock.start("data")
    device.works_on_host(2)  # nothing is queued: the host's time
    clock.switch("forward")
    device.launch(10)
    device.works_on_host(1)
    clock.switch("backward")
    device.launch(20)
    with clock("capture"):
        device.launch(3)
        device.works_on_host(1)
    device.launch(4)
    clock.switch("data")
    device.works_on_host(5)  # hidden behind the 37 seconds of work that the device has
    clock.switch("forward")
    device.launch(1)
    clock.switch("evaluation")
    assert (device.waits, device.host) == ([], 109)
    used = {"data": 2, "forward": 12, "backward": 24, "capture": 3}
    assert clock.seconds == {phase: used.get(phase, 0) for phase in PHASES}
    assert clock.train_seconds == clock.wall_seconds == 41
    assert device.host == 140, "reading the times waits for the latest event"
    device.works_on_host(6)
    clock.stop()
    device.works_on_host(100)  # after the stop: not counted
    clock.start("update")
    device.launch(7)
    clock.stop()
    assert clock.nanoseconds["evaluation"] == 6_000_000_000
    assert clock.nanoseconds["update"] == 7_000_000_000
    assert (clock.wall_seconds, clock.train_seconds) == (54, 48)


def test_events_are_read_and_used_again_while_the_clock_runs():
    """A run may have a million changes of phase between two evaluations."""
    device = Device()
    clock = EventClock(make_event=device.event)
    clock.start("data")
    rounds = 20 * LOOK_EVERY
    for _ in range(rounds):
        device.launch(0.25)
        clock.switch("forward")
        device.works_on_host(0.25)
        clock.switch("data")
    assert device.waits == []
    assert device.made <= LOOK_EVERY + 2
    assert clock.seconds["data"] + clock.seconds["forward"] == pytest.approx(0.25 * rounds)


def test_a_device_far_behind_is_looked_at_seldom():
    """Truth: a device that passes nothing. Each look asks for one event."""
    device = Device()
    clock = EventClock(make_event=device.event)
    clock.start("data")
    device.launch(1000)
    for _ in range(5 * LOOK_EVERY):
        clock.switch("forward")
    assert device.queries <= 5
    clock.stop()
    assert clock.seconds["data"] == 1000


def test_training_queues_no_events_around_each_layer():
    """The time of capture is part of the passes; other spans are clocked."""
    device = Device()
    clock = EventClock(make_event=device.event)
    clock.start("forward")
    for _ in range(146):
        with clock("capture"):
            device.launch(1)
    with clock("factor"):
        device.launch(2)
    clock.stop()
    assert device.recorded == 4
    assert (clock.seconds["forward"], clock.seconds["capture"], clock.seconds["factor"]) == (146, 0, 2)


def test_a_gpu_has_a_clock_of_its_own():
    assert type(clock_of(torch.device("cpu"))) is Clock
    assert type(clock_of(torch.device("cuda", 0))) is EventClock
    for per_layer in (False, True):
        span = clock_of(torch.device("cuda", 0), per_layer=per_layer)("capture")
        assert isinstance(span, nullcontext) is not per_layer
