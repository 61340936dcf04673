"""Sweeps over what the base reaches after shares of its steps. Truths: straight lines, and planted ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, conditions, swept
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.aa_steps import DRAWS, steps_aa_test
from workflow.bench.analysis.estimates import mean_ratio, paired_difference, studies_of, study_means
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import (
    SHARES,
    Course,
    NoSweepError,
    TargetSweep,
    factors,
    target_sweep,
)
from workflow.bench.claims.decision import Trained
from workflow.bench.claims.time_to_target import part_of
from workflow.bench.plan.targets import Target

STEPS, EVERY = 300, 10
Line = Sequence[tuple[float, float]]
"""Corners (step, loss) between which a loss is a straight line."""


def lines(by_label: Mapping[str, Sequence[Line]], *, every: int = EVERY, **goal: Any) -> Trained:
    """Return runs of 300 steps whose losses are lines, one a seed; goal: about the target."""
    runs, metrics = [], []
    target = Target("validation", "loss", "below", 0.5, **goal)
    for label, seeds in by_label.items():
        for run, line in zip(run_rows("x", "x", label, range(len(seeds)), steps=STEPS)[1], seeds, strict=True):
            runs.append(run | {"target": target, "study": None})
            shared = {name: run[name] for name in NO_METRICS if name in run} | {"split": "validation", "metric": "loss"}
            for step in range(0, STEPS + 1, every):
                value = float(np.interp(step, [at for at, _ in line], [loss for _, loss in line]))
                metrics.append(shared | {"step": step, "value": value, "train_seconds": 0.0})
    return Trained("x", pd.DataFrame(runs), pd.DataFrame(metrics, columns=list(NO_METRICS)))


def line(end: float, factor: float = 1.0) -> Line:
    """Return a loss that falls from 10 to ``end`` in 300 steps, or in a factor of them."""
    return [(0, 10.0), (STEPS * factor, end), (STEPS * max(factor, 1) + 1, end)]


STUDIES = {seed: float(seed % 3) for seed in range(8)}


def _sweep(trained: Trained, base: str = "sgd") -> TargetSweep:
    return target_sweep(trained.runs, trained.metrics, base)


def test_targets_are_what_the_base_reaches_after_shares_of_its_steps():
    """Truth: two seeds fall evenly to 4 and to 5, so that at a share s of the steps their mean is 10 - 5.5 s."""
    sweep = _sweep(lines({"sgd": [line(4.0), line(5.0)], "mkor": [line(4.0, 0.5)] * 2}))
    assert [*sweep.targets] == [*SHARES] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert [one.limit for one in sweep.targets.values()] == pytest.approx([10 - 5.5 * share for share in SHARES])
    assert sweep.describe() == "8 targets of validation loss from 8.35 down to 4.5"
    assert sweep.at(0.9).describe() == "one target of validation loss at 5.05"
    assert [*sweep.last(3).targets] == [0.8, 0.9, 1.0]
    # One seed is at the mean of both after s x 5.5 / 6 of its way, the other never at what the mean ends at.
    assert sweep.courses["sgd"].crossings[0] == pytest.approx([STEPS * share * 5.5 / 6 for share in SHARES])
    assert sweep.courses["sgd"].crossings[1][-1] == math.inf
    assert sweep.courses["mkor"].crossings[0] == pytest.approx([STEPS / 2 * share * 5.5 / 6 for share in SHARES])


def test_a_noisy_base_is_smoothed_before_its_mean_is_taken():
    """Truth: evaluated every 50 steps it is 6 and then 7, which count as 6.5 each; so at 180 it is 6.5 - .6 x 1.5."""
    bumpy = [(0, 10.0), (50, 8.0), (100, 6.0), (150, 7.0), (200, 5.0), (300, 3.0)]
    sweep = _sweep(lines({"sgd": [bumpy] * 2}, every=50))
    assert sweep.targets[0.6].limit == pytest.approx(5.6)
    assert sweep.targets[1.0].limit == pytest.approx(3.0)
    # After half of the steps it has what it had after a third.
    assert sweep.dropped[0.5] == "crossed no later than at its evaluation 3"


@pytest.mark.parametrize(
    ("trivial", "kept"),
    [(None, SHARES), (11.0, SHARES), (8.0, SHARES[1:]), (7.0, SHARES[3:]), (5.5, (0.8, 0.9, 1.0)), (4.5, (1.0,))],
)
def test_targets_no_better_than_the_trivial_predictor_are_dropped(trivial, kept):
    """Truth: the loss at a share s is 10 - 6 s: 8.2 at .3, 7 at .5, which 7 is no better than, 4.6 at .9."""
    sweep = _sweep(lines({"sgd": [line(4.0)] * 2}, trivial=trivial))
    assert tuple(sweep.targets) == kept
    assert [*sweep.dropped] == [share for share in SHARES if share not in kept]
    assert set(sweep.dropped.values()) <= {f"no better than the trivial predictor's {trivial or 0:g}"}
    assert ("No trivial predictor is declared" in sweep.remarks()) == (trivial is None)


def test_dropped_targets_are_said_with_their_reasons():
    sweep = _sweep(lines({"sgd": [line(4.0)] * 2}, trivial=8.0))
    assert (
        sweep.remarks() == "Dropped are the targets at 30 % of sgd's steps, no better than the trivial predictor's 8."
    )


def test_without_a_target_that_is_left_there_is_no_sweep():
    flat = lines({"sgd": [[(0, 10.0), (10, 4.0), (300, 4.0)]] * 2})
    with pytest.raises(NoSweepError, match="what sgd reaches is crossed no later than at its evaluation 3"):
        _sweep(flat)
    with pytest.raises(NoSweepError, match="no better than the trivial predictor's 4"):
        _sweep(lines({"sgd": [line(4.0)] * 2}, trivial=4.0))
    gone = _sweep(lines({"sgd": [line(4.0)] * 2}, trivial=4.5))
    with pytest.raises(NoSweepError, match=r"has no target at 90 % of sgd's steps: no better than the trivial"):
        gone.at(0.9)


def test_a_target_is_crossed_after_the_bases_third_evaluation_without_that_of_the_untrained_model():
    """Truth: evaluated every 30 steps, 30 % of 300 steps are at the third evaluation, which is not after it."""
    sweep = _sweep(lines({"sgd": [line(4.0)] * 2}, every=30))
    assert sweep.dropped == {0.3: "crossed no later than at its evaluation 3"}
    assert not _sweep(lines({"sgd": [line(4.0)] * 2}, every=25)).dropped
    assert [*_sweep(lines({"sgd": [line(4.0)] * 2}, every=60)).targets] == [0.7, 0.8, 0.9, 1.0]
    with pytest.raises(NoSweepError):  # three evaluations, and none after them
        _sweep(lines({"sgd": [line(4.0)] * 2}, every=100))


def test_a_useless_early_target_changes_nothing():
    """Truth: the ratios with a trivial predictor that drops the first targets are those of the others alone."""
    ahead_early = [(0, 10.0), (30, 7.0), (290, 4.0), (300, 4.0)]
    by_label = {"sgd": [line(4.0), line(4.2), line(4.1)], "mkor": [ahead_early] * 3}
    dropped, whole = _sweep(lines(by_label, trivial=7.0)), _sweep(lines(by_label))
    kept = whole.at(*dropped.targets)
    assert len(dropped.targets) < len(whole.targets)
    assert dropped.steps_ratio("sgd", "mkor") == kept.steps_ratio("sgd", "mkor")
    assert dropped.steps_ratio("sgd", "mkor") != whole.steps_ratio("sgd", "mkor")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(3, 6), min_size=2, max_size=4), st.sampled_from([1.0, 0.5, 0.25]))
def test_a_label_against_itself_is_1_and_twice_as_fast_is_half_at_every_target(ends, factor):
    """Evaluated at twice as many steps, so that the faster curve has the same corners; a property of any base."""
    sweep = _sweep(lines({"sgd": [line(end) for end in ends], "mkor": [line(end, factor) for end in ends]}, every=5))
    for share in sweep.targets:
        part = sweep.at(share)
        own, other = part.steps_ratio("sgd", "sgd").estimate, part.steps_ratio("mkor", "sgd").estimate
        # A seed that ends above the mean reaches the last targets with neither label, and is left out there.
        assert own.value == 1
        assert other.value == pytest.approx(factor)
        if own.n > 1:
            assert (own.low, own.high) == (1, 1)
            assert (other.low, other.high) == pytest.approx((factor,) * 2)


def test_runs_that_diverged_count_as_the_worst_and_the_base_is_that_of_finished_ones():
    """Truth: MKOR's seed 0 was at every target in half of the steps before it diverged: it counts with 300 steps."""
    trained = lines({"sgd": [line(4.0)] * 3, "mkor": [line(4.0, 0.5)] * 3})
    runs = trained.runs.copy()
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 0), "status"] = "diverged"
    last = _sweep(replace(trained, runs=runs)).last()
    ratio = last.steps_ratio("mkor", "sgd")
    assert (ratio.pairs, ratio.unreached, ratio.left_out) == (3, 1, 0)
    assert ratio.estimate.value == pytest.approx((1.0 * 0.5 * 0.5) ** (1 / 3))
    runs.loc[(runs["optimizer"] == "sgd") & (runs["seed"] == 1), "status"] = "diverged"
    limits = [[one.limit for one in _sweep(one).targets.values()] for one in (replace(trained, runs=runs), trained)]
    assert limits[0] == pytest.approx(limits[1])


