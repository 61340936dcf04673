"""The iteration-time probe: its arithmetic on steps made by hand, and a real measurement of a small model."""

from __future__ import annotations

import math

import pytest

from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.probes import iteration_time
from workflow.bench.probes._models import ProbeModel
from workflow.bench.probes._timed_loop import PHASES, StepTimes, TimedLoop
from workflow.bench.probes.iteration_time import OPTIMIZERS, PeriodSweep, summaries, sweeps


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Plan:
    return Plan.load(tier="embedded", results=str(tmp_path_factory.mktemp("results")), hardware="test-cpu")


@pytest.fixture(scope="module")
def kaisa() -> PeriodSweep:
    data = workloads.create("autoencoder", batch_size=8, hidden=[4])
    values = {"base": "sgd", "lr": 0.1, "inverse_update_period": 10, "factor_update_period": 5}
    return PeriodSweep(ProbeModel("small", data, "sgd", 0.1), "kaisa", "kaisa", {10: values})


def step(refreshed: bool, ms: float) -> StepTimes:
    return StepTimes(refreshed, dict.fromkeys(PHASES, 0.0) | {"forward": ms})


def test_long_periods_take_a_refresh_at_its_true_share():
    """Truth: 1 refresh of 110 ms in p steps, the others 10 ms, is 10 + 100 / p."""
    every = [step(True, 120.0), step(True, 100.0)]
    cycle = [step(True, 110.0), *[step(False, 12.0)] * 9]
    between = [step(False, 9.0), step(False, 11.0)]
    by_period = summaries(every, cycle, between)
    assert {period: summary.iteration_ms for period, summary in by_period.items()} == {
        1: pytest.approx(110.0),
        10: pytest.approx(21.8),
        100: pytest.approx(11.0),
        1000: pytest.approx(10.1),
    }
    assert {period: summary.estimate for period, summary in by_period.items()} == {
        1: "measured",
        10: "measured",
        100: "combined",
        1000: "combined",
    }
    assert {period: summary.steps for period, summary in by_period.items()} == {1: 2, 10: 10, 100: 3, 1000: 3}
    assert [summary.median_ms for summary in by_period.values()] == [110.0, 12.0, 10.0, 10.0]


@pytest.mark.parametrize(("period", "refreshes"), [(1, 10), (10, 1), (1000, 0)])
def test_timed_steps_hold_a_cycle_s_refreshes(kaisa, period, refreshes):
    """Ten successive steps hold one cycle, wherever they start; the first step of all is warm-up."""
    loop = TimedLoop(kaisa.model, kaisa.at(period), "cpu", by_phase=False)
    for _ in range(3):
        steps = loop.times(10)
        assert sum(step.refreshed for step in steps) == refreshes
        assert all(math.isfinite(step.total) and step.total > 0 for step in steps)


def test_a_period_outside_the_experiment_takes_the_nearest_one_s_hyperparameters(kaisa):
    by_period = {1: {"lr": 1.0, "factor_update_period": 1}, 100: {"lr": 1.0, "factor_update_period": 10}}
    sweep = PeriodSweep(kaisa.model, "kaisa", "kaisa", by_period)
    by_name = {period: sweep.at(period).hyperparameters for period in (1, 100, 1000)}
    assert {period: values["factor_update_period"] for period, values in by_name.items()} == {1: 1, 100: 10, 1000: 10}
    assert {period: values["inverse_update_period"] for period, values in by_name.items()} == {
        1: 1,
        100: 100,
        1000: 1000,
    }


def test_the_experiments_optimizers_are_timed_as_they_are_trained(plan):
    """Every optimizer of the inversion experiments with its own settings, and MKOR's released rule too."""
    by_name = {(sweep.model.name, sweep.label): sweep for sweep in sweeps(plan, OPTIMIZERS)}
    for experiment, model in iteration_time.EXPERIMENTS.items():
        assert {(model, label) for label in plan.experiments[experiment].jobs} <= set(by_name)
    run = plan.job("autoencoder_inversion", "kaisa").runs[0]
    timed = by_name["autoencoder", "kaisa"].at(run.hyperparameters["inverse_update_period"]).hyperparameters
    assert {**timed, "lr": 100 * timed["lr"]} == {**run.hyperparameters, "lr": pytest.approx(run.hyperparameters["lr"])}
    released = by_name["autoencoder", "mkor_released"].at(10)
    exact = by_name["autoencoder", "mkor"].at(10)
    assert released.hyperparameters == {**exact.hyperparameters, "update_rule": "released"}
    assert (exact.update_rule, released.update_rule) == ("sherman_morrison", "released")
    wide = by_name["wide_autoencoder", "mkor"].model.data.model(seed=0)
    narrow = by_name["autoencoder", "mkor"].model.data.model(seed=0)
    assert sum(p.numel() for p in wide.parameters()) > 4 * sum(p.numel() for p in narrow.parameters())


def test_other_methods_with_a_period_can_be_timed(plan):
    """HyLo's period has another name; Eva and first-order optimizers have none."""
    labels = {sweep.label for sweep in sweeps(plan, ["hylo", "mkor_h", "eva", "adamw"])}
    assert labels == {"kaisa", "mkor", "hylo", "mkor_h"}
    (hylo, *_) = (sweep for sweep in sweeps(plan, ["hylo"]) if sweep.label == "hylo")
    assert hylo.at(100).hyperparameters["update_period"] == 100


def test_kaisa_s_factor_updates_fit_into_a_timed_cycle(plan):
    """Else the steps between two refreshes would hold too many or too few of them."""
    for experiment in iteration_time.EXPERIMENTS:
        for run in plan.job(experiment, "kaisa").runs:
            assert iteration_time.CYCLE % (run.hyperparameters["factor_update_period"] or 1) == 0


def test_every_period_of_every_optimizer_has_a_row_in_every_repeat(kaisa):
    rows = list(iteration_time.rows([kaisa], "cpu", "test-cpu", repeats=2))
    assert [(row.repeat, row.inverse_update_period) for row in rows] == [
        (repeat, period) for repeat in range(2) for period in (1, 10, 100, 1000)
    ]
    assert {(row.workload, row.optimizer, row.hardware) for row in rows} == {("small", "kaisa", "test-cpu")}
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
        "precision",
        "hardware",
        "threads",
    )
