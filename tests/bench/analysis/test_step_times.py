"""Step times and training times with planted truths: A/A tests, blocks of whole cycles, intervals of ratios."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import runs_to_target
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.estimates import crossed_ratio, t_interval
from workflow.bench.analysis.step_times import (
    OWN,
    PROBED,
    StepTimes,
    TimedLabel,
    Training,
    aa_exclusions,
    mean_seconds,
    most_exclusions,
    steps_or_seconds,
    time_ratio,
    timed,
)

INF = math.inf
RUNS = runs_to_target("bert_pretraining", {"lamb": [100.0, 110.0], "mkor": [80.0, 88.0]})
LAMB, MKOR = (TimedLabel("bert_pretraining", "bert_pretraining", label) for label in ("lamb", "mkor"))


def training(label: TimedLabel, *steps: float) -> Training:
    return Training(label, None, dict(enumerate(steps)), {})


def test_equal_steps_exclude_1_in_five_of_a_hundred_intervals():
    """Truth: both names have the same distribution of times, with the heavy tail that interrupts make."""
    random = np.random.default_rng(0)
    one, other = 0.01 * random.standard_normal((2, 6000)) + 0.03 * (random.random((2, 6000)) < 0.02)
    intervals, excluding = aa_exclusions(one - other)
    assert intervals == 2000
    assert 0.02 < excluding / intervals < 0.07


def test_a_second_name_that_is_3_percent_slower_fails_the_test():
    random = np.random.default_rng(0)
    logs = 0.03 + 0.01 * random.standard_normal(180)
    intervals, excluding = aa_exclusions(logs)
    assert (intervals, most_exclusions(60), most_exclusions(63)) == (60, 7, 8)
    assert excluding > 8
    times = StepTimes(step_time(RUNS, rounds=540, noise=0.007, bias=0.03))
    assert not times.is_quiet
    assert "too noisy" in times.problem(LAMB, MKOR)
    assert StepTimes(step_time(RUNS, rounds=540, noise=0.007)).problem(LAMB, MKOR) == ""


@pytest.mark.parametrize("intervals", [1, 20, 60, 105])
def test_the_allowed_number_is_the_binomial_quantile(intervals):
    """Truth: the smallest number that at most 1 % of quiet machines exceed."""
    most = most_exclusions(intervals)
    assert stats.binom.sf(most, intervals, 0.05) <= 0.01 < stats.binom.sf(most - 1, intervals, 0.05)


def test_a_busy_half_of_the_rounds_is_left_out_and_counted():
    """Truth: steps of 30 ms, three times as long in the busy rounds."""
    times = StepTimes(step_time(RUNS, rounds=90, busy=range(0, 90, 2)))
    assert times.problem(LAMB, MKOR) == ""
    assert times.blocks(LAMB, MKOR) == pytest.approx(np.full((2, 45), 30.0))
    (test,) = times.aa_tests
    assert (test.rounds, test.left_out, test.intervals, test.excluding_1) == (90, 45, 15, 0)
    assert "busy: other processes slowed 28 of 30" in StepTimes(step_time(RUNS, rounds=30, busy=range(28))).problem(
        LAMB
    )


def test_too_few_rounds_for_whole_cycles_are_not_called_a_busy_machine():
    rows = step_time(RUNS, rounds=27).assign(cycle=10)
    assert StepTimes(rows).problem(LAMB, MKOR) == (
        "the 27 rounds of step_time in bert_pretraining hold fewer than 3 blocks of whole cycles"
    )


def test_a_block_holds_whole_cycles():
    """Truth: MKOR refreshes every fifth step, in 80 ms in place of 30; a step takes 40 on average."""
    rows = step_time(RUNS, rounds=47)
    of_mkor = rows["optimizer"] == "mkor"
    rows.loc[of_mkor, "cycle"] = 5
    rows.loc[of_mkor & (rows["round"] % 5 == 2), "step_ms"] = 80.0
    times = StepTimes(rows)
    assert times.blocks(MKOR).tolist() == [pytest.approx([40.0] * 9)]
    assert times.blocks(LAMB, MKOR).shape == (2, 9)
    rows.loc[rows["round"] == 7, "left_out"] = True  # of the second of nine cycles
    assert StepTimes(rows).blocks(LAMB, MKOR).shape == (2, 8)
    rows.loc[of_mkor, "steps"] = 10  # a turn of two cycles
    assert StepTimes(rows).blocks(LAMB, MKOR).shape == (2, 46)


def test_rounds_on_a_slow_machine_keep_their_ratio():
    """Truth: LAMB's steps take 1.5 times MKOR's, all of them four times as long in half of the rounds."""
    rows = step_time(RUNS, {"lamb": 45.0, "mkor": 30.0}, rounds=30).assign(cycle=5, steps=5)
    rows["step_ms"] *= np.where(rows["round"] % 2, 4.0, 1.0)
    ratio = time_ratio(StepTimes(rows), training(LAMB, 10.0, 10.0, 10.0), training(MKOR, 10.0, 10.0, 10.0))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_intervals_of_interrupted_turns_cover_the_ratio():
    """Truth: 1.5; one turn in five takes longer, twice as long on average. 95 % intervals hold the truth."""
    random, covered, simulations = np.random.default_rng(0), 0, 200
    rows = step_time(RUNS, rounds=30).assign(cycle=5, steps=5)
    truth = np.where(rows["optimizer"] == "mkor", 45.0, 30.0)
    for _ in range(simulations):
        interrupted = np.where(random.random(len(rows)) < 0.2, 1 + random.exponential(1.0, len(rows)), 1)
        noise = interrupted * np.exp(0.04 * random.standard_normal(len(rows)))
        blocks = StepTimes(rows.assign(step_ms=noise * truth)).blocks(MKOR, LAMB)
        low, high = t_interval(np.log(blocks[0] / blocks[1]))
        covered += low <= math.log(1.5) <= high
    assert covered >= 0.92 * simulations


def test_labels_at_several_periods_have_their_own_times():
    rows = step_time(RUNS)
    slow = rows.assign(inverse_update_period=1, step_ms=90.0)
    times = StepTimes(pd.concat([rows, slow[slow["optimizer"] == "mkor"]]))
    assert times.blocks(MKOR._replace(period=1.0)).mean() == pytest.approx(90.0)
    assert times.blocks(MKOR).mean() == pytest.approx(30.0)
    assert times.problem(MKOR._replace(period=7.0)) == "step_time.csv has no step of mkor in bert_pretraining"


@pytest.mark.parametrize(("of_seeds", "of_blocks"), [(0.1, 0.01), (0.02, 0.1), (0.05, 0.05)])
def test_the_interval_of_a_ratio_covers_both_variances(of_seeds, of_blocks):
    """Truth: 1,000 draws of 3 seeds and 5 blocks with a true ratio of 1.2; 95 % of the intervals hold it."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        seeds, blocks = of_seeds * random.standard_normal(3), of_blocks * random.standard_normal(5)
        ratio = crossed_ratio(math.log(1.2) + seeds[:, None] + blocks[None, :])
        covered += ratio.low <= 1.2 <= ratio.high
    assert 0.93 < covered / 1000 < 0.985


