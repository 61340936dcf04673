"""Times to targets with censored runs on hand-made numbers; sweeps over eight targets, with planted truths."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_claims import conditions, descents, runs_to_target, swept
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.estimates import difference_over_studies, mean_ratio, studies_of, study_means
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import (
    SHARES,
    Course,
    Speedup,
    TargetSweep,
    budgets,
    by_configuration,
    reaching,
    speedup,
    target_sweep,
    to_target,
    too_short,
)
from workflow.bench.claims.decision import Trained
from workflow.bench.claims.time_to_target import part_of
from workflow.bench.plan.targets import Target

INF = math.inf
RATES = (0.1, 0.2)


def runs(*, studies: bool, periods: tuple[int, ...] = (5, 10)) -> pd.DataFrame:
    """Return runs of four seeds at each period, whose rate two studies chose in turn."""
    shared = {"experiment": "one", "workload": "autoencoder", "dataset": "digits", "optimizer": "mkor", "steps": 10}
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
        ([8, 10, 12], 10, 10 - 4.968, 10 + 4.968, 3),  # Student's t, two degrees of freedom, deviation 2
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


STUDIES = {seed: float(seed % 3) for seed in range(8)}


def _sweep(trained: Trained, base: str = "sgd") -> TargetSweep:
    return target_sweep(trained.runs, trained.metrics, base)


def test_targets_are_spaced_evenly_over_what_the_base_gains():
    """Truth: the loss falls from 10 to 4.2, so 30 % of it is at 8.26."""
    sweep = _sweep(swept("x", {"sgd": [100.0, 110.0], "mkor": [50.0, 50.0]}))
    assert [target.limit for target in sweep.targets] == pytest.approx([10 - 5.8 * share for share in SHARES])
    assert sweep.describe() == "8 targets of validation loss from 8.26 down to 4.2"


def test_a_run_crosses_a_target_where_its_curve_does():
    sweep = _sweep(swept("x", {"sgd": [100.0], "mkor": [50.0], "kaisa": [None]}))
    assert sweep.courses["sgd"].crossings[0] == pytest.approx([100 * share for share in SHARES])
    assert sweep.courses["mkor"].crossings[0] == pytest.approx([50 * share for share in SHARES])
    assert sweep.courses["kaisa"].crossings[0] == [math.inf] * 8


def test_a_metric_that_rises_has_rising_targets():
    trained = swept("x", {"sgd": [100.0], "mkor": [50.0]})
    goal = trained.runs["target"].iloc[0].__class__("validation", "accuracy", "above", 0.9)
    metrics = trained.metrics.assign(metric="accuracy", value=1 - trained.metrics["value"] / 10)
    sweep = target_sweep(trained.runs.assign(target=[goal] * 2), metrics, "sgd")
    assert [target.limit for target in sweep.targets] == pytest.approx([0.58 * share for share in SHARES])
    ratio = sweep.steps_ratio("sgd", "mkor").estimate
    assert ratio.value == pytest.approx(2)


@settings(max_examples=25)
@given(st.floats(0.2, 5), st.floats(0.2, 5))
def test_ratios_invert_and_multiply(first, second):
    """Truth: a label that takes a factor as long takes it to every target."""
    ends = np.array([20.0, 22.0, 24.0])
    sweep = _sweep(swept("x", {"sgd": [*ends], "a": [*(ends * first)], "b": [*(ends * second)]}))
    for above, below, ratio in (("a", "sgd", first), ("sgd", "a", 1 / first), ("a", "b", first / second)):
        estimate = sweep.steps_ratio(above, below).estimate
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((ratio,) * 3)


def test_missed_targets_move_a_ratio_toward_1_and_are_counted():
    """SGD's budget is 300 steps. One label stays at the start; another ends half way, after shares .3, .4 and .5."""
    trained = swept("x", {"sgd": [100.0] * 2, "never": [None] * 2, "half": [600.0] * 2})
    sweep = _sweep(trained)
    never, half = sweep.steps_ratio("never", "sgd"), sweep.steps_ratio("half", "sgd")
    assert (never.pairs, never.unreached, never.left_out) == (16, 16, 0)
    assert (half.pairs, half.unreached) == (16, 10)
    logs = [math.log(6)] * 3 + [math.log(300 / (100 * share)) for share in SHARES[3:]]
    assert math.log(half.estimate.value) == pytest.approx(np.mean(logs))
    neither = sweep.steps_ratio("half", "never")
    assert (neither.pairs, neither.left_out, neither.unreached) == (6, 10, 6)


def test_a_budget_shorter_than_the_other_runs_way_says_nothing():
    """The short label ends after 40 steps without a target; SGD is at the targets after 30 and 40 to 100 steps."""
    runs = runs_to_target("x", {"sgd": [100.0] * 2, "short": [None] * 2}, steps=300, steps_done=300)
    runs.loc[runs["optimizer"] == "short", ["steps", "steps_done"]] = 40
    ratio = _sweep(Trained("x", runs, descents(runs))).steps_ratio("short", "sgd").estimate
    assert math.log(ratio.value) == pytest.approx(math.log(40 / 30) / 8)


