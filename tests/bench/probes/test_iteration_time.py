"""The iteration-time probe: its arithmetic on steps made by hand, and a real measurement of a small model."""

from __future__ import annotations

import math

import pytest

from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.probes import iteration_time
from workflow.bench.probes.iteration_time import Contender, Loop, Step, measure, summaries


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Plan:
    return Plan.load(tier="embedded", results=str(tmp_path_factory.mktemp("results")), hardware="here")


@pytest.fixture(scope="module")
def kaisa() -> Contender:
    data = workloads.create("autoencoder", batch_size=8, hidden=[4])
    values = {"base": "sgd", "lr": 0.1, "inverse_update_period": 10, "factor_update_period": 5}
    return Contender("small", "kaisa", "kaisa", None, {10: values}, data)


def test_long_periods_take_a_refresh_at_its_true_share():
    """Truth: 1 refresh of 110 ms in p steps, the others 10 ms, is 10 + 100 / p."""
    every = [Step(True, 120.0), Step(True, 100.0)]
    cycle = [Step(True, 110.0), *[Step(False, 12.0)] * 9]
    between = [Step(False, 9.0), Step(False, 11.0)]
    found = summaries(every, cycle, between)
    assert {period: summary.iteration_ms for period, summary in found.items()} == {
        1: pytest.approx(110.0),
        10: pytest.approx(21.8),
        100: pytest.approx(11.0),
        1000: pytest.approx(10.1),
    }
    assert {period: summary.estimate for period, summary in found.items()} == {
        1: "measured",
        10: "measured",
        100: "combined",
        1000: "combined",
    }
    assert {period: summary.steps for period, summary in found.items()} == {1: 2, 10: 10, 100: 3, 1000: 3}
    assert [summary.median_ms for summary in found.values()] == [110.0, 12.0, 10.0, 10.0]


@pytest.mark.parametrize(("period", "refreshes"), [(1, 10), (10, 1), (1000, 0)])
def test_timed_slices_hold_a_cycle_s_refreshes(kaisa, period, refreshes):
    """Every slice of ten steps has what a whole cycle has, wherever it starts; the first step of all is warm-up."""
    loop = Loop(kaisa, period, "cpu")
    for _ in range(3):
        steps = loop.times(10)
        assert sum(step.refreshed for step in steps) == refreshes
        assert all(math.isfinite(step.ms) and step.ms > 0 for step in steps)


def test_a_period_outside_the_experiment_takes_the_nearest_one_s_hyperparameters(kaisa):
    by_period = {1: {"lr": 1.0, "factor_update_period": 1}, 100: {"lr": 1.0, "factor_update_period": 10}}
    contender = Contender("w", "kaisa", "kaisa", None, by_period, kaisa.data)
    found = {period: contender.hyperparameters(period) for period in (1, 100, 1000)}
    assert {period: values["factor_update_period"] for period, values in found.items()} == {1: 1, 100: 10, 1000: 10}
    assert {period: values["inverse_update_period"] for period, values in found.items()} == {1: 1, 100: 100, 1000: 1000}


def test_what_is_timed_is_what_the_experiments_train(plan):
    """Every optimizer of the inversion experiments with its own settings, and MKOR's released rule beside them."""
    found = list(iteration_time.contenders(plan))
    names = {(contender.workload, contender.label) for contender in found}
    for experiment, model in iteration_time.EXPERIMENTS.items():
        for label in plan.experiments[experiment].jobs:
            assert (model, label) in names
    by_name = {(contender.workload, contender.label): contender for contender in found}
    run = plan.job("autoencoder_inversion", "kaisa").runs[0]
    period = run.hyperparameters["inverse_update_period"]
    timed = by_name["autoencoder", "kaisa"].hyperparameters(period)
    assert {**timed, "lr": 100 * timed["lr"]} == {**run.hyperparameters, "lr": pytest.approx(run.hyperparameters["lr"])}
    assert by_name["autoencoder", "mkor_released"].hyperparameters(10)["update_rule"] == "released"
    wide = by_name["wide_autoencoder", "mkor"].data.model(seed=0)
    narrow = by_name["autoencoder", "mkor"].data.model(seed=0)
    assert sum(p.numel() for p in wide.parameters()) > 4 * sum(p.numel() for p in narrow.parameters())


def test_kaisa_s_factor_updates_fit_into_a_timed_cycle(plan):
    """Else the steps between two refreshes would hold too many or too few of them."""
    for experiment in iteration_time.EXPERIMENTS:
        for run in plan.job(experiment, "kaisa").runs:
            assert iteration_time.CYCLE % (run.hyperparameters["factor_update_period"] or 1) == 0


def test_measure_yields_every_period_of_every_contender_in_every_repeat(kaisa):
    rows = list(measure([kaisa], "cpu", "here", repeats=2))
    assert [(row.repeat, row.inverse_update_period) for row in rows] == [
        (repeat, period) for repeat in range(2) for period in (1, 10, 100, 1000)
    ]
    assert {(row.workload, row.optimizer, row.hardware) for row in rows} == {("small", "kaisa", "here")}
    assert all(0 < row.iteration_ms < 1000 for row in rows)
    assert rows[0]._fields == (
        "workload",
        "optimizer",
        "update_rule",
        "inverse_update_period",
        "repeat",
        "steps",
        "iteration_ms",
        "median_ms",
        "estimate",
        "hardware",
        "threads",
    )
