"""Claims about iterations and training time to targets on hand-made runs: C06, C07 and C19."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic_claims import NO_RUNS, conditions, swept, untrained
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import SweptRatio
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.time_to_target import decide_speedup, part_of

ONE_STUDY = "Intervals are over seeds of one tuning study, without the spread between studies."
RIVALS = {"C06": ("sgd",), "C07": ("kaisa",), "C19": ("sgd", "hylo", "kaisa")}


def _decide(claim: str, trained: Trained, *, times: pd.DataFrame | None = None) -> Decision:
    """Decide with step times of 30 ms, KAISA's 50, on an idle machine."""
    rows = StepTimes(step_time(trained.runs) if times is None else times)
    return decide_speedup(trained, rows, conditions(claim), *RIVALS[claim])


def _resnet(**reaches: list[float | None]) -> Trained:
    return swept("resnet50_imagenet", reaches)


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([60.0, 66.0, 72.0], "confirmed"), ([150.0, 160.0, 180.0], "refuted"), ([60.0, 110.0, 160.0], "inconclusive")],
)
def test_c06_training_time_to_targets(mkor, verdict):
    decision = _decide("C06", _resnet(sgd=[100.0, 110.0, 120.0], mkor=mkor))
    assert decision.verdict == verdict
    assert str(decision.data).startswith("resnet50_imagenet.runs.csv: runs ")
    where = {"confirmed": "> 1 in its whole interval", "refuted": "not > 1 anywhere in its interval"}
    place = f"is {where[verdict]}" if verdict in where else "has 1 inside its interval"
    quality = "what sgd reaches after 90 % of its steps, a validation loss of 4.2"
    assert decision.why == f"Training seconds to {quality}: the ratio sgd/mkor {place}."
    start = f"Geometric mean, 95 % t interval. {ONE_STUDY} 8 targets of validation loss from 5.23 down to 4.2. "
    assert decision.details.startswith(start)


@pytest.mark.parametrize(
    ("kaisa", "time", "iterations", "verdict"),
    [
        ([90.0, 99.0], "1.5", "1.11", "confirmed"),
        ([110.0, 121.0], "1.83", "0.909", "refuted"),  # faster in time, but MKOR does not need more iterations
        ([50.0, 55.0], "0.833", "2", "refuted"),
    ],
)
def test_c07_needs_less_time_and_more_iterations(kaisa, time, iterations, verdict):
    """Truth: MKOR takes 100 and 110 steps of 30 ms; KAISA's take 50."""
    runs = _resnet(sgd=[120.0, 130.0], kaisa=kaisa, mkor=[100.0, 110.0])
    decision = _decide("C07", runs)
    assert decision.verdict == verdict
    assert decision.measured == f"time kaisa/mkor: {time}; iterations mkor/kaisa: {iterations}"
    assert decision.published_of == ("time kaisa/mkor",)


def test_c19_needs_every_rival_to_be_slower():
    reaches: dict[str, list[float | None]] = {"sgd": [100.0, 110.0], "hylo": [100.0, 110.0]}
    reaches |= {"kaisa": [90.0, 99.0], "mkor": [60.0, 66.0]}
    assert _decide("C19", swept("alexnet_cifar100", reaches)).verdict == "confirmed"
    decision = _decide("C19", swept("alexnet_cifar100", reaches | {"hylo": [30.0, 33.0]}))
    assert decision.verdict == "refuted"
    assert "sgd/mkor confirmed; hylo/mkor refuted; kaisa/mkor confirmed" in decision.why
    del reaches["kaisa"]
    assert _decide("C19", swept("alexnet_cifar100", reaches)).why == "alexnet_cifar100 has no run of kaisa."


def test_a_rival_that_misses_its_targets_counts_with_its_budget():
    """Truth: KAISA stays at the start through 300 steps of 50 ms; MKOR takes 100 of 30 ms to SGD's final quality."""
    decision = _decide("C07", _resnet(sgd=[100.0] * 3, kaisa=[None] * 3, mkor=[100.0] * 3))
    assert decision.measured.startswith("time kaisa/mkor: 5;")
    assert "Of 3 pairs of kaisa/mkor, one of the two runs missed the target in 3 and counts" in decision.details


