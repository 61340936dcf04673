"""Times to targets with censored runs on hand-made numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import (
    TargetRatio,
    budgets,
    by_configuration,
    estimate_times,
    reaching,
    target_ratio,
    to_target,
    too_short,
)
from workflow.bench.analysis.wording import estimated
from workflow.bench.plan.targets import Target

INF = math.inf
RATES = (0.1, 0.2)


def runs(*, studies: bool, periods: tuple[int, ...] = (5, 10)) -> pd.DataFrame:
    """Return runs of four seeds at each period, whose rate two studies chose in turn."""
    shared = {"experiment": "one", "workload": "autoencoder", "dataset": "digits", "optimizer": "mkor", "steps": 10}
    shared |= {"workload_parameters": {"batch_size": 8}}
    return pd.DataFrame(
        shared
        | {"target": Target("validation", "loss", "below", 0.1), "seed": seed, "study": seed % 2 if studies else None}
        | {"hyperparameters": {"lr": RATES[seed % 2], "inverse_update_period": period, "momentum": 0.9}}
        for period in periods
        for seed in range(4)
    )


def test_the_seeds_of_all_studies_are_one_configuration_which_lists_their_values():
    found = by_configuration(runs(studies=True))
    expected = [{"lr": RATES, "inverse_update_period": period, "momentum": 0.9} for period in (5, 10)]
    assert [configuration.hyperparameters for configuration in found] == expected
    assert [configuration.period for configuration in found] == [5, 10]
    assert [rows["seed"].tolist() for rows in found.values()] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("periods", [(5,), (5, 10)])
def test_untuned_values_are_configurations_of_their_own(periods: tuple[int, ...]):
    found = by_configuration(runs(studies=False, periods=periods))
    assert sorted(configuration.hyperparameters["lr"] for configuration in found) == sorted(RATES * len(periods))
    assert [len(rows) for rows in found.values()] == [2] * 2 * len(periods)


def test_values_that_no_study_changed_are_not_listed():
    same = runs(studies=True).assign(hyperparameters=[{"lr": 0.1}] * 8)
    (configuration,) = by_configuration(same)
    assert configuration.hyperparameters == {"lr": 0.1}


RUNS = pd.DataFrame(
    {
        "seed": [0, 1, 2, 3, 4],
        "status": ["finished", "finished", "diverged", "skipped", "out_of_memory"],
        "crossing_step": [30.0, math.nan, math.nan, math.nan, 20.0],
        "crossing_seconds": [1.5, math.nan, math.nan, math.nan, 0.8],
    }
)


def test_to_target_counts_every_run_that_ended_and_no_other():
    """A run that reached it before it broke down reached it; one that was never trained says nothing."""
    assert to_target(RUNS, "steps") == {0: 30.0, 1: INF, 2: INF, 4: 20.0}
    assert to_target(RUNS, "seconds") == {0: 1.5, 1: INF, 2: INF, 4: 0.8}
    assert to_target(RUNS[RUNS["status"] == "skipped"], "steps") == {}


@pytest.mark.parametrize(
    ("took", "value", "low", "high", "reached"),
    [
        # Two of seven are too slow: the median is known, its upper bound is not.
        ([10, 20, 30, 40, 50, INF, INF], 40, 10 + 10 * 0.7333, INF, 5),
        ([10, 20, 30, INF, INF, INF, INF], INF, 10 + 10 * 0.7333, INF, 3),  # most do not get there, nor does the median
        ([INF] * 6, INF, INF, INF, 0),
        ([10, 20, INF], 20, math.nan, math.nan, 2),  # too few seeds for an interval with a censored run
        # Student's t of the logarithms, two degrees of freedom; their deviation is that of 1, 2 and 4.
        ([10, 20, 40], 20, 20 * 2**-2.4841, 20 * 2**2.4841, 3),
        ([34, 87], 54.388, 0.13905, 21273, 2),  # a mean has [-277, 398] here, which no number of iterations can be
    ],
)
def test_reaching_a_target_keeps_the_censored_runs_in(took, value, low, high, reached):
    summary = reaching(dict(enumerate(map(float, took))))
    # Of seven values, a level of 95 % lies .7333 of the way from the first to the second order statistic.
    assert (summary.took.value, summary.took.low, summary.took.high) == pytest.approx(
        (value, low, high), rel=1e-3, nan_ok=True
    )
    assert (summary.reached, summary.censored, summary.took.n) == (reached, len(took) - reached, len(took))


def taking(took: Mapping[int, float], studies: Mapping[int, float] | None = None, budget: int = 10**9) -> pd.DataFrame:
    """A label's runs that need these iterations to the target."""
    steps = [math.nan if math.isinf(value) else value for value in took.values()]
    rows = pd.DataFrame({"seed": [*took], "crossing_step": steps, "steps_done": budget})
    rows["study"] = [(studies or {}).get(seed, math.nan) for seed in took]
    rows["hyperparameters"] = pd.Series([{} for _ in took], rows.index, object)
    shared = {"experiment": "one", "workload": "autoencoder", "optimizer": "sgd", "switch_step": None}
    return rows.assign(status="finished", **shared)


