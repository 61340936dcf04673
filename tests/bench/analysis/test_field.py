"""The field: bases, profiles and their intervals, against results whose losses are straight lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic_field import BASES, FIELD, START, STEPS, loss, write_field
from workflow.bench.analysis import field
from workflow.bench.analysis.field import Contest, contests, pooled_profiles, pooled_ratio
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.plan.targets import Target
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.tables import field_results


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Contest]:
    root = write_field(tmp_path_factory.mktemp("results") / "test-cpu" / "field")
    return {contest.experiment: contest for contest in contests(Results(root))}


def test_a_method_is_compared_to_the_base_it_wraps_and_others_to_the_experiments(found):
    assert {name: contest.base for name, contest in found.items()} == BASES
    contest = found["field_autoencoder"]
    assert {label: contest.base_of(label) for label in contest.labels} == {
        "sgd": "sgd",
        "mkor": "sgd",
        "muon": "sgd",
        "mkor_muon": "muon",
        "soap": "sgd",
    }


def test_of_two_labels_of_a_base_the_one_with_the_same_hyperparameters_is_meant():
    given = {
        "muon": ("normuon", {"polar": "ns5", "row_decay": 0.9}),
        "muon_exact": ("normuon", {"polar": "exact", "row_decay": None}),
        "ours": ("mkor_muon", {"base": "normuon", "polar": "exact", "row_decay": None, "factor_decay": 0.9}),
        "theirs": ("mkor_muon", {"base": "normuon", "polar": "ns5", "row_decay": 0.9}),
    }
    runs = pd.DataFrame(
        [{"optimizer": label, "method": method, "hyperparameters": values} for label, (method, values) in given.items()]
    )
    contest = Contest("field_autoencoder", runs, pd.DataFrame(), "muon", sweep=None)
    assert {label: contest.base_of(label) for label in given} == {
        "muon": "muon",
        "muon_exact": "muon",
        "ours": "muon_exact",
        "theirs": "muon",
    }
    assert common_base(runs) is None  # no label is called normuon


def test_a_ratio_over_workloads_is_their_geometric_mean_with_an_interval_over_studies(found):
    """Truth: the lines' slopes, alike in all seeds, so that an interval has no length."""
    names = ["field_autoencoder", "field_language_model"]
    chosen = [found[name] for name in names]
    slopes = {label: [FIELD[name][label] for name in names] for label in ("muon", "soap")}
    truth = np.prod([FIELD[name][BASES[name]] / slope for name, slope in zip(names, slopes["muon"], strict=True)])
    ratio = pooled_ratio(chosen, "muon")
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == pytest.approx((truth**0.5,) * 3 + (3,))
    against = pooled_ratio(chosen, "muon", "soap")
    assert against.value == pytest.approx((np.prod(slopes["soap"]) / np.prod(slopes["muon"])) ** 0.5)
    # A workload with other studies has no value for each of them: the mean stands without an interval.
    fewer = chosen[0].sweep
    courses = {
        label: replace(course, crossings={seed: steps for seed, steps in course.crossings.items() if seed})
        for label, course in fewer.courses.items()
    }
    short = replace(chosen[0], sweep=replace(fewer, courses=courses))
    assert pooled_ratio([short, chosen[1]], "muon").value == pytest.approx(truth**0.5)
    assert not pooled_ratio([short, chosen[1]], "muon").has_interval


def test_steps_ends_and_reached_runs_are_those_of_the_lines(found):
    contest, falls = found["field_language_model"], FIELD["field_language_model"]
    ratio = contest.steps("muon").estimate
    assert ratio.value == pytest.approx(falls["adamw"] / falls["muon"])
    assert contest.last("soap") == dict.fromkeys(range(3), pytest.approx(loss("field_language_model", "soap", STEPS)))
    assert contest.loss_difference("muon").value == pytest.approx((falls["adamw"] - falls["muon"]) / 1000 * STEPS)
    assert contest.reached("soap") == (3, 3)
    assert contest.reached("sgd") == (0, 3)  # it loses nothing


def test_a_label_is_set_beside_its_control_where_both_wrap_one_base(found, monkeypatch):
    """Truth: on lines the ratio of the steps is that of the slopes, inverted."""
    monkeypatch.setattr(field, "CONTROLS", {"soap": "muon", "mkor": "mkor_muon", "muon": "kaisa"})
    contest, falls = found["field_alexnet"], FIELD["field_alexnet"]
    assert contest.over_control("soap").value == pytest.approx(falls["muon"] / falls["soap"])
    assert contest.over_control("mkor") is None  # SGD's and Muon's
    assert contest.over_control("muon") is None  # not run
    assert contest.over_control("sgd") is None


