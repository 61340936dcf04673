"""metrics.csv and run.json: how they are written, and that damaged ones are not taken for results."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from workflow.bench.training.record import METRIC_COLUMNS, MetricsLog, RunFolder, is_done, read_metrics, read_summary


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


@pytest.mark.parametrize(
    ("content", "done"),
    [
        ('{"status": "finished"}', True),
        ('{"status": "diverged"}', True),
        ('{"status": "out_of_memory"}', True),
        ('{"status": "interrupted"}', False),
        ('{"status": "skipped"}', False),
    ],
)
def test_only_runs_with_a_final_status_are_done(folder: RunFolder, content: str, done: bool):
    folder.path.mkdir()
    folder.summary.write_text(content)
    assert is_done(folder, needs_weights=False) == done


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"status": 1}', "null"])
def test_a_damaged_summary_counts_as_none(folder: RunFolder, content: str):
    folder.path.mkdir()
    folder.summary.write_text(content)
    with pytest.warns(UserWarning, match=r"run\.json: damaged"):
        assert not is_done(folder, needs_weights=False)


def test_a_finished_run_without_the_weights_that_others_need_is_not_done(folder: RunFolder):
    assert read_summary(folder) is None
    folder.path.mkdir()
    folder.summary.write_text(json.dumps({"status": "finished"}))
    assert is_done(folder, needs_weights=False)
    assert not is_done(folder, needs_weights=True)
    folder.weights.touch()
    assert is_done(folder, needs_weights=True)