def test_without_noise_in_the_times_the_interval_is_students_over_seeds():
    logs = np.log([1.1, 1.2, 1.25])
    ratio = crossed_ratio(np.tile(logs[:, None], 5))
    truth = np.exp(stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs)))
    assert (ratio.low, ratio.high) == pytest.approx(tuple(truth))
    assert not crossed_ratio(np.zeros((1, 5))).has_interval
    assert (crossed_ratio(np.zeros((3, 5))).low, crossed_ratio(np.zeros((3, 5))).high) == (1.0, 1.0)


def test_a_time_ratio_is_steps_times_milliseconds():
    """Truth: twice the steps, each 1.5 times as long."""
    times = StepTimes(step_time(RUNS, {"lamb": 45.0, "mkor": 30.0}))
    ratio = time_ratio(times, training(LAMB, 100, 200, 150), training(MKOR, 50, 100, 75))
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == pytest.approx((3.0, 3.0, 3.0, 3))
    assert mean_seconds(times, training(MKOR, 50, INF)) == pytest.approx({0: 1.5, 1: INF})
    assert steps_or_seconds(times, training(MKOR, 50, INF)) == mean_seconds(times, training(MKOR, 50, INF))


def test_without_step_times_steps_are_compared():
    assert steps_or_seconds(None, training(MKOR, 50, INF)) == {0: 50, 1: INF}
    ratio = time_ratio(None, training(LAMB, 100, 200, 150), training(MKOR, 50, 100, 75))
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == pytest.approx((2.0, 2.0, 2.0, 3))


