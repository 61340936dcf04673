"""Tuning: equal numbers of trials, the best by the metric or the target, divergence recorded, broken-off searches."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.experiments import block, load, make_folder, optimizer, options, rows, write
from tests.support.records import read_metrics
from workflow.bench import tune
from workflow.bench.plan.runs import Run, Trial
from workflow.bench.plan.targets import Target
from workflow.bench.plan.tuning import Ranking
from workflow.bench.results.rows import run_rows
from workflow.bench.results.trials import Score, best_of
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.training.record import RunFolder
from workflow.bench.training.stop_signals import EXIT_RESUMABLE

TUNING: dict[str, Any] = {
    "trials": 3,
    "studies": 2,
    "seed": 9,
    "metric": {"split": "validation", "metric": "loss"},
    "space": {"lr": {"log": [0.001, 10.0]}},
}
LOWEST, HIGHEST = (Ranking("validation", "loss", highest) for highest in (False, True))


def score(value: float, steps: float | None = None) -> Score:
    return Score(Trial(Run({"value": str(value)}), {}), "finished", value, steps)


def test_the_best_is_the_first_of_equals_and_never_one_that_did_not_finish():
    scores = [score(math.nan), score(0.5), score(0.2), score(0.2), score(math.inf)]
    assert best_of(scores, LOWEST) is scores[2]
    assert best_of(scores, HIGHEST) is scores[1]
    assert best_of([score(math.nan)], LOWEST) is None


def test_the_best_by_a_target_reached_it_first():
    target = Ranking.parse("target", Target("validation", "loss", "below", 0.3))
    scores = [score(0.1, 30.0), score(0.25, 12.5), score(0.05, 40.0), score(math.nan, 5.0), score(0.2, 12.5)]
    assert best_of(scores, target) is scores[1]
    assert best_of([score(0.5), score(0.4), score(0.3, 99.0)], target) is not None
    short = [score(0.5), score(0.4), score(0.45)]
    assert best_of(short, target) is short[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """SGD and MKOR with tuned learning rates; MKOR sweeps its period; wild diverges at two of three rates."""
    made = make_folder(tmp_path / "config")
    swept = {**optimizer("mkor", lr="tuned"), "sweep": {"inverse_update_period": [5, 10]}}
    wild = {**optimizer("sgd", "wild", lr="tuned"), "space": {"lr": {"choices": [0.2, 1e30, 1e35]}}}
    write(made, "one", block(optimizer("sgd", lr="tuned"), swept, wild, seeds=[0, 1, 2], tuning=TUNING))
    return made


def call(folder: Path, *words: str) -> int:
    return tune.main([*words, "--jobs=1", *options(folder)])


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "tuned" / "embedded").iterdir()}


def test_tune_writes_the_best_trial_of_each_study_and_the_plan_takes_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert call(folder, "one") == 0
    said = capsys.readouterr()
    plan = load(folder)
    assert plan.notes == ()
    # Three trials in each of two studies, of three optimizers.
    assert said.out.startswith("one at tier embedded: 18 trials of 3 optimizers in 2 studies, 0 done; 1 process\n")

    trials = rows(folder / "tuned" / "embedded" / "one.trials.csv")
    assert [row["optimizer"] for row in trials] == ["sgd"] * 6 + ["mkor"] * 6 + ["wild"] * 6
    assert [(row["study"], row["seed"]) for row in trials] == ([("0", "9")] * 3 + [("1", "10")] * 3) * 3
    assert [row["values"] for row in trials[:6]] == [row["values"] for row in trials[6:12]]  # the same space
    assert said.err.count("finished after") + said.err.count("diverged after") == len({row["run"] for row in trials})
    assert "diverged" in {row["status"] for row in trials[12:]}
    assert all(row["score"] == "" for row in trials if row["status"] == "diverged")
    assert {row["steps_to_target"] for row in trials} == {""}
    for row in trials:  # truth: the last validation loss in the trial's own file
        last = read_metrics(RunFolder.of(plan.results, row["run"]))[-1]
        if row["status"] == "finished":
            assert (last["step"], last["split"], last["value"]) == ("20", "validation", row["score"])
    for label in ("sgd", "mkor", "wild"):
        for study in (0, 1):
            mine = [row for row in trials if (row["optimizer"], row["study"]) == (label, str(study))]
            finished = [row for row in mine if row["status"] == "finished"]
            best = min(finished, key=lambda row: float(row["score"]))
            assert [row for row in mine if row["chosen"] == "true"] == [best]
            of_study = [planned for planned in plan.job("one", label).planned if planned.study == study]
            assert {planned.run.seed for planned in of_study} == ({0, 2} if study == 0 else {1})
            assert {planned.run.hyperparameters["lr"] for planned in of_study} == {json.loads(best["values"])["lr"]}
    assert len(plan.job("one", "mkor").runs) == 6
    studies = {(row["seed"], row["study"], row["tuned"]) for row in run_rows(plan, plan.job("one", "sgd"))}
    assert studies == {(0, 0, True), (1, 1, True), (2, 0, True)}

    before = files_of(folder)
    assert call(folder, "one") == 0
    said = capsys.readouterr()
    assert "finished after" not in said.err
    assert said.out.startswith("one at tier embedded: 18 trials of 3 optimizers in 2 studies, 18 done; 1 process\n")
    assert files_of(folder) == before


def test_trials_are_ranked_by_their_steps_to_the_target(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Truth: the target's crossing in the trials' own files."""
    target = {"split": "validation", "metric": "loss", "below": 0.15}
    space = {"lr": {"log": [0.05, 5.0]}, "momentum": {"choices": [0.0, 0.9]}}
    tuning = TUNING | {"trials": 4, "metric": "target", "space": space}
    sgd = optimizer("sgd", lr="tuned", momentum="tuned")
    write(folder, "one", block(sgd, target=target, evaluate_every=2, tuning=tuning))
    assert call(folder, "one") == 0
    plan = load(folder)
    for study in "01":
        trials = [row for row in rows(folder / "tuned" / "embedded" / "one.trials.csv") if row["study"] == study]
        steps = []
        for row in trials:
            assert json.loads(row["values"]).keys() == {"lr", "momentum"}
            crossing = Target.parse(target).crossing(read_metrics(RunFolder.of(plan.results, row["run"])))
            assert row["steps_to_target"] == (str(crossing.step) if crossing else "")
            steps.append(crossing.step if crossing else math.inf)
        assert len(set(steps)) > 1
        assert [row["chosen"] for row in trials].index("true") == steps.index(min(steps))
    (record,) = yaml.safe_load((folder / "tuned" / "embedded" / "one.yaml").read_text())
    assert record["studies"][1]["steps_to_target"] == min(steps)
    assert " steps to the target" in capsys.readouterr().out