def test_a_ratio_to_runs_that_never_get_there():
    assert reaching({}) is None
    assert target_ratio(taking({}), taking({0: 1.0})) is None
    assert target_ratio(taking({1: 1.0}), taking({0: 1.0})) == TargetRatio(None, 0, 0, 0)
    assert target_ratio(taking({0: 0.0, 1: INF, 2: 4.0}), taking({0: 0.0, 1: INF, 2: 2.0})).undecided == 2
    reference = {0: 10.0, 1: INF, 2: INF, 3: INF, 4: 12.0, 5: 14.0, 6: 16.0, 7: 18.0}
    contender = dict.fromkeys(range(8), 10.0) | {2: INF}
    result = target_ratio(taking(reference), taking(contender))
    assert (result.undecided, result.seeds) == (1, 8)  # seed 2, on which neither got there
    assert result.ratio.n == 7
    assert result.ratio.value == 1.6
    assert result.ratio.high == INF  # seeds 1 and 3, on which the reference alone did not
    assert target_ratio(taking({0: INF, 1: INF}), taking({0: INF, 1: INF})) == TargetRatio(None, 0, 2, 2)


def test_a_run_that_ended_before_the_other_was_there_is_too_short_to_tell():
    """Truth: three runs of 50 steps and 5 s that never get there, beside one that needs 40, 60 and 60 steps."""
    statuses = ["finished", "finished", "diverged"]
    runs = pd.DataFrame({"seed": range(3), "status": statuses, "steps_done": 50, "train_seconds": 5.0})
    took, other = dict.fromkeys(range(3), INF), {0: 40.0, 1: 60.0, 2: 60.0}
    assert too_short(took, other, budgets(runs)) == [1]  # the one that diverged would never have got there
    faster = {seed: steps / 10 - 2 for seed, steps in other.items()}
    assert too_short(took, faster, budgets(runs, "seconds")) == []
    assert too_short(took, dict.fromkeys(range(3), INF), budgets(runs)) == []
    longer = pd.concat([runs, runs.assign(steps_done=80)])  # another budget of the same label
    assert too_short(took, other, budgets(longer)) == []


@given(st.dictionaries(st.integers(0, 9), st.one_of(st.floats(1, 1e6), st.just(INF)), min_size=1, max_size=10))
def test_nobody_is_faster_than_himself(took):
    """Truth: the ratio of a value to itself; censored on both sides, it says nothing."""
    result = target_ratio(taking(took), taking(took))
    finite = sum(map(math.isfinite, took.values()))
    assert result.undecided == len(took) - finite
    if finite:
        assert (result.ratio.value, result.ratio.n) == (pytest.approx(1.0), finite)
    else:
        assert result.ratio is None