def test_runs_that_miss_the_target_count_as_before():
    times = StepTimes(step_time(RUNS, noise=0.01))
    reached = training(MKOR, *[50.0] * 7)
    never = time_ratio(times, training(LAMB, *[INF] * 7), reached)
    assert (never.value, never.low) == (INF, INF)
    few = time_ratio(times, training(LAMB, 100.0, INF), training(MKOR, 50.0, 50.0))
    assert not few.has_interval
    assert time_ratio(times, training(LAMB, INF, 0.0), training(MKOR, INF, 0.0)) is None
    some = time_ratio(times, training(LAMB, 100.0, 110.0, INF), training(MKOR, 50.0, 55.0, INF))
    assert (some.n, some.has_interval) == (2, True)  # the third seed says nothing
    assert some == time_ratio(times, training(LAMB, 100.0, 110.0), training(MKOR, 50.0, 55.0))
    # Where the interval is that of a median, the times widen it.
    most = time_ratio(times, training(LAMB, *[100.0] * 7, INF), training(MKOR, *[50.0] * 8))
    assert most.low < 0.996 * most.value < most.high


def _tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs and evaluations of two optimizers, one of which switches to its base after 60 of 150 steps."""
    parts = [run_rows("e", "w", label, [0, 1], base="lamb", period=5, target=4.2) for label in ("lamb", "mkor_h")]
    runs, metrics = (pd.DataFrame([row for part in parts for row in part[place]]) for place in (1, 0))
    switches = runs["optimizer"] == "mkor_h"
    runs["switch_step"] = runs["switch_step"].mask(switches, 60.0)
    runs["hyperparameters"] = pd.Series([{"base": "lamb"} if switch else {} for switch in switches], runs.index)
    return runs, metrics


def test_seconds_are_iterations_times_the_time_of_a_step():
    """Truth: 20 ms a step of LAMB, and 50 ms a step of MKOR-H until it switches."""
    runs, metrics = _tables()
    found = timed(StepTimes(step_time(runs, {"lamb": 20.0, "mkor_h": 50.0})), runs, metrics)
    by_label = found.runs.groupby("optimizer")["train_seconds"].first()
    assert by_label["lamb"] == pytest.approx(150 * 0.02)
    assert by_label["mkor_h"] == pytest.approx(60 * 0.05 + 90 * 0.02)
    at_step = found.metrics[found.metrics["step"] == 50].groupby("optimizer")["train_seconds"].first()
    assert at_step.to_dict() == pytest.approx({"lamb": 1.0, "mkor_h": 2.5})
    lamb = found.runs[(found.runs["optimizer"] == "lamb") & found.runs["crossing_step"].notna()]
    assert list(lamb["crossing_seconds"]) == pytest.approx([0.02 * step for step in lamb["crossing_step"]])
    assert found.note(str) == PROBED


def test_a_label_without_a_timed_step_leaves_all_labels_their_own_seconds():
    """Times of two sources on one axis could not be compared."""
    runs, metrics = _tables()
    for times in (step_time(runs[runs["optimizer"] == "lamb"]), pd.DataFrame()):
        found = timed(StepTimes(times), runs, metrics)
        assert list(found.runs["train_seconds"]) == list(runs["train_seconds"])
        assert list(found.metrics["train_seconds"].dropna()) == list(metrics["train_seconds"].dropna().astype(float))
        assert found.note(str) == OWN


def test_without_runs_there_is_nothing_to_time():
    empty = pd.DataFrame()
    assert timed(StepTimes(empty), empty, empty).runs.empty
    assert math.isnan(StepTimes(empty).mean(TimedLabel("e", "w", "lamb")))
