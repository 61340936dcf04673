"""metrics.csv and run.json: how they are written, and that damaged ones are not taken for results."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import get_args

import pytest

from tests.support.records import A_RUN, put, read_metrics
from workflow.bench.support.errors import FileWarning
from workflow.bench.training import checkpoint
from workflow.bench.training.record import (
    ENDED,
    METRIC_COLUMNS,
    MetricsLog,
    RunFolder,
    Status,
    is_done,
    read_record,
)


def append(log: MetricsLog, step: int, value: float = 0.1) -> None:
    log.append(
        step=step,
        epoch=step / 11,
        lr=0.1,
        train_seconds=step / 1000,
        wall_seconds=step / 900,
        values={("train", "loss"): value, ("validation", "loss"): value / 2},
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def test_rows_can_be_read_as_soon_as_they_are_appended(folder: RunFolder):
    log = MetricsLog(folder.metrics)
    append(log, 10, value=1 / 3)
    rows = read_metrics(folder)
    assert [tuple(row) for row in rows] == [tuple(METRIC_COLUMNS)] * 2
    assert (rows[0]["step"], rows[0]["split"], rows[0]["metric"]) == ("10", "train", "loss")
    assert float(rows[0]["value"]) == 1 / 3
    log.close()


def test_a_resumed_log_is_cut_back_to_its_checkpoint(folder: RunFolder):
    log = MetricsLog(folder.metrics)
    append(log, 10)
    kept = log.secure()
    at_checkpoint = folder.metrics.read_bytes()
    append(log, 20)
    log.close()
    resumed = MetricsLog(folder.metrics, kept)
    assert folder.metrics.read_bytes() == at_checkpoint
    append(resumed, 20)
    resumed.close()
    assert [row["step"] for row in read_metrics(folder)] == ["10", "10", "20", "20"]


@pytest.mark.parametrize("change", [lambda whole: whole[:-5], lambda whole: whole.replace(b"10,", b"11,"), None])
def test_a_log_changed_since_its_checkpoint_is_refused(folder: RunFolder, change):
    log = MetricsLog(folder.metrics)
    append(log, 10)
    kept = log.secure()
    log.close()
    if change is None:
        folder.metrics.unlink()
    else:
        folder.metrics.write_bytes(change(folder.metrics.read_bytes()))
    with pytest.raises(ValueError, match="differs from the file at the time of the checkpoint"):
        MetricsLog(folder.metrics, kept)


def test_the_digest_of_a_log_resumed_twice_covers_all_rows(folder: RunFolder):
    """Truth: the digest of the whole file."""
    kept = None
    for step in (10, 20, 30):
        log = MetricsLog(folder.metrics, kept)
        append(log, step)
        kept = log.secure()
        log.close()
    whole = folder.metrics.read_bytes()
    assert kept == (len(whole), hashlib.sha256(whole).hexdigest())


@pytest.mark.parametrize("status", get_args(Status))
def test_only_runs_with_a_final_status_are_done(folder: RunFolder, status: Status):
    put(folder, A_RUN, status, steps=A_RUN.spec["steps"])
    assert is_done(folder, A_RUN, needs_weights=False) == (status in ENDED)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"status": 1}', "null", "[" * 100_000, '{"id": "\\ud800"}'])
def test_a_damaged_summary_counts_as_not_done(folder: RunFolder, content: str):
    folder.path.mkdir()
    folder.summary.write_text(content)
    with pytest.warns(FileWarning, match=r"run\.json: .*damaged.*; the run counts as not done"):
        assert not is_done(folder, A_RUN, needs_weights=False)


def test_a_finished_run_without_the_weights_that_others_need_is_not_done(folder: RunFolder):
    assert read_record(folder, A_RUN).status is None
    put(folder, A_RUN, "finished", steps=100)
    assert is_done(folder, A_RUN, needs_weights=False)
    assert not is_done(folder, A_RUN, needs_weights=True)
    for run, step in ((A_RUN.id, 99), ("0" * 16, 100), (A_RUN.id, 100)):
        checkpoint.save(folder.weights, run, step, {}, keep_previous=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert is_done(folder, A_RUN, needs_weights=True) == ((run, step) == (A_RUN.id, 100))
    os.truncate(folder.weights, folder.weights.stat().st_size - 1)
    with pytest.warns(FileWarning, match=r"weights\.pt: damaged"):
        assert not is_done(folder, A_RUN, needs_weights=True)
