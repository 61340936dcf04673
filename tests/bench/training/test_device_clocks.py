"""The clock of a GPU: a phase has the device's time, and the host waits only where the times are read."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tests.support.events import Device
from workflow.bench.training.clocks import PHASES, Clock
from workflow.bench.training.device_clocks import LOOK_EVERY, EventClock, clock_of


def test_a_phase_has_the_device_s_time_and_the_host_does_not_wait():
    """Truth: a timeline by hand. The device is behind the host until the span; from ``evaluation`` on it waits."""
    device = Device()
    clock = EventClock(per_layer=True, make_event=device.event)
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
    used = {"data": 2, "forward": 11, "backward": 24, "capture": 3}
    assert clock.seconds == {phase: used.get(phase, 0) for phase in PHASES}
    assert clock.train_seconds == clock.wall_seconds == 40
    assert device.host == 140, "reading the times waits for the latest event"
    device.works_on_host(6)
    clock.stop()
    device.works_on_host(100)  # after the stop: not counted
    clock.start("update")
    device.launch(7)
    clock.stop()
    assert clock.nanoseconds["evaluation"] == 6_000_000_000
    assert clock.nanoseconds["update"] == 7_000_000_000
    assert (clock.wall_seconds, clock.train_seconds) == (53, 47)


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


def test_a_resumed_clock_continues_from_the_time_used():
    device = Device()
    clock = EventClock({"forward": 2_000_000_000}, make_event=device.event)
    clock.start("forward")
    device.launch(3)
    clock.stop()
    assert clock.seconds["forward"] == 5


def test_a_clock_that_never_ran_reads_no_event():
    assert EventClock(make_event=Device().event).wall_seconds == 0


def test_a_gpu_has_a_clock_of_its_own():
    assert type(clock_of(torch.device("cpu"))) is Clock
    assert type(clock_of(torch.device("cuda", 0))) is EventClock
    for per_layer in (False, True):
        span = clock_of(torch.device("cuda", 0), per_layer=per_layer)("capture")
        assert isinstance(span, nullcontext) is not per_layer