def test_a_rival_whose_budget_is_shorter_than_mkors_time_leaves_the_claim_open():
    """KAISA ends after 300 steps of 1 ms, .3 s, short of all targets; MKOR takes .9 s to the first of them."""
    runs = _resnet(sgd=[100.0] * 3, kaisa=[None] * 3, mkor=[100.0] * 3)
    decision = _decide("C07", runs, times=step_time(runs.runs, {"kaisa": 1.0}))
    assert "time kaisa/mkor inconclusive" in decision.why
    assert decision.interval.startswith("time kaisa/mkor: [1, 1]")


def test_a_target_that_nobody_reaches_is_open_and_counted():
    decision = _decide("C07", _resnet(sgd=[100.0, 110.0], kaisa=[None, None], mkor=[None, None]))
    assert decision.verdict == "inconclusive"
    assert "no target reached" in decision.measured
    assert "Of 2 pairs of kaisa/mkor, 2 left out" in decision.details


@pytest.mark.parametrize(
    ("trained", "why"),
    [
        (swept("resnet50_imagenet", {"sgd": [1.0], "mkor": [1.0]}, target=None), "resnet50_imagenet sets no target."),
        (untrained("resnet50_imagenet"), "resnet50_imagenet has no results."),
        (
            swept("resnet50_imagenet", {"sgd": [None], "mkor": [100.0]}),
            "resnet50_imagenet has no target that tells of training: what sgd reaches is crossed no later than at its "
            "evaluation 3.",
        ),
        (
            swept("resnet50_imagenet", {"sgd": [100.0], "mkor": [100.0, 90.0]}, seed=0),
            "resnet50_imagenet has several runs of a label and seed.",
        ),
    ],
)
def test_without_targets_to_sweep_the_claim_says_why(trained, why):
    decision = _decide("C06", trained, times=NO_RUNS)
    assert (decision.verdict, decision.why) == ("not tested", why)


def test_at_the_paper_tier_mkor_is_the_released_rule():
    reaches: dict[str, list[float | None]] = {"sgd": [100.0, 110.0], "mkor": [200.0, 220.0]}
    reaches["mkor_released"] = [50.0, 55.0]
    assert _decide("C06", swept("x", reaches, tier="paper")).measured == "sgd/mkor_released: 2"
    assert _decide("C06", swept("x", reaches)).measured == "sgd/mkor: 0.5"


def _with_times(times: pd.DataFrame | None = None, **about: Any) -> Decision:
    trained = _resnet(sgd=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, 72.0])
    return _decide("C06", trained, times=step_time(trained.runs, **about) if times is None else times)


def test_seconds_are_iterations_times_the_time_of_a_step_and_not_those_of_the_runs():
    """Truth: 5 / 3 of the iterations, each taking 30 / 25 as long."""
    decision = _with_times(ms={"mkor": 25.0})
    assert (decision.verdict, decision.measured) == ("confirmed", "sgd/mkor: 2")
    assert "probes/step_time.csv: experiment=resnet50_imagenet, optimizer=mkor, sgd" in str(decision.data)


def test_without_step_times_the_claim_says_so_and_gives_the_iterations():
    decision = _with_times(pd.DataFrame())
    assert decision.verdict == "not tested"
    assert decision.why == "step_time.csv is missing or empty: the probe step_time has timed no step."
    assert "iterations 1.67 [1.67, 1.67], 1.67 [1.67, 1.67], 1.67 [1.67, 1.67]." in decision.details
    assert "in multiples of sgd's, < 1.67 [1.67, 1.67]." in decision.details


def test_on_a_busy_machine_the_claim_is_not_tested():
    decision = _with_times(busy=range(1, 45))
    assert decision.verdict == "not tested"
    assert decision.why.startswith("The machine was busy: other processes slowed 44 of 45 rounds")
    assert _with_times(busy=range(21)).measured == "sgd/mkor: 1.67"


