"""The listing of runs that are done, running and left."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support import records
from tests.support.experiments import block, load, optimizer, options, write
from workflow.bench import plan as planning
from workflow.bench import status, train
from workflow.bench.plan import Plan
from workflow.bench.results import costs
from workflow.bench.support.config import ROOT
from workflow.bench.support.files import locked, write_json
from workflow.bench.training.record import RunFolder, Status


@pytest.fixture(autouse=True)
def _no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not depend on the reference results in the repository."""
    monkeypatch.setattr(planning.plan, "REFERENCE", tmp_path / "reference")
    monkeypatch.setattr(status, "REFERENCE", tmp_path / "reference")


def test_every_run_is_in_one_state(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "one", block(optimizer("sgd"), optimizer("sgd", "wild", lr=1e30), seeds=[0, 1]))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    assert train.main(["one", "wild", "--seed", "1", *options(folder)]) == 0
    plan = load(folder)
    older = RunFolder.of(plan.results, plan.job("one", "sgd").run_ids[0])
    records.rewrite(older, code_fingerprint="0")
    capsys.readouterr()
    assert status.main(["--optimizers", *options(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"embedded tier on {plan.hardware}: {plan.results}"
    assert said[2] == "one/sgd: 1 by older code, 2 finished"
    assert said[3].startswith("one/wild: 1 diverged, 1 left; about ")
    assert [line.split()[:4] for line in said[5:7]] == [
        ["experiment", "runs", "done", "running"],
        ["one", "4", "3", "1"],
    ]
    assert "of the runs that are done: 1 diverged" in said
    assert "by older code: 1 (make refresh trains them again)" in said
    with locked(RunFolder.of(plan.results, plan.job("one", "wild").run_ids[0]).lock):
        status.main(["--optimizers", *options(folder)])
    assert "one/wild: 1 diverged, 1 running; about " in capsys.readouterr().out


@pytest.fixture
def plan(folder: Path) -> Plan:
    """Three optimizers, two seeds each, 20 steps; nothing is trained."""
    write(folder, "one", block(optimizer("sgd"), optimizer("mkor"), optimizer("kaisa"), seeds=[0, 1]))
    return load(folder)


def put(plan: Plan, label: str, seed: int, state: Status, **of_record: Any) -> RunFolder:
    """Write a run's record."""
    run = plan.job("one", label).runs[seed]
    folder = RunFolder.of(plan.results, run.id)
    records.put(folder, run, state, **of_record)
    return folder


def finish(plan: Plan, *runs: tuple[str, int, float]) -> None:
    """Write the records of finished runs: label, seed, seconds."""
    for label, seed, seconds in runs:
        put(plan, label, seed, "finished", steps=20, seconds=seconds)


def left(plan: Plan, elsewhere: Mapping[tuple[str, ...], float] | None = None) -> status.TimeLeft:
    """Return the time left for the whole plan."""
    runs = [run for job in plan.jobs for run in status.states(plan, job)]
    return status.Pace(runs, elsewhere).time_left(runs)


def test_time_left_follows_finished_runs_of_the_label_else_of_the_workload(plan):
    """Truth: by hand. SGD takes 0.5 s per step, MKOR 1 s, and KAISA, which has no run, their mean."""
    finish(plan, ("sgd", 0, 10.0), ("mkor", 0, 20.0))
    assert left(plan) == status.TimeLeft(20 * 0.5 + 20 * 1.0 + 2 * 20 * 0.75, unknown=0)


def test_a_checkpoint_counts_and_what_broke_off_without_one_begins_anew(plan):
    finish(plan, ("sgd", 0, 10.0), ("sgd", 1, 10.0), ("mkor", 0, 20.0), ("kaisa", 0, 40.0), ("kaisa", 1, 40.0))
    begun = RunFolder.of(plan.results, plan.job("one", "mkor").run_ids[1])
    records.evaluated(begun, 15)
    assert left(plan).seconds == pytest.approx(20.0)
    begun.checkpoint.write_bytes(b"")
    assert left(plan).seconds == pytest.approx(5.0)
    (state,) = (found for found in status.states(plan, plan.job("one", "mkor")) if found.run.seed == 1)
    assert (state.state, state.steps_done) == ("interrupted", 15)


@pytest.mark.parametrize("slower", [0.5, 1.0, 1.5, 3.0])
def test_what_runs_took_here_corrects_the_times_of_other_machines(plan, slower):
    """Truth: this machine takes ``slower`` times as long; after ten minutes of runs that is known within 25 %."""
    elsewhere = {
        ("one", label, "autoencoder"): pace for label, pace in (("sgd", 10.0), ("mkor", 20.0), ("kaisa", 40.0))
    }
    assert left(plan, elsewhere) == status.TimeLeft(2 * 20 * 70.0, 0, borrowed=6)
    finish(plan, ("sgd", 0, slower * 200), ("mkor", 0, slower * 400))
    truth = slower * 20 * (10 + 20 + 2 * 40)
    assert left(plan, elsewhere) == (pytest.approx(truth, rel=0.25), 0, 2)
    # Runs that another machine trained tell nothing of this one.
    for label in ("sgd", "mkor"):
        write_json(RunFolder.of(plan.results, plan.job("one", label).run_ids[0]).origin, "elsewhere")
    assert left(plan, elsewhere).seconds == 20 * (10 + 20 + 2 * 40)


def test_machines_with_as_many_cores_count_first(plan, monkeypatch, tmp_path):
    monkeypatch.setattr(costs, "usable_cores", lambda: 2)
    folders = [tmp_path / name / "embedded" for name in ("a-4-cores", "b-2-cores", "c-12-cores", "d-gpu")]
    for seconds, folder in enumerate(folders, start=1):
        write_table(folder, {"run": "a", "optimizer": "sgd", "wall_seconds": 20.0 * seconds})
        (folder / "costs.csv").write_text(f"{','.join(costs.JobCost._fields)}\nsizes,,{seconds},,\n")
    compared = dataclasses.replace(plan, compared=tuple(folders))
    assert [folder.parent.name for folder in costs.nearest_first(folders)][:2] == ["b-2-cores", "a-4-cores"]
    assert status.paces_elsewhere(compared) == {("one", "sgd", "autoencoder"): 2.0}
    assert costs.kept_costs(compared)["sizes"].core_seconds == 2


def test_what_nothing_tells_the_time_of_is_said(plan, capsys, tmp_path):
    put(plan, "sgd", 0, "diverged", steps=3, seconds=1.0)
    assert left(plan) == status.TimeLeft(0.0, unknown=5)
    assert status.main(options(tmp_path / "config")) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("unknown: the time of 5 runs, because ")


def write_table(folder: Path, *rows: dict[str, Any]) -> None:
    """Write a reference's table of runs, of the columns that an estimate reads."""
    folder.mkdir(parents=True)
    given = {"experiment": "one", "workload": "autoencoder", "status": "finished", "steps_done": 20}
    pd.DataFrame([{**given, **row} for row in rows]).to_csv(folder / "one.runs.csv", index=False)


def test_without_runs_the_time_is_that_of_other_machines(plan, tmp_path):
    """Truth: by hand. A label's pace counts at this tier alone, that of a workload at any if its parameters agree."""
    embedded, evidence = (tmp_path / "reference" / "other-cpu" / tier for tier in ("embedded", "evidence"))
    write_table(embedded, {"run": "a", "optimizer": "sgd", "wall_seconds": 40.0})
    write_table(
        evidence,
        {"run": "b", "optimizer": "mkor", "wall_seconds": 60.0},
        {"run": "c", "optimizer": "mkor", "wall_seconds": 600.0},
        {"run": "d", "optimizer": "kaisa", "wall_seconds": "damaged"},
    )
    workload = plan.job("one", "sgd").runs[0].spec["workload"]
    specs = {"b": {"workload": workload}, "c": {"workload": {**workload, "batch_size": 7}}}
    (evidence / "specs.json").write_text(json.dumps(specs))
    compared = dataclasses.replace(plan, compared=(embedded,))
    elsewhere = status.paces_elsewhere(compared)
    assert left(plan, elsewhere) == status.TimeLeft(20 * (2 * 2.0 + 4 * 3.0), unknown=0, borrowed=6)
    finish(plan, ("sgd", 0, 10.0))
    assert left(plan, elsewhere) == status.TimeLeft(20 * 5 * 0.5, 0)


def test_probes_and_figures_take_what_another_machine_recorded(plan, capsys, tmp_path, monkeypatch):
    """Truth: by hand, on 2 cores: 30 s alone, 8 s shared by 2 cores, and the figures that are left."""
    (tmp_path / "other-cpu").mkdir()
    (tmp_path / "other-cpu" / "costs.csv").write_text(
        "name,runs,core_seconds,seconds_alone,peak_mb\ncost_scaling,,,30,\nsizes,,8,,\nmemory,,99,,\nfigures,,40,,\n"
    )
    monkeypatch.setattr(status, "usable_cores", lambda: 2)
    made = {"probes": {"cost_scaling": False, "sizes": False, "memory": True}, "figures": {"a": True, "b": False}}
    compared = dataclasses.replace(plan, compared=(tmp_path / "other-cpu",))
    found = status.seconds_elsewhere({**made, "tables": {}}, compared)
    assert found == {"probes": 34.0, "figures and tables": 10.0}


def test_the_report_ends_quietly_where_nobody_reads_on():
    """Truth: as `head` does, this reads one line and closes the pipe; what is written is larger than its buffer."""
    code = "from workflow.bench.support.command_line import show; show(map(str, range(100_000)))"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_failed_runs_stand_with_their_reason_and_what_else_is_left_by_name(plan, capsys, tmp_path):
    put(plan, "mkor", 1, "failed", steps=0, seconds=0.0, reason="OSError: the disk is full")
    (plan.results / "probes").mkdir()
    (plan.results / "probes" / "sizes.csv").write_text("")
    status.main(options(tmp_path / "config"))
    said = capsys.readouterr().out
    run = plan.job("one", "mkor").runs[1]
    assert f"\nfailed: {run.id} ({run.describe()}): OSError: the disk is full\n" in said
    probes = next(line for line in said.splitlines() if line.startswith("probes: "))
    assert probes.startswith("probes: 1 of ")
    assert "communication" in probes
    assert probes.endswith(" more")
    assert "sizes" not in probes
    assert "figures: 0 of " in said
    assert "fig01" not in said
    status.main(["--optimizers", *options(tmp_path / "config")])
    said = capsys.readouterr().out
    assert "step_time" in said
    assert "fig01" in said


def test_a_finished_plan_has_nothing_left(plan, capsys, tmp_path):
    finish(plan, *((label, seed, 10.0) for label in ("sgd", "mkor", "kaisa") for seed in (0, 1)))
    status.main(options(tmp_path / "config"))
    said = capsys.readouterr().out
    assert "time left" in said.splitlines()[2]
    assert not [line for line in said.splitlines()[4:] if "time" in line]


def test_data_that_runs_wait_for_is_listed_until_they_are_done(folder, capsys, tmp_path, monkeypatch):
    """A skipped run waits for its data, too."""
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    write(
        folder, "one", block(optimizer("sgd"), workload={"name": "alexnet", "dataset": "cifar100", "batch_size": 128})
    )
    plan = load(folder)

    def said() -> list[str]:
        status.main(options(folder))
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("data: ")]

    command = "python -m workflow.bench.fetch --tier embedded"
    missing = [
        f"data: cifar100: not in {tmp_path / 'data'}; runs of one will be skipped",
        f"data: {command} brings what can be downloaded; --dry-run lists sizes and licenses",
    ]
    assert said() == missing
    put(plan, "sgd", 0, "skipped", steps=0, seconds=0.0)
    assert said() == missing
    finish(plan, ("sgd", 0, 10.0))
    assert said() == []


@pytest.mark.parametrize("slower", [0.5, 1.0, 1.5, 3.0])
def test_the_first_probes_correct_the_times_of_other_machines(plan, tmp_path, monkeypatch, slower):
    """Truth: this machine takes ``slower`` times as long as the reference; probes of minutes tell it within 25 %."""
    for module in (status, costs):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(status, "duration", lambda seconds: f"{seconds:.1f} s")
    reference = {"step_time": (None, 120.0), "sizes": (100.0, None), "numerics": (70.0, None)}
    other = tmp_path / "other-cpu" / "embedded"
    labels = ("sgd", "mkor", "kaisa")
    write_table(other, *({"run": label, "optimizer": label, "wall_seconds": 2000.0} for label in labels))
    rows = "".join(f"{name},,{shared or ''},{alone or ''},\n" for name, (shared, alone) in reference.items())
    (other / "costs.csv").write_text(f"{','.join(costs.JobCost._fields)}\n{rows}")
    compared = dataclasses.replace(plan, compared=(other,))

    def estimate() -> float:
        return float(
            re.search(r"^time left, .*: about (\S+) s \(", "\n".join(status.report(compared)), re.MULTILINE)[1]
        )

    # 6 runs of 2,000 s; probes that share two cores, and one that needs both.
    training, late = 6 * 2000 / plan.runs_at_a_time, 70 / 2
    assert estimate() == pytest.approx(training + late + 120 + 100 / 2)
    for name in ("step_time", "sizes"):
        shared, alone = reference[name]
        seconds = slower * (shared or alone)
        for folder, file, text in (
            ("probes", f"{name}.csv", "a\n"),
            ("logs/probes", f"{name}.log", f"cost: {seconds:.1f} core-seconds in {seconds:.1f} s, peak 1 MB\n"),
        ):
            (compared.results / folder).mkdir(parents=True, exist_ok=True)
            (compared.results / folder / file).write_text(text)
    assert estimate() == pytest.approx(slower * (training + late), rel=0.25)
    assert f"times {(60 + slower * 220) / 280:.2f}, by the jobs" in "\n".join(status.report(compared))