def test_a_run_that_diverged_takes_no_less_than_the_other_runs_budget():
    """Truth: its own 100 steps are fewer than the 200 that SGD takes to the last target, and than SGD's 300."""
    runs = pd.DataFrame({"seed": [0], "steps": [100], "study": [None], "status": ["diverged"]})
    other = runs.assign(steps=300, status="finished")
    goals = _sweep(lines({"sgd": [line(4.0)]})).last()
    courses = {"broken": Course(runs, {0: [math.inf]}), "sgd": Course(other, {0: [200.0]})}
    assert replace(goals, courses=courses).steps_ratio("broken", "sgd").estimate.value == pytest.approx(1.5)
    short = {**courses, "broken": Course(runs.assign(status="finished"), {0: [math.inf]})}
    assert replace(goals, courses=short).steps_ratio("broken", "sgd").estimate.value == 1


def test_a_metric_that_rises_has_rising_targets():
    """Truth: one minus a tenth of a loss that falls from 10 to 4 rises to .6 as evenly."""
    trained = lines({"sgd": [line(4.0)] * 2, "mkor": [line(4.0, 0.5)] * 2})
    metrics = trained.metrics.assign(metric="accuracy", value=1 - trained.metrics["value"] / 10)
    goal = Target("validation", "accuracy", "above", 0.9, trivial=0.24)
    sweep = target_sweep(trained.runs.assign(target=[goal] * len(trained.runs)), metrics, "sgd")
    assert [*sweep.targets] == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert [one.limit for one in sweep.targets.values()] == pytest.approx([0.6 * share for share in sweep.targets])
    assert sweep.steps_ratio("sgd", "mkor").estimate.value == pytest.approx(2)