def test_seconds_hold_the_variance_of_seeds_and_of_step_times():
    trained = swept("x", {"sgd": [100.0, 110.0, 120.0], "mkor": [50.0, 56.0, 59.0]})
    quiet, noisy = (
        _sweep(trained).time_ratio(StepTimes(step_time(trained.runs, {"sgd": 20.0}, noise=noise)), "sgd", "mkor")
        for noise in (0.0, 0.1)
    )
    steps = _sweep(trained).steps_ratio("sgd", "mkor").estimate
    assert quiet.estimate.value == pytest.approx(steps.value * 2 / 3)
    assert quiet.estimate.high / quiet.estimate.low == pytest.approx(steps.high / steps.low)
    assert noisy.estimate.high / noisy.estimate.low > steps.high / steps.low


def test_units_are_studies_where_several_are_known():
    values, seeds = np.arange(8.0)[:, None], list(range(8))
    means, number = study_means(values, seeds, STUDIES)
    assert (means[:, 0].tolist(), number) == ([3.0, 4.0, 3.5], 3)
    one, number = study_means(values, seeds, dict.fromkeys(seeds, 0.0))
    assert (one is values, number) == (True, 1)
    assert study_means(values, seeds, {})[1] == 0
    runs = pd.DataFrame({"seed": [0, 1, 2], "study": [0, None, 1]})
    assert studies_of(runs.head(1), runs.assign(study=[5, 6, 7])) == {0: 0, 1: 6, 2: 7}


def test_a_difference_has_the_interval_of_the_studies_means():
    left, right = {seed: float(seed % 3) for seed in range(6)}, dict.fromkeys(range(6), 0.0)
    nested = difference_over_studies(left, right, STUDIES)
    assert (nested.n, nested.value) == (3, 1.0)
    assert difference_over_studies(left, {}, STUDIES) is None
    # A run that diverged is the worst, and so is its study; one in which both labels have such runs says nothing.
    broken = difference_over_studies({**left, 0: math.inf}, right, STUDIES)
    assert (broken.n, broken.value, broken.has_interval) == (3, 2.0, False)
    both = difference_over_studies({**left, 0: math.inf}, {**right, 3: math.inf}, STUDIES)
    assert both.n == 2


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("truth", [0.9, 1.0, 1.1])
def test_planted_truths_over_eight_seeds_of_three_studies_are_judged_falsely_in_five_percent(share, truth):
    """Logarithms of ratios that deviate by .055, of which a share is due to the study: 1,000 draws, 2.7 sigma.

    Seeds as if independent would be wrong in 24 % at a share of .75.
    """
    rng, condition = np.random.default_rng(0), conditions("C03")[0]
    which = np.arange(8) % 3
    errors = math.sqrt(share) * rng.standard_normal((1000, 3))[:, which]
    errors += math.sqrt(1 - share) * rng.standard_normal((1000, 8))
    false = {0.9: ("refuted", "no difference"), 1.0: ("confirmed", "refuted"), 1.1: ("confirmed", "no difference")}
    wrong = 0
    for logs in math.log(truth) + 0.055 * errors:
        units, _ = study_means(logs, range(8), STUDIES)
        wrong += condition.judge(mean_ratio(units)) in false[truth]
    assert wrong <= 69


@pytest.mark.parametrize(("truth", "false"), [(1.0, ("confirmed", "refuted")), (1.3, ("refuted", "no difference"))])
def test_planted_truths_are_judged_falsely_in_five_percent_though_runs_miss_targets(truth, false):
    """Two labels take about 280 and 280 / truth of 300 steps to the last target, so that some of both miss it.

    Their logarithms deviate by .1 by study and by .1 by seed. 400 draws: five percent are 20, plus 3 standard
    deviations 33.
    """
    rng, condition, wrong, missed = np.random.default_rng(0), conditions("C06")[0], 0, 0
    runs = pd.DataFrame({"seed": range(8), "steps": 300, "study": [seed % 3 for seed in range(8)]})
    goals = _sweep(swept("x", {"sgd": [100.0]})).targets
    for _ in range(400):
        courses = {}
        for label, mean in (("sgd", 280), ("mkor", 280 / truth)):
            ends = mean * np.exp(0.1 * rng.standard_normal(3)[np.arange(8) % 3] + 0.1 * rng.standard_normal(8))
            steps = np.where(np.outer(ends, SHARES) > 300, np.inf, np.outer(ends, SHARES))
            courses[label] = Course(runs, dict(enumerate(steps.tolist())))
        ratio = TargetSweep(goals, courses).steps_ratio("sgd", "mkor")
        wrong += part_of("", ratio, condition).verdict in false
        missed += ratio.unreached
    assert missed > 400
    assert wrong <= 33


@pytest.mark.parametrize(("above", "below"), [("late", "early"), ("early", "late")])
def test_a_target_that_either_met_before_its_first_step_is_left_out(above, below):
    runs = pd.DataFrame({"seed": [0], "steps": [300], "study": [None]})
    courses = {"late": Course(runs, {0: [10.0] * 8}), "early": Course(runs, {0: [0.0] + [5.0] * 7})}
    goals = _sweep(swept("x", {"sgd": [100.0]})).targets
    ratio = TargetSweep(goals, courses).steps_ratio(above, below)
    assert (ratio.pairs, ratio.left_out) == (7, 1)
