"""The listing of runs that are done, running and left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import records
from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import status, train
from workflow.bench.plan import Plan
from workflow.bench.support.files import locked
from workflow.bench.training.record import RunFolder, Status


def test_every_run_is_in_one_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd"), optimizer("sgd", "wild", lr=1e30), seeds=[0, 1]))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    assert train.main(["one", "wild", "--seed", "1", *options(folder)]) == 0
    plan = load(folder)
    older = RunFolder.of(plan.results, plan.job("one", "sgd").run_ids[0])
    records.rewrite(older, code_fingerprint="0")
    capsys.readouterr()
    assert status.main(options(folder)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "one/sgd: 1 by older code, 2 finished"
    assert said[1].startswith("one/wild: 1 diverged, 1 left; about ")
    assert said[2] == f"all 4 runs in {plan.results}: 1 by older code, 1 diverged, 2 finished, 1 left"
    with locked(RunFolder.of(plan.results, plan.job("one", "wild").run_ids[0]).lock):
        status.main(options(folder))
    assert "one/wild: 1 diverged, 1 running; about " in capsys.readouterr().out


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Three optimizers, two seeds each, 20 steps; nothing is trained."""
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd"), optimizer("mkor"), optimizer("kaisa"), seeds=[0, 1]))
    return load(folder)


def put(plan: Plan, label: str, seed: int, state: Status, **of_record: Any) -> RunFolder:
    """Write a run's record."""
    run = plan.job("one", label).runs[seed]
    folder = RunFolder.of(plan.results, run.id)
    records.put(folder, run, state, **of_record)
    return folder


def left(plan: Plan) -> status.TimeLeft:
    """Return the time left for the whole plan."""
    runs = [run for job in plan.jobs for run in status.states(plan, job)]
    return status.Pace(runs).time_left(runs)


def test_time_left_follows_finished_runs_of_the_label_else_of_the_workload(plan):
    """Truth: by hand. SGD takes 0.5 s per step, MKOR 1 s, and KAISA, which has no run, their mean."""
    put(plan, "sgd", 0, "finished", steps=20, seconds=10.0)
    put(plan, "mkor", 0, "finished", steps=20, seconds=20.0)
    assert left(plan) == status.TimeLeft(20 * 0.5 + 20 * 1.0 + 2 * 20 * 0.75, unknown=0)


def test_a_checkpoint_counts_and_what_broke_off_without_one_begins_anew(plan):
    put(plan, "sgd", 0, "finished", steps=20, seconds=10.0)
    put(plan, "sgd", 1, "finished", steps=20, seconds=10.0)
    put(plan, "mkor", 0, "finished", steps=20, seconds=20.0)
    put(plan, "kaisa", 0, "finished", steps=20, seconds=40.0)
    put(plan, "kaisa", 1, "finished", steps=20, seconds=40.0)
    begun = RunFolder.of(plan.results, plan.job("one", "mkor").run_ids[1])
    records.evaluated(begun, 15)
    assert left(plan).seconds == pytest.approx(20.0)
    begun.checkpoint.write_bytes(b"")
    assert left(plan).seconds == pytest.approx(5.0)
    (state,) = (found for found in status.states(plan, plan.job("one", "mkor")) if found.run.seed == 1)
    assert (state.state, state.steps_done) == ("interrupted", 15)


def test_what_nothing_tells_the_time_of_is_said(plan, capsys, tmp_path):
    put(plan, "sgd", 0, "diverged", steps=3, seconds=1.0)
    assert left(plan) == status.TimeLeft(0.0, unknown=5)
    assert status.main(options(tmp_path / "config")) == 0
    assert "unknown time for 5 runs (no finished run of such a workload)" in capsys.readouterr().out.splitlines()[-1]


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
    assert "numerics" in probes
    assert "sizes" not in probes


def test_a_finished_plan_has_nothing_left(plan, capsys, tmp_path):
    for label in ("sgd", "mkor", "kaisa"):
        for seed in (0, 1):
            put(plan, label, seed, "finished", steps=20, seconds=10.0)
    status.main(options(tmp_path / "config"))
    assert capsys.readouterr().out.splitlines()[-1].endswith(": nothing left")