def test_on_a_noisy_machine_the_claim_is_not_tested():
    """A second name of the same optimizer that is 3 % slower in every round is not noise that intervals cover."""
    decision = _with_times(rounds=180, bias=0.03, noise=0.001)
    assert decision.verdict == "not tested"
    assert decision.why.startswith("The machine is too noisy: 60 of 60 intervals between equal steps exclude a ratio")


def test_an_optimizer_that_was_not_timed_is_named():
    trained = _resnet(sgd=[100.0, 110.0], mkor=[60.0, 66.0])
    times = step_time(trained.runs).astype({"note": object})
    times.loc[times["optimizer"] == "mkor", ["step_ms", "note"]] = [None, "out of memory"]
    decision = _decide("C06", trained, times=times)
    assert decision.why == "step_time.csv has no step of mkor in resnet50_imagenet (out of memory)."


def test_the_interval_is_that_of_the_tuning_studies_means():
    """Truth: seeds 0 and 3 share a study, and so on; three studies of equal seeds are as three seeds."""
    studies: list[float | None] = [60.0, 66.0, 72.0]
    three = _decide("C06", _resnet(sgd=[100.0] * 3, mkor=studies))
    six = _resnet(sgd=[100.0] * 6, mkor=studies * 2)
    nested = Trained(six.name, six.runs.assign(study=six.runs["seed"] % 3), six.metrics)
    assert _decide("C06", nested).interval == three.interval
    assert "Intervals are those of the means of 3 tuning studies." in _decide("C06", nested).details
    assert _decide("C06", six).interval != three.interval


def _of_studies(logs: list[float]) -> Decision:
    """Decide C06 with a study for each logarithm of SGD's steps over MKOR's."""
    trained = _resnet(sgd=[100.0] * len(logs), mkor=[100 * math.exp(-log) for log in logs])
    return _decide("C06", Trained(trained.name, trained.runs.assign(study=trained.runs["seed"]), trained.metrics))


def test_a_verdict_that_hangs_on_one_study_says_so():
    """Truth: by hand; the mean .23 has an interval of ±.2228; without a study of .3 it is .2067, or else .3."""
    narrow, wide = _of_studies([0.3, 0.02, 0.3, 0.3]), _of_studies([0.3, 0.29, 0.31, 0.3])
    assert (narrow.verdict, narrow.parts[0].narrowly) == ("confirmed", "3 of 4")
    said = "Without one tuning study the mean would lie where the verdict is another: sgd/mkor in 3 of 4 cases."
    assert said in narrow.details
    assert (wide.verdict, wide.parts[0].narrowly) == ("confirmed", "")
    assert "Without one tuning study" not in wide.details
    assert _of_studies([0.3, 0.31]).parts[0].narrowly == ""  # one study is left, which has no spread
    assert _of_studies([0.3, -0.3, 0.3, 0.3]).parts[0].narrowly == ""  # open anyway


def test_the_steps_between_updates_are_stated():
    trained = _resnet(sgd=[100.0, 110.0], kaisa=[90.0, 99.0], hylo=[90.0, 99.0], mkor=[60.0, 66.0])
    periods = {
        "kaisa": {"factor_update_period": 10, "inverse_update_period": 50},
        "hylo": {"update_period": 50},
        "mkor": {"inverse_update_period": 10, "factor_update_period": None},
    }
    given = [{"lr": 0.1, **periods.get(label, {})} for label in trained.runs["optimizer"]]
    decision = _decide("C19", replace(trained, runs=trained.runs.assign(hyperparameters=given)))
    assert "Steps between updates: hylo 50, kaisa 10 and 50, mkor 10." in decision.details


@pytest.mark.parametrize(
    ("low", "high", "unreached", "verdict"),
    [
        (0.98, 1.02, 6, "no difference"),
        (0.98, 1.02, 7, "inconclusive"),  # runs that miss a target move a ratio toward 1
        (1.01, 1.02, 64, "inconclusive"),
        (1.01, 1.06, 64, "confirmed"),
        (0.94, 0.99, 64, "refuted"),
        (1.0, 1.0, 0, "inconclusive"),  # a tie in every seed
    ],
)
def test_labels_of_which_many_runs_miss_targets_are_not_called_equal(low, high, unreached, verdict):
    estimate = Estimate(1.0, low, high, 8, "geometric mean", "t", is_ratio=True)
    ratio = SweptRatio(estimate, pairs=64, unreached=unreached, left_out=0, seeds=(0,), studies=0)
    assert part_of("", ratio, conditions("C06")[0]).verdict == verdict


