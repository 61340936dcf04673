"""Tuning: equal numbers of trials, the best by the metric, divergence recorded, finished trials reused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, options, rows, write
from tests.support.records import read_metrics
from workflow.bench import tune
from workflow.bench.plan.runs import Run, Trial
from workflow.bench.support.config import ConfigError
from workflow.bench.training.record import RunFolder
from workflow.bench.tune import Score, best_of

TUNING: dict[str, Any] = {
    "trials": 3,
    "seed": 9,
    "metric": {"split": "validation", "metric": "loss"},
    "space": {"lr": {"log": [0.001, 10.0]}},
}


def score(value: float) -> Score:
    return Score(Trial(Run({"value": str(value)}), {}), "finished", value)


def test_the_best_is_the_first_of_equals_and_never_one_that_did_not_finish():
    scores = [score(math.nan), score(0.5), score(0.2), score(0.2), score(math.inf)]
    assert best_of(scores, "lowest") is scores[2]
    assert best_of(scores, "highest") is scores[1]
    assert best_of([score(math.nan)], "lowest") is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """SGD and MKOR with tuned learning rates; MKOR sweeps its period; wild diverges at all rates but the lowest."""
    made = make_folder(tmp_path / "config")
    swept = {**optimizer("mkor", lr="tuned"), "sweep": {"inverse_update_period": [5, 10]}}
    wild = {**optimizer("sgd", "wild", lr="tuned"), "space": {"lr": {"choices": [0.2, 1e30, 1e35]}}}
    write(made, "one", block(optimizer("sgd", lr="tuned"), swept, wild, tuning=TUNING))
    return made


def test_tune_writes_the_best_trial_of_each_and_the_plan_takes_it(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert tune.main(["one", *options(folder)]) == 0
    said = capsys.readouterr()
    assert said.err.count("finished after") + said.err.count("diverged after") == 9
    plan = load(folder)
    assert plan.notes == ()

    trials = rows(folder / "tuned" / "embedded" / "one.trials.csv")
    assert [row["optimizer"] for row in trials] == ["sgd"] * 3 + ["mkor"] * 3 + ["wild"] * 3
    assert [json.loads(row["values"])["lr"] for row in trials] == [0.001, 0.1, 10.0] * 2 + [0.2, 1e30, 1e35]
    assert {row["seed"] for row in trials} == {"9"}
    assert [row["status"] for row in trials[6:]] == ["finished", "diverged", "diverged"]
    assert [row["score"] for row in trials[7:]] == ["", ""]
    for label in ("sgd", "mkor", "wild"):
        mine = [row for row in trials if row["optimizer"] == label]
        finished = [row for row in mine if row["status"] == "finished"]
        for row in finished:  # truth: the last validation loss in the trial's own file
            last = read_metrics(RunFolder.of(plan.results, row["run"]))[-1]
            assert (last["step"], last["split"], last["value"]) == ("20", "validation", row["score"])
        best = min(finished, key=lambda row: float(row["score"]))
        assert [row for row in mine if row["chosen"] == "true"] == [best]
        job = plan.job("one", label)
        assert {run.hyperparameters["lr"] for run in job.runs} == {json.loads(best["values"])["lr"]}
        assert all(planned.tuned for planned in job.planned)
    assert len(plan.job("one", "mkor").runs) == 2
    assert "lr = 10.0 is at an end of its space; widen it" in said.out

    before = {file.name: file.read_bytes() for file in (folder / "tuned" / "embedded").iterdir()}
    assert tune.main(["one", *options(folder)]) == 0
    assert capsys.readouterr().err.count("done before") == 9
    assert {file.name: file.read_bytes() for file in (folder / "tuned" / "embedded").iterdir()} == before


def test_a_number_in_the_experiments_file_wins_and_tune_says_so(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd", lr=0.3), tuning=TUNING))
    assert tune.main(["one", *options(folder)]) == 0
    said = capsys.readouterr().out
    assert "autoencoder, sgd: not in use, the experiment's file gives lr; write 'tuned' there\n" in said
    (planned,) = load(folder).job("one", "sgd").planned
    assert planned.run.hyperparameters["lr"] == 0.3
    assert not planned.tuned


def test_what_cannot_be_tuned_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "two", block(optimizer("sgd")))
    assert tune.main(["two", *options(folder)]) == 1
    assert capsys.readouterr().err == "experiment = 'two': has no 'tuning' with a 'space' at this tier\n"
    assert not (folder / "tuned").exists()


def test_a_tuned_value_out_of_range_is_one_line(folder: Path):
    assert tune.main(["one", *options(folder)]) == 0
    file = folder / "tuned" / "embedded" / "one.yaml"
    file.write_text(file.read_text().replace("hyperparameters: {lr: 10.0}", "hyperparameters: {lr: -1}"))
    with pytest.raises(ConfigError, match=r"one\.yaml: \[0\]\.hyperparameters\.lr = -1: must be greater than 0"):
        load(folder)
