"""Seconds of runs are iterations times the probe's time of a step, if it timed every label of a workload."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.step_times import StepTimes, TimedLabel
from workflow.bench.analysis.training_time import OWN, PROBED, timed


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