def test_a_search_that_broke_off_before_its_first_result_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    from workflow.bench.training.runner import Runner

    with monkeypatch.context() as patched:
        patched.setattr(Runner, "train", lambda *_: False)
        assert call(folder, "one") == EXIT_RESUMABLE
    assert call(folder, "one", "--label", "sgd") == 0
    (record,) = yaml.safe_load((folder / "tuned" / "embedded" / "one.yaml").read_text())
    assert record["label"] == "sgd"


def test_labels_are_tuned_one_by_one_and_a_broken_off_search_keeps_what_is_complete(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """What the file says about an optimizer of which trials are missing stays, with its trials' rows."""
    assert call(folder, "one") == 0
    complete = files_of(folder)
    capsys.readouterr()
    content = yaml.safe_load((folder / "experiments" / "one.yaml").read_text())
    content["tiers"]["embedded"][0]["tuning"]["trials"] = 4
    (folder / "experiments" / "one.yaml").write_text(yaml.safe_dump(content))
    assert call(folder, "one", "--label", "sgd") == 0
    said = capsys.readouterr()
    assert said.err.count("finished after") == 2
    assert "autoencoder, mkor: 2 of 8 trials have not ended; its record is unchanged\n" in said.out
    found = rows(folder / "tuned" / "embedded" / "one.trials.csv")
    assert [row["optimizer"] for row in found] == ["sgd"] * 8 + ["mkor"] * 6 + [
        "wild"
    ] * 8  # its new trials repeat old ones
    before, after = (yaml.safe_load(text) for text in (complete["one.yaml"], files_of(folder)["one.yaml"]))
    assert after[1] == before[1]
    assert [len(study["trials"]) for study in after[0]["studies"]] == [4, 4]

    # Asked to stop before the first trial of the rest.
    from workflow.bench.training.runner import Runner

    monkeypatch.setattr(Runner, "train", lambda *_: False)
    tuned = files_of(folder)
    assert call(folder, "one") == EXIT_RESUMABLE
    assert files_of(folder) == tuned
    assert capsys.readouterr().err == "interrupted and saved; the same command resumes it\n"


def test_a_variant_of_a_workload_has_values_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A plain workload states less than a variant of it does, and is another one all the same."""
    plain = block(optimizer("sgd", lr="tuned"), seeds=[0, 1], tuning=TUNING)
    centred = {**plain, "workload": {**plain["workload"], "centred_inputs": True}}
    write(folder, "one", plain)
    assert call(folder, "one") == 0
    write(folder, "one", plain, centred)
    from workflow.bench.training.runner import Runner

    tuned = files_of(folder)
    with monkeypatch.context() as patched:
        patched.setattr(Runner, "train", lambda *_: False)
        assert call(folder, "one") == EXIT_RESUMABLE
    assert files_of(folder) == tuned
    with pytest.raises(ConfigError, match="no value for this workload and label"):
        load(folder).job("one", "sgd")

    assert call(folder, "one", "--missing") == 0
    records = yaml.safe_load((folder / "tuned" / "embedded" / "one.yaml").read_text())
    assert [record["workload"].get("centred_inputs") for record in records] == [None, True]
    plan = load(folder)
    assert plan.notes == ()
    for planned in plan.job("one", "sgd").planned:
        record = records[bool(planned.run.spec["workload"].get("centred_inputs"))]
        assert planned.run.hyperparameters["lr"] == record["studies"][planned.study]["hyperparameters"]["lr"]


def test_missing_skips_optimizers_whose_values_another_machine_tuned(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert call(folder, "one", "--label", "sgd") == 0
    shutil.rmtree(load(folder).results)  # config/tuned is committed, the results stay on the machine that made them
    capsys.readouterr()
    assert call(folder, "one", "--missing") == 0
    assert capsys.readouterr().out.startswith("one at tier embedded: 12 trials of 2 optimizers in 2 studies, 0 done")
    pieced = files_of(folder)
    assert call(folder, "one") == 0
    assert files_of(folder) == pieced
    capsys.readouterr()
    assert call(folder, "one", "--missing") == 0
    assert capsys.readouterr().out.startswith("one at tier embedded: nothing to tune\n")

    # Values of other trials are not today's.
    values = yaml.safe_load((folder / "tuned" / "embedded" / "one.yaml").read_text())
    values[0]["studies"][0]["trials"].reverse()
    (folder / "tuned" / "embedded" / "one.yaml").write_text(yaml.safe_dump(values))
    assert call(folder, "one", "--missing") == 0
    assert capsys.readouterr().out.startswith("one at tier embedded: 6 trials of 1 optimizer in 2 studies, 6 done")


def test_several_processes_share_the_trials_and_stop_when_asked(folder: Path):
    """Truth: the files that one process writes."""
    write(folder, "one", block(optimizer("sgd", lr="tuned"), steps=20_000, tuning=TUNING))
    command = [sys.executable, "-m", "workflow.bench.tune", "one", "--jobs=2", *options(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    results = folder.parent / "results" / "test" / "embedded" / "runs"
    while len(list(results.glob("*/metrics.csv"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == EXIT_RESUMABLE, said
    assert said.count("interrupted after") == 2
    assert "run 1 of 6: " in said
    assert "run 2 of 6: " in said
    assert said.endswith("interrupted and saved; the same command resumes it\n")
    assert len(list(results.glob("*/checkpoint.pt"))) == 2
    assert not (folder / "tuned" / "embedded" / "one.yaml").exists()


def test_a_number_in_the_experiments_file_wins_and_tune_says_so(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd", lr=0.3), tuning=TUNING))
    assert call(folder, "one") == 0
    said = capsys.readouterr().out
    assert "autoencoder, sgd: not in use, the experiment's file gives lr; write 'tuned' there\n" in said
    (planned,) = load(folder).job("one", "sgd").planned
    assert planned.run.hyperparameters["lr"] == 0.3
    assert planned.study is None


def test_what_cannot_be_tuned_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "two", block(optimizer("sgd")))
    assert tune.main(["two", *options(folder)]) == 1
    assert capsys.readouterr().err == "experiment = 'two': has no 'tuning' with a 'space' at this tier\n"
    assert not (folder / "tuned").exists()


def test_a_tuned_value_out_of_range_is_one_line(folder: Path):
    assert call(folder, "one") == 0
    file = folder / "tuned" / "embedded" / "one.yaml"
    file.write_text(file.read_text().replace("hyperparameters: {lr: ", "hyperparameters: {lr: -"))
    with pytest.raises(
        ConfigError, match=r"one\.yaml: \[0\]\.studies\[0\]\.hyperparameters\.lr = -.*: must be greater than 0"
    ):
        load(folder)
