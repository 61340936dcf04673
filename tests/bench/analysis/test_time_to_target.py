"""Times to targets with censored runs on hand-made numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import (
    Speedup,
    budgets,
    by_configuration,
    estimate_times,
    reaching,
    speedup,
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


def test_a_speedup_over_runs_that_never_get_there():
    assert reaching({}) is None
    assert speedup({}, {0: 1.0}) == Speedup(None, 0)
    assert speedup({0: 0.0, 1: INF, 2: 4.0}, {0: 0.0, 1: INF, 2: 2.0}).undecided == 2
    reference = {0: 10.0, 1: INF, 2: INF, 3: INF, 4: 12.0, 5: 14.0, 6: 16.0, 7: 18.0}
    contender = dict.fromkeys(range(8), 10.0) | {2: INF}
    result = speedup(reference, contender)
    assert result.undecided == 1  # seed 2, on which neither got there
    assert result.ratio.n == 7
    assert result.ratio.value == 1.6
    assert result.ratio.high == INF  # seeds 1 and 3, on which the reference alone did not
    assert speedup({0: INF, 1: INF}, {0: INF, 1: INF}) == Speedup(None, 2)


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
    result = speedup(took, took)
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
    assert speedup(reference, took, studies).ratio.n == 4
    assert speedup(reference, took, studies).ratio.value == pytest.approx(2)
    # A study in which each side misses the target once favors neither.
    undecided = speedup(reference | {1: INF}, took | {5: INF}, studies)
    assert undecided.ratio.n == 3


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
    steps = np.array([20.0, 22.0, 40.0, 44.0])
    shared = {"seed": range(4), "study": [0.0, 0.0, 1.0, 1.0], "status": "finished", "steps_done": 100}
    theirs = pd.DataFrame(shared | {"crossing_step": steps, "crossing_seconds": steps, "train_seconds": 100.0})
    theirs["hyperparameters"] = [{}] * 4
    theirs = theirs.assign(experiment="one", workload="autoencoder", optimizer="sgd", switch_step=None)
    ours, times = theirs.assign(crossing_step=steps / 2, optimizer="mkor"), StepTimes(pd.DataFrame())
    found = target_ratio(ours, theirs, "steps", times)
    assert found is not None
    assert (found.value, found.n) == (pytest.approx(0.5), 2)
    assert target_ratio(ours, theirs, "seconds", times) is None
    assert target_ratio(ours, theirs.iloc[:0], "steps", times) is None
    assert target_ratio(ours, theirs.assign(crossing_step=np.nan, steps_done=5), "steps", times) is None