@given(st.lists(st.floats(1, 1e6), min_size=6, max_size=10), st.integers(1, 3))
def test_a_censored_run_never_makes_a_label_look_faster(took, spoilt):
    """Truth: a run that took longer than all others can only move the median and its interval up."""
    whole = reaching(dict(enumerate(took)))
    cut = reaching(dict(enumerate([INF] * spoilt + took[spoilt:])))
    assert cut.took.value >= whole.took.value
    assert cut.took.low >= whole.took.low
    assert cut.took.high >= whole.took.high


def test_intervals_are_those_of_the_tuning_studies_where_there_are_several():
    """Truth: eight runs of four studies are the four means; a study with a run that misses the target has none."""
    took = dict(enumerate([10.0, 20.0, 30.0, 40.0, 12.0, 24.0, 34.0, 46.0]))
    studies = {seed: float(seed % 4) for seed in took}
    summary = reaching(took, studies)
    mean = np.exp(np.log([11, 22, 32, 43]).mean())
    assert (summary.took.n, summary.runs, summary.reached) == (4, 8, 8)
    assert summary.took.value == pytest.approx(mean)
    missed = reaching(took | {0: INF}, studies)
    # Of fewer than six studies the median has no interval, and is that of the runs.
    assert (missed.took.value, missed.censored, missed.took.interval_method) == (32, 1, "none")
    reference = {seed: 2 * steps for seed, steps in took.items()}
    ratio = target_ratio(taking(reference, studies), taking(took, studies)).ratio
    assert (ratio.value, ratio.n) == (pytest.approx(2), 4)
    # What the mean of a study is in which each side misses the target once is unknown, so that there is no interval.
    undecided = target_ratio(taking(reference | {1: INF}, studies), taking(took | {5: INF}, studies)).ratio
    assert (undecided.n, undecided.has_interval) == (4, False)


@given(st.lists(st.floats(1e-3, 1e6) | st.just(INF), min_size=1, max_size=9))
def test_no_interval_of_a_time_reaches_below_zero(took):
    found = estimate_times(took)
    assert found.value > 0
    assert not found.has_interval or 0 <= found.low <= found.value <= found.high


def test_few_runs_are_listed_in_place_of_their_interval():
    """Of two or three the interval says less than they do; a cell without an interval lists none."""
    assert estimated(estimate_times([34.0, 87.0]), [34.0, 87.0]) == "54.4 (34, 87)"
    assert estimated(estimate_times([4.0, 5.0, 6.0, 7.0]), [4.0, 5.0, 6.0, 7.0]).startswith("5.38 [")
    assert estimated(estimate_times([10.0, 20.0, INF]), [10.0, 20.0, INF]) == "20"
    assert estimated(estimate_times([34.0]), [34.0]) == "34"


def test_a_run_that_diverged_did_not_reach_its_target():
    runs = RUNS.assign(crossing_step=[30.0, math.nan, 10.0, math.nan, 20.0])
    assert to_target(runs, "steps")[2] == INF


def test_the_ratio_of_two_labels_is_over_studies_and_none_where_a_run_is_too_short():
    """Truth: two studies of two seeds, at half of the steps; without step times there is no ratio of seconds."""
    steps, studies = dict(enumerate([20.0, 22.0, 40.0, 44.0])), {0: 0.0, 1: 0.0, 2: 1.0, 3: 1.0}
    theirs = taking(steps, studies)
    ours = taking({seed: took / 2 for seed, took in steps.items()}, studies).assign(optimizer="mkor")
    found = target_ratio(ours, theirs).ratio
    assert (found.value, found.n) == (pytest.approx(0.5), 2)
    assert target_ratio(ours, theirs, StepTimes(pd.DataFrame())) is None
    assert target_ratio(ours, taking(dict.fromkeys(steps, INF), studies, budget=5)) == TargetRatio(None, 4, 0, 4)