def test_times_of_simulated_devices_are_left_out(found):
    runs = found["field_alexnet"].runs.assign(method="thermo_kfac")
    contest = Contest("field_alexnet", runs, pd.DataFrame(), "sgd", found["field_alexnet"].sweep)
    assert contest.time("mkor", StepTimes(pd.DataFrame())) == "simulated"


def test_a_profile_is_the_mean_over_workloads_and_its_interval_draws_them(found):
    """Truth: on a line, the factor of a label is the ratio of the best label's slope to its own, at every target."""
    names = ["field_autoencoder", "field_language_model"]
    grid = np.linspace(1, 8, 500)
    profiles = pooled_profiles([found[name] for name in names], grid)
    assert set(profiles) == set(FIELD[names[0]]) & set(FIELD[names[1]])
    factors = [max(FIELD[name].values()) / FIELD[name]["mkor"] for name in names]
    np.testing.assert_allclose(profiles["mkor"].share, np.mean([grid >= factor - 1e-9 for factor in factors], axis=0))
    between = (grid > min(factors) + 0.01) & (grid < max(factors) - 0.01)
    assert set(profiles["mkor"].low[between]) == {0.0}  # only the one workload is drawn in a quarter of the draws
    assert set(profiles["mkor"].high[between]) == {1.0}
    outside = grid > max(factors) + 0.01
    assert set(profiles["mkor"].low[outside]) == {1.0}


def test_a_label_that_no_target_is_reached_by_solves_nothing(found):
    assert loss("field_language_model", "sgd", STEPS) == START
    assert pooled_profiles([found["field_language_model"]], np.array([1.0, 100.0]))["sgd"].share.tolist() == [0, 0]


def test_without_runs_there_is_nothing_to_compare(tmp_path: Path):
    with pytest.raises(NoDataError, match="run make field first"):
        contests(Results(tmp_path))


def test_the_last_targets_stand_beside_all(found):
    """Truth: on lines every target has the same ratio; there are eight, and three are the last."""
    contest, falls = found["field_language_model"], FIELD["field_language_model"]
    last = contest.steps("muon", 3)
    assert (contest.steps("muon").pairs, last.pairs) == (24, 9)
    assert last.estimate.value == pytest.approx(falls["adamw"] / falls["muon"])


def test_a_run_that_diverged_is_infinitely_bad_and_not_left_out(found):
    """Truth: of three seeds one diverged, so that a mean does not exist, and the median is the others'."""
    contest = found["field_autoencoder"]
    broken = (contest.runs["optimizer"] == "mkor") & (contest.runs["seed"] == 1)
    spoiled = replace(contest, runs=contest.runs.assign(status=contest.runs["status"].mask(broken, "diverged")))
    end, difference = spoiled.end("mkor"), spoiled.loss_difference("mkor")
    assert (end.n, end.statistic, difference.n, difference.statistic) == (3, "median", 3, "median")
    assert difference.value == pytest.approx(contest.loss_difference("mkor").value)
    assert (contest.reached("mkor"), spoiled.reached("mkor")) == ((3, 3), (2, 3))  # what it had reached it did not keep
    most = (contest.runs["optimizer"] == "mkor") & (contest.runs["seed"] > 0)
    lost = replace(contest, runs=contest.runs.assign(status=contest.runs["status"].mask(most, "diverged")))
    row = field_results._row(lost, "mkor", StepTimes(pd.DataFrame()))
    assert (row["end"], row["end - base"]) == ("inf", "inf")
    goal = Target("validation", "loss", "above", 0.9)
    rising = replace(spoiled.sweep, targets={0.9: goal})
    assert replace(spoiled, sweep=rising).last("mkor")[1] == -np.inf  # of an accuracy, the worst is below all


def test_intervals_of_ends_hold_the_tuning_studies(found):
    contest = found["field_autoencoder"]
    studied = replace(contest, runs=contest.runs.assign(study=contest.runs["seed"] % 2))
    assert (contest.end("mkor").n, studied.end("mkor").n) == (3, 2)
    assert studied.loss_difference("mkor").n == 2
