"""metrics.csv and run.json: how they are written, and that damaged ones are not taken for results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fuzzing import FUZZ, MISPLACED, MOST, changed_csv, changed_json
from tests.support.numbers import within
from tests.support.records import A_RUN, evaluated, put, read_metrics, summary
from workflow.bench.support.config import schema
from workflow.bench.support.errors import DamagedFileError, FileWarning, UnreadableError
from workflow.bench.training import checkpoint
from workflow.bench.training.record import (
    ENDED,
    METRIC_COLUMNS,
    MetricsLog,
    Record,
    RunFolder,
    Status,
    is_done,
    read_record,
    sealed,
    write_summary,
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
    """Truth of the digest of a log resumed twice: that of the whole file."""
    kept = None
    for step in (10, 20, 30):
        log = MetricsLog(folder.metrics, kept)
        append(log, step)
        kept = log.secure()
        whole = folder.metrics.read_bytes()
        assert kept == (len(whole), hashlib.sha256(whole).hexdigest())
        append(log, step + 5)  # later than the checkpoint
        log.close()
    MetricsLog(folder.metrics, kept).close()
    assert folder.metrics.read_bytes() == whole
    assert [row["step"] for row in read_metrics(folder)] == ["10", "10", "20", "20", "30", "30"]


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


FINAL: tuple[Status, ...] = ("finished", "diverged", "out_of_memory")


def ended(folder: RunFolder, status: Status) -> bytes:
    """Write the record of a run that has ended, and its rows; return the content of run.json."""
    shutil.rmtree(folder.path, ignore_errors=True)
    evaluated(folder, 0, 50, 100)
    put(folder, A_RUN, status, steps=100, seconds=2.5)
    return folder.summary.read_bytes()


def attempt(folder: RunFolder) -> tuple[Record | None, str]:
    """Return the record of `A_RUN`, or None and the reason why it is refused, which is one line."""
    try:
        return read_record(folder, A_RUN), ""
    except DamagedFileError as problem:
        refusal = str(problem)
    assert "\n" not in refusal
    return None, refusal


@given(data=st.data(), status=st.sampled_from(FINAL))
@settings(FUZZ, max_examples=MOST)
def test_a_changed_record_is_never_taken_as_done(data: st.DataObject, status: Status, tmp_path: Path):
    """Changes that leave all values are harmless, such as those of white space and of the order of keys."""
    folder = RunFolder(tmp_path / "run")
    whole = ended(folder, status)
    if data.draw(st.booleans()):
        folder.summary.write_bytes(data.draw(changed_json(whole)))
        file = folder.summary
    else:
        file, rows = folder.metrics, folder.metrics.read_bytes()
        file.write_bytes(data.draw(changed_csv(rows)))
    record, refusal = attempt(folder)
    if record is None:
        assert refusal.startswith(f"{file}: ")
        assert file == folder.summary or "damaged: it differs from the file that the run left" in refusal
        return
    assert record.has_ended
    read = (json.dumps(json.loads(each), sort_keys=True) for each in (whole, folder.summary.read_bytes()))
    assert len({*read}) == 1
    assert file == folder.summary or folder.metrics.read_bytes() == rows


@pytest.mark.parametrize(
    ("steps", "said"), [((0, 50, 40), "40, after step 50"), ((0, 101), "101, after step 0 of 100")]
)
def test_rows_out_of_order_or_beyond_the_run_are_damaged(folder: RunFolder, steps: tuple[int, ...], said: str):
    evaluated(folder, *steps)
    with pytest.raises(DamagedFileError, match=rf"metrics\.csv: damaged: line {len(steps) + 1} has step {said}"):
        read_record(folder, A_RUN)


@given(data=st.data())
@settings(FUZZ, max_examples=MOST // 2)
def test_rows_of_a_run_that_goes_on_are_in_order_and_of_its_steps(data: st.DataObject, tmp_path: Path):
    """Without a run.json no digest tells what the rows were."""
    folder = RunFolder(tmp_path / "run")
    evaluated(folder, 0, 50, 100)
    folder.metrics.write_bytes(data.draw(changed_csv(folder.metrics.read_bytes())))
    record, refusal = attempt(folder)
    if record is None:
        assert refusal.startswith(f"{folder.metrics}: damaged: ")
        return
    steps = [int(row["step"]) for row in record.rows]
    assert steps == sorted(steps)
    assert all(0 <= step <= 100 for step in steps)
    assert all(math.isfinite(float(row["value"])) for row in record.rows)


def content(folder: RunFolder) -> dict[str, Any]:
    """Return the values of a finished run's run.json, without its own digest."""
    values: dict[str, Any] = json.loads(ended(folder, "finished"))
    del values["record_sha256"]
    return values