@settings(max_examples=25)
@given(st.floats(0.2, 5), st.floats(0.2, 5))
def test_ratios_invert_and_multiply(first, second):
    """Truth: a label that takes a factor as long takes it to every target."""
    ends = np.array([40.0, 44.0, 48.0])
    sweep = _sweep(swept("x", {"sgd": [*ends], "a": [*(ends * first)], "b": [*(ends * second)]}))
    for above, below, ratio in (("a", "sgd", first), ("sgd", "a", 1 / first), ("a", "b", first / second)):
        estimate = sweep.steps_ratio(above, below).estimate
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((ratio,) * 3)


def test_missed_targets_move_a_ratio_toward_1_and_are_counted():
    """SGD takes 300 s steps to a share s. One label stays at the start; another takes twice as long, to .5 at most."""
    sweep = _sweep(lines({"sgd": [line(4.0)] * 2, "never": [[(0, 10.0), (300, 10.0)]] * 2, "half": [line(4.0, 2)] * 2}))
    never, half = sweep.steps_ratio("never", "sgd"), sweep.steps_ratio("half", "sgd")
    assert (never.pairs, never.unreached, never.left_out) == (16, 16, 0)
    assert (half.pairs, half.unreached) == (16, 10)
    logs = [math.log(2)] * 3 + [math.log(1 / share) for share in SHARES[3:]]
    assert math.log(half.estimate.value) == pytest.approx(np.mean(logs))
    neither = sweep.steps_ratio("half", "never")
    assert (neither.pairs, neither.left_out, neither.unreached) == (6, 10, 6)


