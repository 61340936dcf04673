"""The step-breakdown probe and the timed loop below it: every moment in one phase, cycles whole, ranks averaged."""

from __future__ import annotations

import math
import time

import pytest

from tests.support.small_subjects import autoencoder, images, tokens
from workflow.bench.probes import _ranks, step_breakdown
from workflow.bench.probes._models import PERIOD, VARIANTS, contenders
from workflow.bench.probes._timed_loop import PHASES, Loop, Split, StepTimes, at_period, split


def times(refreshed: bool, **ms: float) -> StepTimes:
    return StepTimes(refreshed, {**dict.fromkeys(PHASES, 0.0), **ms})


@pytest.mark.parametrize("subject", [images(), tokens(), autoencoder()], ids=lambda subject: subject.name)
@pytest.mark.parametrize("label", ["base", *VARIANTS])
def test_the_phases_of_a_step_add_up_to_its_time(subject, label):
    (contender,) = contenders(subject, 1e-4, subject.base if label == "base" else label)
    loop = Loop(subject, contender, "cpu")
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
    subject = autoencoder()
    for contender in contenders(subject, 1e-4, "mkor", "kaisa", "hylo"):
        loop = Loop(subject, contender, "cpu")
        loop.times(0)
        for _ in range(3):
            assert sum(step.refreshed for step in loop.times(PERIOD)) == 1, contender.label


def test_split_takes_refreshing_steps_apart():
    """Truth: by hand, 1 step of 10 ms and 4 of 1 ms; at a period of 10 that is (10 + 9) / 10."""
    steps = [times(True, factor=10.0), *[times(False, factor=1.0)] * 4]
    parts = split(steps, "factor")
    assert parts == Split(10.0, 1.0, 2.8)
    assert at_period(parts, 10) == pytest.approx(1.9)
    assert at_period(parts, 5) == pytest.approx(parts.ms)
    assert math.isnan(split(steps[1:], "factor").refresh_ms)


def test_ranks_are_averaged_step_by_step():
    found = step_breakdown.over_ranks([[times(True, factor=4.0)], [times(True, factor=0.0)]])
    assert found == [times(True, factor=2.0)]


def test_two_workers_share_a_batch_and_talk():
    """Every phase of every optimizer, on two ranks; only second-order ones communicate on their own account."""
    subject, repeats = images(), 2
    found = contenders(subject, 1e-4)
    ranks = _ranks.run(2, step_breakdown.cycles, subject, found, "cpu", repeats)
    rows = list(step_breakdown.rows(subject, found, ranks, repeats, "here"))
    assert {row.workers for row in rows} == {2}
    assert {(row.optimizer, row.repeat, row.phase) for row in rows} == {
        (contender.label, repeat, phase) for contender in found for repeat in range(repeats) for phase in PHASES
    }
    spoken = {row.optimizer for row in rows if row.phase == "communication" and row.ms > 0}
    assert spoken == {"mkor", "kaisa", "eva", "hylo"}
    measured = {(row.optimizer, row.inverse_update_period) for row in rows if row.estimate == "measured"}
    assert measured == {("sgd", None), ("eva", None), ("mkor", 10), ("kaisa", 10), ("hylo", 10)}
    combined = {(row.optimizer, row.inverse_update_period) for row in rows if row.estimate == "combined"}
    assert combined == {("kaisa", 50), ("hylo", 50)}
