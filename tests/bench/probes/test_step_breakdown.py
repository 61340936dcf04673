"""The step-breakdown probe and the timed loop below it: every moment in one phase, cycles whole, ranks averaged."""

from __future__ import annotations

import math
import time

import pytest
import torch

from baselines import available
from tests.support.events import Device
from tests.support.small_models import autoencoder, images, tokens
from workflow.bench.probes import _ranks, _timed_loop, step_breakdown
from workflow.bench.probes._optimizers import PERIOD, VARIANTS, optimizers
from workflow.bench.probes._timed_loop import (
    PHASES,
    CycleMeans,
    StepTimes,
    TimedLoop,
    cycle_means,
    in_groups,
    over_ranks,
)
from workflow.bench.training.device_clocks import EventClock


def times(refreshed: bool, **ms: float) -> StepTimes:
    return StepTimes(refreshed, {**dict.fromkeys(PHASES, 0.0), **ms})


@pytest.mark.parametrize("model", [images(), tokens(), autoencoder()], ids=lambda model: model.name)
@pytest.mark.parametrize("label", ["base", "eva", "hylo", *VARIANTS])
def test_the_phases_of_a_step_add_up_to_its_time(model, label):
    (optimizer,) = optimizers(model, 1e-4, [label])
    loop = TimedLoop(model, optimizer, "cpu")
    start = time.perf_counter()
    steps = [loop.step() for _ in range(3)]
    elapsed = 1000 * (time.perf_counter() - start)
    assert 0 < sum(step.total for step in steps) <= elapsed
    for phase in ("forward", "backward", "update"):
        assert all(step.ms[phase] > 0 for step in steps)
    second_order = label != "base"
    assert (steps[0].ms["precondition"] > 0) is second_order
    assert (steps[0].ms["capture"] > 0) is second_order
    assert all((step.ms["factor"] > 0) is (second_order and (label == "eva" or k == 0)) for k, step in enumerate(steps))


def test_a_cycle_holds_one_refresh():
    model = autoencoder()
    for optimizer in optimizers(model, 1e-4, ["mkor", "kaisa", "hylo"]):
        loop = TimedLoop(model, optimizer, "cpu")
        loop.times(0)
        for _ in range(3):
            assert sum(step.refreshed for step in loop.times(PERIOD)) == 1, optimizer.label


def test_means_of_refreshing_and_other_steps():
    """Truth: by hand, 1 step of 10 ms and 4 of 1 ms."""
    steps = [times(True, factor=10.0), *[times(False, factor=1.0)] * 4]
    assert cycle_means(steps, "factor") == CycleMeans(10.0, 1.0, 2.8)
    assert math.isnan(cycle_means(steps[1:], "factor").refresh_ms)


def test_ranks_are_averaged_step_by_step():
    means = over_ranks([[times(True, factor=4.0)], [times(True, factor=0.0)]])
    assert means == [times(True, factor=2.0)]


def test_a_timing_on_the_cpu_waits_for_no_gpu(monkeypatch):
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("used a GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr(torch.cuda, "Event", fail)
    model = autoencoder()
    (optimizer,) = optimizers(model, 1e-4, ["mkor"])
    for by_phase in (True, False):
        assert TimedLoop(model, optimizer, "cpu", by_phase=by_phase).step().total > 0


@pytest.mark.parametrize("by_phase", [True, False])
def test_timed_steps_are_queued_on_a_gpu_without_a_wait(monkeypatch, by_phase):
    """Truth: a device that works 5 ms in every phase. The host waits at the end, for the last event of each step."""
    device = Device()

    class Busy(EventClock):
        def switch(self, phase: str | None) -> None:
            device.launch(0.005)
            super().switch(phase)

    monkeypatch.setattr(
        _timed_loop, "clock_of", lambda _, per_layer: Busy(per_layer=per_layer, make_event=device.event)
    )
    model = autoencoder()
    (optimizer,) = optimizers(model, 1e-4, ["mkor"])
    loop = TimedLoop(model, optimizer, "cpu", by_phase=by_phase)
    assert (loop.step().ms["capture"] >= 5) is by_phase
    device.waits.clear()
    steps = loop.times(2)
    assert device.waits == [device.recorded] * 2
    own = dict.fromkeys(("forward", "backward", "update"), 5.0)
    if by_phase:
        assert all(step.ms["precondition"] >= 5 and step.ms["backward"] >= 5 for step in steps)
    else:
        assert [step.ms for step in steps] == [dict.fromkeys(PHASES, 0.0) | own] * 2


def test_groups_share_a_cpu_and_have_a_gpu_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    groups = [list(in_groups([1, 2, 3], device, lambda group: [list(group)])) for device in ("cpu", "cuda")]
    assert groups == [[[1, 2, 3]], [[1], [2], [3]]]


def test_two_workers_share_a_batch_and_communicate():
    """Every phase of every optimizer, on two ranks; only second-order methods communicate on their own account."""
    model, repeats = images(), 2
    chosen = optimizers(model, 1e-4, step_breakdown.OPTIMIZERS)
    ranks = _ranks.run(2, step_breakdown.cycles, model, chosen, "cpu", repeats)
    rows = list(step_breakdown.rows(model, chosen, ranks, "test-cpu"))
    assert {row.workers for row in rows} == {2}
    assert {(row.optimizer, row.repeat, row.phase) for row in rows} == {
        (optimizer.label, repeat, phase) for optimizer in chosen for repeat in range(repeats) for phase in PHASES
    }
    communicating = {row.optimizer for row in rows if row.phase == "communication" and row.ms > 0}
    assert communicating == {"mkor", "kaisa", "eva", "hylo"}
    measured = {(row.optimizer, row.inverse_update_period) for row in rows if row.estimate == "measured"}
    assert measured == {("sgd", None), ("eva", None), ("mkor", 10), ("kaisa", 10), ("hylo", 10)}
    combined = {(row.optimizer, row.inverse_update_period) for row in rows if row.estimate == "combined"}
    assert combined == {("kaisa", 50), ("hylo", 50)}


@pytest.mark.parametrize("label", sorted({*available()} - {*step_breakdown.OPTIMIZERS}))
def test_any_other_method_can_be_measured(label):
    model = images()
    chosen = optimizers(model, 1e-4, [label])
    rows = list(step_breakdown.rows(model, chosen, [step_breakdown.cycles(model, chosen, "cpu", 1)], "test-cpu"))
    assert [(row.optimizer, row.phase) for row in rows] == [(label, phase) for phase in PHASES]
    assert all(row.ms > 0 for row in rows if row.phase in ("forward", "backward", "update"))
