"""From runs to the two tidy tables, with columns that figures rely on; every run is a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import records
from tests.support.experiments import block, load, make_folder, optimizer, options, rows, write
from workflow.bench import aggregate, train
from workflow.bench.plan import Plan
from workflow.bench.plan.targets import Target
from workflow.bench.results.rows import run_rows
from workflow.bench.support.provenance import package_versions
from workflow.bench.support.source_code import code_fingerprint
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.record import RunFolder

TARGET = {"split": "validation", "metric": "loss", "below": 0.178}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three optimizers, trained and aggregated: one learns, one does not reach the target, one diverges."""
    config = make_folder(tmp_path_factory.mktemp("aggregate") / "config")
    learns = {**optimizer("mkor", lr=1.0), "sweep": {"inverse_update_period": [5, 10]}}
    write(
        config,
        "one",
        block(
            learns, optimizer("sgd", "slow", lr=1e-6), optimizer("sgd", "wild", lr=1e30), target=TARGET, seeds=[0, 1]
        ),
    )
    for label in ("mkor", "slow", "wild"):
        assert train.main(["one", label, *options(config)]) == 0
    assert aggregate.main(["one", *options(config)]) == 0
    return config


@pytest.fixture
def plan(folder: Path) -> Plan:
    return load(folder)


def test_evaluations_are_tidy(plan: Plan):
    evaluations = rows(plan.results / "one.csv")
    columns = (
        "experiment,optimizer,method,update_rule,inverse_update_period,seed,workload,run,status,"
        "step,epoch,split,metric,value,lr,train_seconds,wall_seconds"
    )
    assert ",".join(evaluations[0]) == columns
    assert {row["run"] for row in evaluations} == set(plan.runs)
    for row in evaluations:
        run = plan.runs[row["run"]]
        assert (row["seed"], row["method"], row["workload"]) == (str(run.seed), run.method, "autoencoder")
        assert row["update_rule"] == run.hyperparameters.get("update_rule", "")
        assert row["inverse_update_period"] == str(run.hyperparameters.get("inverse_update_period", ""))
        assert row["status"] == ("diverged" if row["optimizer"] == "wild" else "finished")


def test_every_value_is_found_again_in_its_run(plan: Plan):
    """Truth: the run's own metrics.csv."""
    evaluations = rows(plan.results / "one.csv")
    for run in plan.runs:
        of_run = [row for row in evaluations if row["run"] == run]
        recorded = rows(RunFolder.of(plan.results, run).metrics)
        assert [{key: row[key] for key in recorded[0]} for row in of_run] == recorded


def test_runs_tell_outcome_target_time_and_provenance(plan: Plan):
    runs = {row["run"]: row for row in rows(plan.results / "one.runs.csv")}
    assert runs.keys() == plan.runs.keys()
    for run, row in runs.items():
        summary = json.loads(RunFolder.of(plan.results, run).summary.read_text())
        assert json.loads(row["hyperparameters"]) == plan.runs[run].hyperparameters
        assert json.loads(row["target"]) == TARGET
        assert (row["tier"], row["hardware"], row["tuned"], row["study"]) == ("embedded", "test", "false", "")
        assert row["start_from"] == ""
        assert row["steps"] == "20"
        seconds = [float(row[f"seconds_{phase}"]) for phase in PHASES]
        assert sum(seconds) == pytest.approx(float(row["wall_seconds"]))
        assert float(row["train_seconds"]) < float(row["wall_seconds"])
        assert row["code_current"] == "true"
        assert row["code_fingerprint"] == code_fingerprint(plan.runs[run].lineage)
        assert row["torch"] == package_versions()["torch"]
        assert row["cpu"]
        assert row["gpu"] == ""
        assert row["data_fingerprint"] == summary["data_fingerprint"]
        match row["optimizer"]:
            case "mkor":
                assert (row["status"], row["reason"], row["steps_done"]) == ("finished", "", "20")
                assert int(row["preconditioner_bytes"]) > 0
                reached = Target.parse(TARGET).first_reached(rows(RunFolder.of(plan.results, run).metrics))
                assert reached is not None
                assert (int(row["steps_to_target"]), float(row["seconds_to_target"])) == reached
                crossing = Target.parse(TARGET).crossing(rows(RunFolder.of(plan.results, run).metrics))
                assert (float(row["crossing_step"]), float(row["crossing_seconds"])) == crossing
            case "slow":
                assert (row["status"], row["steps_to_target"], row["seconds_to_target"]) == ("finished", "", "")
                assert row["preconditioner_bytes"] == "0"
            case "wild":
                assert row["status"] == "diverged"
                assert row["reason"]
                assert int(row["steps_done"]) < 20


def test_older_code_is_marked(plan: Plan, folder: Path):
    run = plan.job("one", "slow").run_ids[0]
    folder_of_run = RunFolder.of(plan.results, run)
    before = folder_of_run.summary.read_text()
    records.rewrite(folder_of_run, code_fingerprint="0" * 16)
    try:
        aggregate.main(["one", *options(folder)])
        marks = {row["run"]: row["code_current"] for row in rows(plan.results / "one.runs.csv")}
        assert marks.pop(run) == "false"
        assert set(marks.values()) == {"true"}
    finally:
        folder_of_run.summary.write_text(before)
        aggregate.main(["one", *options(folder)])


def test_aggregating_twice_gives_the_same_bytes(plan: Plan, folder: Path):
    before = [(plan.results / name).read_bytes() for name in ("one.csv", "one.runs.csv")]
    assert aggregate.main(["one", *options(folder)]) == 0
    assert [(plan.results / name).read_bytes() for name in ("one.csv", "one.runs.csv")] == before


def test_a_stale_or_absent_csv_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd")))
    assert aggregate.main(["one", *options(folder)]) == 1
    assert "one/sgd.csv: does not exist yet; run python -m workflow.bench.train one sgd\n" in capsys.readouterr().err
    assert train.main(["one", "sgd", *options(folder)]) == 0
    write(folder, "one", block(optimizer("sgd"), seeds=[0, 1]))
    capsys.readouterr()
    assert aggregate.main(["one", *options(folder)]) == 1
    assert "one/sgd.csv: its runs are not the planned ones; run " in capsys.readouterr().err
    assert not (load(folder).results / "one.csv").exists()


def test_a_reason_is_one_line_whatever_the_error_said(tmp_path: Path):
    config = make_folder(tmp_path / "config")
    write(config, "one", block(optimizer("sgd")))
    plan = load(config)
    (run,) = plan.runs.values()
    records.put(RunFolder.of(plan.results, run.id), run, "failed", reason="OSError: \x1b[2J\u2028.. raw:: html\ttab")
    (row,) = run_rows(plan, plan.job("one", "sgd"))
    assert row["reason"] == "OSError: \\x1b[2J\\u2028.. raw:: html\\ttab"
