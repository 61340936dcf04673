"""Runs made by older code are trained again, and only those."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support import records
from tests.support.experiments import block, load, optimizer, options, write
from tests.support.fuzzing import MISPLACED
from workflow.bench import refresh, train
from workflow.bench.training.record import RunFolder


def test_only_runs_by_older_code_are_forgotten(folder: Path, capsys: pytest.CaptureFixture[str]):
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


DAMAGES = {"damaged": lambda file, _: file.write_text("{"), "a FIFO": MISPLACED["a FIFO"]}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_cannot_be_read_is_left_and_told_in_one_line(
    damage: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    write(folder, "one", block(optimizer("sgd"), seeds=[0, 1]))
    plan = load(folder)
    unreadable, older = (RunFolder.of(plan.results, run.id) for run in plan.job("one", "sgd").runs)
    for place, run in zip((unreadable, older), plan.job("one", "sgd").runs, strict=True):
        records.put(place, run, "finished", steps=20)
    records.rewrite(older, code_fingerprint="0")
    DAMAGES[damage](unreadable.summary, monkeypatch)
    monkeypatch.setattr(warnings, "showwarning", show)
    assert refresh.main(options(folder)) == 0
    out, err = capsys.readouterr()
    assert out == f"1 run made by older code deleted from {plan.results}\n"
    assert re.fullmatch(rf"{unreadable.summary}: .*; not deleted\n", err)
    assert unreadable.summary.exists()
    assert not older.summary.exists()


def show(message: Warning | str, category: type[Warning], file: str, line: int, *_: Any) -> None:
    """Print a warning as Python does when no test records it."""
    sys.stderr.write(warnings.formatwarning(message, category, file, line))
