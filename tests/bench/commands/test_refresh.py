"""Runs made by older code are trained again, and only those."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import records
from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import refresh, train
from workflow.bench.training.record import RunFolder


def test_only_runs_by_older_code_are_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd"), optimizer("adamw"), seeds=[0, 1]))
    plan = load(folder)
    for label in ("sgd", "adamw"):
        out = plan.csv_of(plan.job("one", label))
        assert train.main(["one", label, "--out", str(out), *options(folder)]) == 0
    older = RunFolder.of(plan.results, plan.job("one", "sgd").run_ids[0])
    records.rewrite(older, code_fingerprint="0")
    capsys.readouterr()
    assert refresh.main(options(folder)) == 0
    assert capsys.readouterr().out == f"1 run made by older code deleted from {plan.results}\n"
    assert not older.summary.exists()
    assert not older.metrics.exists()
    assert not plan.csv_of(plan.job("one", "sgd")).exists()
    assert plan.csv_of(plan.job("one", "adamw")).exists()
    kept = [RunFolder.of(plan.results, run).summary for job in plan.jobs for run in job.run_ids]
    assert sum(path.exists() for path in kept) == 3
    assert refresh.forget_outdated(plan) == 0