def _curves(label_steps: dict[str, list[tuple[float, float]]]) -> Trained:
    """Return three runs a label of 400 steps, whose losses are lines between (step, loss); evaluated every 20 steps."""
    trained = swept("resnet50_imagenet", {label: [400.0] * 3 for label in label_steps}, steps=400, steps_done=400)
    grid = np.arange(0.0, 401.0, 20)
    rows = []
    for run in trained.runs.to_dict("records"):
        steps, losses = zip(*label_steps[run["optimizer"]], strict=True)
        shared = {name: run[name] for name in trained.metrics if name in run} | {
            "split": "validation",
            "metric": "loss",
        }
        values = np.interp(grid, steps, losses) + 1e-4 * run["seed"]
        rows += [shared | {"step": step, "value": value} for step, value in zip(grid, values, strict=True)]
    return Trained(trained.name, trained.runs, pd.DataFrame(rows, columns=list(trained.metrics)))


SGD_LINE = [(0.0, 5.0), (400.0, 1.0)]
EARLY_LEAD = [(0.0, 5.0), (40.0, 3.0), (400.0, 1.0)]
"""Ahead of SGD at first, beside it at the end."""


def test_where_final_quality_and_the_sweep_disagree_the_reason_says_so():
    """Truth: SGD is at a loss of 1.4 after 360 steps of 15 ms, MKOR after 328 of 18; before, MKOR is far ahead."""
    trained = _curves({"sgd": SGD_LINE, "mkor": EARLY_LEAD})
    decision = _decide("C06", trained, times=step_time(trained.runs, {"sgd": 15.0, "mkor": 18.0}))
    assert (decision.verdict, decision.measured) == ("refuted", f"sgd/mkor: {360 * 15 / (328 * 18):.3g}")
    assert "; sgd/mkor is confirmed in the mean of all targets." in decision.why


def test_what_a_step_may_cost_is_set_against_what_it_costs():
    """Truth: MKOR takes 60 steps where SGD takes 100, so that its step may cost 1.67 times as much."""
    trained = _resnet(sgd=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, 72.0])
    for ms, outcome in ((45.0, "here 1.5: wins"), (60.0, "here 2: loses")):
        details = _decide("C06", trained, times=step_time(trained.runs, {"mkor": ms})).details
        assert f"in multiples of sgd's, < 1.67 [1.67, 1.67], {outcome}." in details


def test_a_run_that_diverged_counts_as_the_worst_there_could_be():
    """Truth: seed 0 of SGD diverged, after it had passed the target: 300 steps in place of 100."""
    trained = _resnet(sgd=[100.0, 100.0, 100.0], mkor=[50.0, 50.0, 50.0])
    runs = trained.runs
    runs.loc[(runs["optimizer"] == "sgd") & (runs["seed"] == 0), "status"] = "diverged"
    decision = _decide("C06", Trained(trained.name, runs, trained.metrics))
    assert decision.measured == f"sgd/mkor: {(300 / 50 * 2 * 2) ** (1 / 3):.3g}"


def test_a_target_below_the_trivial_predictor_decides_nothing():
    """Truth: SGD ends at 4.2; if a constant predicts as well, no target is left."""
    trained = _resnet(sgd=[100.0, 110.0], mkor=[60.0, 66.0])
    for trivial, verdict in ((4.2, "not tested"), (5.0, "confirmed")):
        goal = replace(trained.runs["target"].iloc[0], trivial=trivial)
        runs = trained.runs.assign(target=[goal] * len(trained.runs))
        decision = _decide("C06", Trained(trained.name, runs, trained.metrics))
        assert decision.verdict == verdict
        where = decision.why if verdict == "not tested" else decision.details
        assert f"no better than the trivial predictor's {trivial:g}" in where
