"""The listing of what ran, what runs and what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import status, train
from workflow.bench.files import locked
from workflow.bench.record import RunFolder


def test_every_run_is_in_one_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd"), optimizer("sgd", "wild", lr=1e30), seeds=[0, 1]))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    assert train.main(["one", "wild", "--seed", "1", *options(folder)]) == 0
    plan = load(folder)
    older = RunFolder.of(plan.results, plan.job("one", "sgd").run_ids[0])
    older.summary.write_text(json.dumps({**json.loads(older.summary.read_text()), "code_fingerprint": "0"}))
    capsys.readouterr()
    assert status.main(options(folder)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "one/sgd: 1 by older code, 2 finished",
        "one/wild: 1 diverged, 1 left",
        f"all 4 runs in {plan.results}: 1 by older code, 1 diverged, 2 finished, 1 left",
    ]
    with locked(RunFolder.of(plan.results, plan.job("one", "wild").run_ids[0]).lock):
        status.main(options(folder))
    assert "one/wild: 1 diverged, 1 running" in capsys.readouterr().out