OUT_OF_RANGE: dict[str, list[Any]] = {
    "id": ["0" * 16, "x", A_RUN.id + "\n", None],
    "spec": [{}, {**A_RUN.spec, "steps": 99}, [], "x"],
    "status": ["done", "FINISHED", "", None, ["finished"]],
    "steps_done": [99, 101, 10**9, -1, 100.0, "100", float("nan"), True],
    "metrics_sha256": ["", "0" * 64, "x" * 64, None],
    "train_seconds": [-1.0, float("inf"), 10**400, "2.5", None],
    "wall_seconds": [-0.1, 1e300, []],
    "parameters": [-1, 2**63, 0.5],
    "bytes_sent": [{"all_reduce": -1}, {"all_reduce": "1"}, []],
    "seconds": [{"update": -1}, {"update": None}, None],
    "switch_step": [-1, 2.5, 2**63],
    "threads": [0, 10**7],
    "world_size": [0, True],
    "by_rank": [[], {}, [3], [{"rank": 0}]],
    "machine": [{}, {"cpu": 1, "gpus": []}, {"cpu": "x", "gpus": "none"}],
    "packages": [{"torch": 2}, []],
    "reason": [None, 1],
    "git_dirty": ["no", 0],
}


@pytest.mark.parametrize("key", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_its_name(key: str, folder: RunFolder):
    """Also where the record's own digest fits."""
    values = content(folder)
    for value in OUT_OF_RANGE[key]:
        try:
            changed = sealed({**values, key: value})
        except ValueError:  # NaN or infinity, which the digest's JSON does not have
            changed = {**values, key: value, "record_sha256": "0" * 64}
        folder.summary.write_text(json.dumps(changed))
        with pytest.raises(DamagedFileError, match=rf"{key}|not valid JSON|metrics\.csv: damaged"):
            read_record(folder, A_RUN)


def test_every_key_that_a_run_writes_is_checked_and_required(folder: RunFolder):
    values = content(folder)
    assert values.keys() <= schema("run")["properties"].keys()
    folder.summary.write_text(json.dumps(values))
    with pytest.raises(DamagedFileError, match="record_sha256"):
        read_record(folder, A_RUN)
    for key in values:
        folder.summary.write_text(json.dumps(sealed({name: each for name, each in values.items() if name != key})))
        with pytest.raises(DamagedFileError, match=key):
            read_record(folder, A_RUN)


def test_a_status_is_one_that_the_schema_knows():
    assert schema("run")["properties"]["status"]["enum"] == list(get_args(Status))


def test_a_rank_that_fails_alone_writes_no_digest_of_rows_it_may_not_see(folder: RunFolder):
    """Its record counts; that of rank 0, or of all ranks, needs the digest."""
    evaluated(folder, 0, 50)
    values = summary(A_RUN, "out_of_memory", steps=60) | {"world_size": 2}
    for rank, number, accepted in ((1, 1, True), (0, 1, False), (1, 2, False)):
        of_rank = {**values["by_rank"][0], "rank": rank}
        write_summary(folder, {**values, "by_rank": [of_rank] * number}, with_digest=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert is_done(folder, A_RUN, needs_weights=False) == accepted


@pytest.mark.parametrize("words", MISPLACED)
def test_what_is_no_file_is_not_taken_for_a_damaged_record(
    words: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    """What cannot be read may be a good record, which training again would replace."""
    ended(folder, "finished")
    MISPLACED[words](folder.summary, monkeypatch)
    with within(10), pytest.raises(UnreadableError, match=rf"run\.json: cannot be read: .*{words}"):
        is_done(folder, A_RUN, needs_weights=False)