def test_a_budget_shorter_than_the_other_runs_way_says_nothing():
    """The short label ends after 100 steps without a target; SGD is at the targets after 90 and 120 to 300 steps."""
    trained = lines({"sgd": [line(4.0)] * 2, "short": [[(0, 10.0), (300, 10.0)]] * 2})
    runs = trained.runs.copy()
    runs.loc[runs["optimizer"] == "short", ["steps", "steps_done"]] = 100
    ratio = _sweep(replace(trained, runs=runs)).steps_ratio("short", "sgd").estimate
    assert math.log(ratio.value) == pytest.approx(math.log(100 / 90) / 8)


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
    nested = paired_difference(left, right, STUDIES)
    assert (nested.n, nested.value) == (3, 1.0)
    assert paired_difference(left, {}, STUDIES) is None
    # A run that diverged is the worst, and so is its study; one in which both labels have such runs says nothing.
    broken = paired_difference({**left, 0: math.inf}, right, STUDIES)
    assert (broken.n, broken.value, broken.has_interval) == (3, 2.0, False)
    both = paired_difference({**left, 0: math.inf}, {**right, 3: math.inf}, STUDIES)
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
    runs = pd.DataFrame(
        {"seed": range(8), "steps": 300, "study": [seed % 3 for seed in range(8)], "status": "finished"}
    )
    goals = _sweep(lines({"sgd": [line(4.0)]}))
    for _ in range(400):
        courses = {}
        for label, mean in (("sgd", 280), ("mkor", 280 / truth)):
            ends = mean * np.exp(0.1 * rng.standard_normal(3)[np.arange(8) % 3] + 0.1 * rng.standard_normal(8))
            steps = np.where(np.outer(ends, SHARES) > 300, np.inf, np.outer(ends, SHARES))
            courses[label] = Course(runs, dict(enumerate(steps.tolist())))
        ratio = replace(goals, courses=courses).steps_ratio("sgd", "mkor")
        wrong += part_of("", ratio, condition).verdict in false
        missed += ratio.unreached
    assert missed > 400
    assert wrong <= 33


@pytest.mark.parametrize(("above", "below"), [("late", "early"), ("early", "late")])
def test_a_target_that_either_met_before_its_first_step_is_left_out(above, below):
    runs = pd.DataFrame({"seed": [0], "steps": [300], "study": [None], "status": ["finished"]})
    courses = {"late": Course(runs, {0: [10.0] * 8}), "early": Course(runs, {0: [0.0] + [5.0] * 7})}
    ratio = replace(_sweep(lines({"sgd": [line(4.0)]})), courses=courses).steps_ratio(above, below)
    assert (ratio.pairs, ratio.left_out) == (7, 1)


def test_a_profile_counts_factors_of_the_best_at_the_kept_targets():
    sweep = _sweep(lines({"sgd": [line(4.0)] * 2, "mkor": [line(4.0, 0.5)] * 2}, trivial=8.0))
    found = factors(sweep)
    assert found["sgd"].shape == (7, 2)
    np.testing.assert_allclose(found["sgd"], 2)
    np.testing.assert_allclose(found["mkor"], 1)


def _drawn(studies: float, seeds: float, *, units: int = 8, each: int = 2) -> TargetSweep:
    """Return a sweep of one label whose logarithms of steps deviate by study and by seed."""
    rng = np.random.default_rng(3)
    steps = 100 * np.exp(
        studies * np.repeat(rng.standard_normal(units), each) + seeds * rng.standard_normal(units * each)
    )
    runs = pd.DataFrame({"seed": range(units * each), "steps": 300, "status": "finished"})
    runs["study"] = np.repeat(np.arange(units), each) if studies else None
    sweep = _sweep(lines({"sgd": [line(4.0)]}))
    return replace(sweep, courses={"sgd": Course(runs, {seed: [one] * 8 for seed, one in enumerate(steps.tolist())})})


@pytest.mark.parametrize(("studies", "seeds"), [(0.2, 0.05), (0.0, 0.2)])
def test_the_aa_test_of_steps_excludes_1_about_as_often_as_its_level_says(studies, seeds):
    """Truth: the halves differ by chance. The divisions share their runs: 5 % of 200 are 10, at most thrice as many."""
    found = steps_aa_test(_drawn(studies, seeds), "sgd")
    assert found.intervals == DRAWS
    assert found.excluding_1 <= 30
    assert found == steps_aa_test(_drawn(studies, seeds), "sgd")


def test_the_aa_test_of_steps_keeps_studies_together():
    """Truth: three studies are one pair, which has no interval; their 24 seeds, taken as independent, are twelve."""
    together = _drawn(0.3, 0.1, units=3, each=8)
    course = together.courses["sgd"]
    apart = replace(together, courses={"sgd": replace(course, runs=course.runs.assign(study=None))})
    assert (steps_aa_test(together, "sgd").intervals, steps_aa_test(apart, "sgd").intervals) == (0, DRAWS)


def test_a_single_run_has_nothing_to_be_divided():
    assert steps_aa_test(_drawn(0.0, 0.1, units=1, each=1), "sgd").intervals == 0
