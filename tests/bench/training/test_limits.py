"""Batches, models, rates and times beyond what a run can have: one line, or an outcome in the run's record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, options, rows, write
from tests.support.records import read_summary
from workflow.bench import train
from workflow.bench.data import digits
from workflow.bench.training import build
from workflow.bench.training.record import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "config")


def test_a_batch_larger_than_the_data_set_is_one_line_before_the_first_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Where the plan does not know the size of the data, the workload compares it."""
    monkeypatch.setattr(digits, "TRAIN_EXAMPLES", 10**6)
    write(folder, "one", block(optimizer("sgd"), workload={"name": "autoencoder", "batch_size": 1438}))
    assert train.main(["one", "sgd", *options(folder)]) == 1
    said = "batch_size=1438 must be at most the number of training examples, 1437."
    assert capsys.readouterr().err.splitlines()[-1] == f"workload autoencoder: {said}"
    (run,) = load(folder).runs.values()
    assert read_summary(RunFolder.of(load(folder).results, run.id))["reason"].endswith(said)


def test_a_model_larger_than_the_memory_is_an_outcome(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Linux grants more memory than it has, and kills whoever uses it. Truth: weights and biases counted by hand."""
    monkeypatch.setattr(build, "memory_bytes", lambda: 10**6)
    write(folder, "one", block(optimizer("sgd"), workload={"name": "autoencoder", "hidden": [3000]}))
    assert train.main(["one", "sgd", *options(folder)]) == 0
    (row,) = rows(load(folder).results / "one" / "sgd.csv")
    assert (row["status"], row["step"]) == ("out_of_memory", "")
    size = 4 * (2 * 64 * 3000 + 3000 + 64)
    said = f"the weights of autoencoder 64-3000-64 take {size:,} bytes, and this machine has 1,000,000 bytes of memory"
    assert said in capsys.readouterr().err


def test_a_scale_beyond_the_dtype_is_divergence(folder: Path, capsys: pytest.CaptureFixture[str]):
    """AdamW scales its first step by lr / (1 - beta1), here 1e43, which torch refuses for float32."""
    write(folder, "one", block(optimizer("adamw", lr=1e36, beta1=1 - 1e-7)))
    assert train.main(["one", "adamw", *options(folder)]) == 0
    assert "diverged after 0 steps" in capsys.readouterr().err


def test_a_time_limit_is_at_most_a_year(folder: Path, capsys: pytest.CaptureFixture[str]):
    """The system's timer takes no more than some centuries."""
    write(folder, "one", block(optimizer("sgd")))
    assert train.main(["one", "sgd", *options(folder), "--minutes=1e300"]) == 1
    assert capsys.readouterr().err == "--minutes = 1e+300: must be at most 525600, a year\n"
