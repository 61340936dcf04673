"""Checkpoints: written beside training, refused where they are damaged, with the one before in reserve."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support import tally
from tests.support.experiments import block, load, make_folder, optimizer, options, write
from tests.support.fuzzing import FUZZ, MISPLACED, MOST, changed_bytes
from tests.support.numbers import within
from tests.support.old_states import in_old_form
from tests.support.records import read_summary
from tests.support.trained import assert_same_result, run_of
from tests.support.trained import train as train_run
from workflow.bench import train
from workflow.bench.plan.runs import Run
from workflow.bench.support.errors import DamagedFileError, FileWarning
from workflow.bench.training import checkpoint
from workflow.bench.training.checkpoint import Header, host_copy, newest_first, open_checkpoint
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads import create
from workflow.bench.workloads.base import Workload

SAVE = checkpoint.save
STATE = {"weights": torch.arange(1000.0), "step": 3, "nested": {"names": ["a", None, 1.5, True]}}
STEPS, EVERY = 20, 6
"""Steps of a run, and those between two of its checkpoints."""


def assert_same(loaded: dict[str, Any], state: dict[str, Any]) -> None:
    assert torch.equal(loaded["weights"], state["weights"])
    assert {**loaded, "weights": None} == {**state, "weights": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a checkpoint of run ``a`` at step 4, and the previous one of step 3."""
    file = tmp_path / "run" / "checkpoint.pt"
    checkpoint.save(file, "a", 3, STATE)
    checkpoint.save(file, "a", 4, {**STATE, "step": 4})
    return file


def test_the_latest_is_loaded_and_the_previous_kept_even_on_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, "a", 5, {**STATE, "step": 5})
    latest, previous = newest_first(path)
    assert_same(checkpoint.load(latest, "a"), {**STATE, "step": 4})
    assert_same(checkpoint.load(previous, "a"), STATE)
    assert sorted(file.name for file in path.parent.iterdir()) == ["checkpoint.pt", "checkpoint.pt.previous"]


def flipped(position: float) -> Callable[[bytes], bytes]:
    """Return what flips one bit at a share of a file's length."""

    def flip(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(position * len(content))] ^= 1
        return bytes(changed)

    return flip


HEADER = vars(Header("a", 4, 3, "0" * 64))
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", r"checkpoint\.pt: damaged"),
    "truncated in its first line": (lambda whole: whole[:20], "first line is not that of a checkpoint"),
    "truncated by a byte": (lambda whole: whole[:-1], r"damaged: contains \d+ of \d+ bytes"),
    "a bit of the state": (flipped(0.6), "checksum does not match"),
    "the last bit": (flipped(0.9999), "checksum does not match"),
    "another format": (lambda whole: whole.replace(b'"format": 3', b'"format": 4', 1), "written by other code"),
    "another run's": (lambda whole: whole.replace(b'"a"', b'"b"', 1), "belongs to run b, not to a"),
    "nested": (lambda _: b"[" * 100_000, "first line"),
    "nested, a line": (lambda _: b"[" * 1000 + b"\n", "first line"),
    "a number": (lambda _: b"3\n", "first line"),
    "no run": (lambda whole: whole.replace(b'"run"', b'"ran"', 1), "first line"),
    "a step of NaN": (lambda whole: whole.replace(b'"step": 4', b'"step": NaN', 1), "first line"),
    "a step of 5,000 digits": (lambda whole: whole.replace(b'"step": 4', b'"step": ' + b"9" * 5000, 1), "first line"),
    "no UTF-8": (lambda _: b"\xff\xfe\n", "first line"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_file_is_refused_in_one_line(what: str, path: Path):
    damage, said = DAMAGES[what]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedFileError, match=said) as refused:
        checkpoint.load(path, "a")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("state", "said"), [({"path": Path()}, "Weights only load failed"), ({0: torch.zeros(2)}, "it contains no state")]
)
def test_only_data_by_name_is_loaded(state: Any, said: str, path: Path):
    """weights_only: an object of any other class is refused, not unpickled, so that no code in a file ever runs."""
    checkpoint.save(path, "a", 1, state)
    with pytest.raises(DamagedFileError, match=said):
        checkpoint.load(path, "a")


@pytest.mark.parametrize("words", MISPLACED)
def test_what_is_no_file_is_refused_and_waited_for_by_nobody(words: str, path: Path, monkeypatch: pytest.MonkeyPatch):
    MISPLACED[words](path, monkeypatch)
    with within(10), pytest.raises(DamagedFileError, match=f"cannot be read: .*{words}"):
        checkpoint.load(path, "a")


class Interrupted:
    """A run of MKOR on momentum that was stopped after step 14, its checkpoints, and the same run undisturbed."""

    def __init__(self, path: Path) -> None:
        shared = {"schedule": {"name": "linear", "warmup": 0.2}, "evaluate_every": 5}
        small = {"name": "autoencoder", "batch_size": 32, "hidden": [24, 8, 24]}
        folder = make_folder(path / "config")
        self.run = run_of(folder, "mkor", {"workload": small, **shared}, inverse_update_period=3)
        self.workload = create(**small)
        self.place, self.truth = RunFolder(path / "run"), RunFolder(path / "truth")
        steps = iter(range(STEPS))
        assert train_run(self.run, self.workload, self.truth) == "finished"
        stop = lambda: next(steps) == 13  # noqa: E731
        assert train_run(self.run, self.workload, self.place, stop, checkpoint_steps=EVERY) == "interrupted"
        self.files = {file: file.read_bytes() for file in self.place.path.iterdir()}

    def restore(self) -> list[Path]:
        """Put the files of the interrupted run back; return its checkpoints, the last one first."""
        for file in self.place.path.iterdir():
            file.unlink()
        for file, content in self.files.items():
            file.write_bytes(content)
        return list(newest_first(self.place.checkpoint))

    def change(self, file: Path, damage: Callable[[dict[str, Any]], object]) -> None:
        """Change the content of a checkpoint, whose digest then fits."""
        with open_checkpoint(file, self.run.id) as (header, _):
            step = header.step
        saved = checkpoint.load(file, self.run.id)
        damage(saved)
        checkpoint.save(file, self.run.id, step, saved, keep_previous=False)

    def resume(self) -> list[str]:
        """Train to the end, check that the result is that of the undisturbed run, and return warnings about files."""
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            assert train_run(self.run, self.workload, self.place) == "finished"
        assert_same_result(self.place, self.truth, self.run)
        said = [str(warning.message) for warning in given if warning.category is FileWarning]
        assert all("\n" not in line and line.endswith("before it, or to the start") for line in said)
        return said

    @property
    def slices(self) -> int:
        """In how many slices the run was trained: 1 if it began anew, 2 if it was resumed."""
        return int(read_summary(self.place)["slices"])


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return Interrupted(tmp_path_factory.mktemp("resume"))


CONTENTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a run's weights": (lambda saved: saved.clear(), "contains no state of a training"),
    "rows that metrics.csv lacks": (lambda saved: saved.update(metrics=(9999, "0" * 64)), "differs from the file at"),
    "an account of other code": (lambda saved: saved["ranks"][0]["account"].update(mood=1), "'mood'"),
    "no weight": (lambda saved: saved["model"].pop("0.weight"), "0.weight"),
    "a weight of another shape": (lambda saved: saved["model"].update({"0.weight": torch.ones(2)}), "size mismatch"),
    "no optimizer": (lambda saved: saved.pop("optimizer"), "KeyError: 'optimizer'"),
    "other parameters": (lambda saved: saved["optimizer"]["param_groups"][0].update(params=[7]), "parameter group"),
    "factors of another shape": (
        lambda saved: saved["optimizer"]["state"][0].update(preconditioner_left=torch.eye(2)),
        "has shape (2, 2)",
    ),
    "no random state": (lambda saved: saved["ranks"][0].update(rng=torch.ones(3)), "cannot resume from it: "),
}
"""What older code may have saved, or a user may have copied to the place."""


@pytest.mark.parametrize("what", CONTENTS)
def test_content_that_does_not_fit_leads_to_the_checkpoint_before_it_and_then_to_the_start(
    what: str, interrupted: Interrupted
):
    """Truth: the undisturbed run, bit for bit."""
    damage, message = CONTENTS[what]
    for damaged, slices in ((1, 2), (2, 1)):
        for file in interrupted.restore()[:damaged]:
            interrupted.change(file, damage)
        said = interrupted.resume()
        assert len(said) == damaged
        assert message in said[0]
        assert interrupted.slices == slices


@given(data=st.data())
@settings(FUZZ, max_examples=MOST // 4)
def test_a_damaged_file_leads_to_the_checkpoint_before_it(data: st.DataObject, interrupted: Interrupted):
    """Truth: the undisturbed run, bit for bit, whatever was changed."""
    file = data.draw(st.sampled_from(interrupted.restore()))
    file.write_bytes(data.draw(changed_bytes(file.read_bytes())))
    # White space in the first line is harmless, and the one before is not looked at while the last one is whole.
    assert len(interrupted.resume()) <= (file == interrupted.place.checkpoint)
    assert interrupted.slices == 2
    tally.count("damaged files")
    tally.count("tracebacks", 0)


def test_a_checkpoint_of_an_earlier_version_is_resumed(interrupted: Interrupted):
    """Its optimizer's state has a third entry, with the layers by name. Truth: the undisturbed run, bit for bit."""
    names = {0: "0", 2: "2", 4: "4", 6: "6"}
    for file in interrupted.restore():
        interrupted.change(file, lambda saved: saved.update(optimizer=in_old_form(saved["optimizer"], names)))
    assert interrupted.resume() == []
    assert interrupted.slices == 2


@pytest.fixture
def run(folder: Path) -> Run:
    """A run with momentum and factors, both changed in place."""
    return run_of(folder, "mkor", {"steps": STEPS}, inverse_update_period=3)


def saved_steps(place: RunFolder, run: Run) -> list[int]:
    """Return the steps of the run's checkpoints, the last one first."""
    found = []
    for file in newest_first(place.checkpoint):
        with open_checkpoint(file, run.id) as (header, _):
            found.append(header.step)
    return found


def test_a_checkpoint_holds_the_state_of_its_step_though_training_goes_on(
    run: Run, workload: Workload, tmp_path: Path, place: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    """It is serialised when three more steps are done. Truth: the run left alone, bit for bit."""
    whole = RunFolder(tmp_path / "whole")
    train_run(run, workload, whole, checkpoint_steps=EVERY)
    steps, three_later = iter(range(1, STEPS)), threading.Event()
    waited: list[bool] = []

    def late(*arguments: Any, **names: Any) -> None:
        waited.append(three_later.wait(60))
        SAVE(*arguments, **names)

    def after_step() -> bool:
        step = next(steps)
        if step == 9:
            three_later.set()
        if step == 10:
            raise RuntimeError("killed")
        return False

    monkeypatch.setattr(checkpoint, "save", late)
    with pytest.raises(RuntimeError, match="killed"):
        train_run(run, workload, place, after_step, checkpoint_steps=EVERY)
    assert waited == [True]
    monkeypatch.undo()
    assert train_run(run, workload, place) == "finished"
    assert read_summary(place)["slices"] == 2
    assert_same_result(place, whole, run)


@pytest.mark.parametrize("end", ["stop", "error", "finish"])
def test_a_slow_disk_is_waited_for_by_the_next_checkpoint_and_at_every_end(
    end: str, run: Run, workload: Workload, place: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    written, steps = [0], iter(range(1, STEPS + 1))

    def slow(path: Path, run: str, step: int, *state: Any, **names: Any) -> None:
        time.sleep(0.1)
        SAVE(path, run, step, *state, **names)
        if path == place.checkpoint:
            written.append(step)

    def after_step() -> bool:
        step = next(steps)
        # The checkpoint of this step, if it has one, is begun by now.
        assert written[-1] >= step // EVERY * EVERY - EVERY
        if step == 14 and end == "error":
            raise RuntimeError("killed")
        return step == 14 and end == "stop"

    monkeypatch.setattr(checkpoint, "save", slow)
    if end == "error":
        with pytest.raises(RuntimeError, match="killed"):
            train_run(run, workload, place, after_step, checkpoint_steps=EVERY)
        assert saved_steps(place, run) == [12, 6]
    elif end == "stop":
        assert train_run(run, workload, place, after_step, checkpoint_steps=EVERY) == "interrupted"
        assert saved_steps(place, run) == [14, 12]
    else:
        assert train_run(run, workload, place, after_step, checkpoint_steps=EVERY) == "finished"
        assert written == [0, 6, 12, 18]
        assert not place.checkpoint.exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.parametrize("fails_at", [6, 18])
def test_a_full_disk_is_one_line_at_the_next_checkpoint_or_at_the_end(
    fails_at: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The checkpoints are those that the tier asks for."""
    with (folder / "tiers" / "embedded.yaml").open("a") as file:
        file.write(f"checkpoint_steps: {EVERY}\n")
    write(folder, "one", block(optimizer("sgd"), steps=STEPS))
    begun: list[int] = []

    def full(path: Path, run: str, step: int, *state: Any, **names: Any) -> None:
        begun.append(step)
        if step == fails_at:
            raise OSError(28, "No space left on device", str(path))
        SAVE(path, run, step, *state, **names)

    monkeypatch.setattr(checkpoint, "save", full)
    assert train.main(["one", "sgd", *options(folder)]) == 1
    plan = load(folder)
    place = RunFolder.of(plan.results, plan.job("one", "sgd").runs[0].id)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"[Errno 28] No space left on device: '{place.checkpoint}'"
    assert begun == list(range(EVERY, fails_at + 1, EVERY))
    assert read_summary(place)["status"] == "failed"


def test_a_copy_has_everything_of_a_state_and_shares_nothing_with_it():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 3))
    model[1].weight = model[0].weight
    column_major = torch.arange(6.0).view(2, 3).T
    state = {"model": model.state_dict(), "betas": (0.9, torch.ones(1)), "vectors": [column_major], "scaler": None}
    copied = host_copy(state)
    assert list(copied) == list(state)
    assert copied["model"]._metadata == state["model"]._metadata
    weights = copied["model"]["0.weight"], copied["model"]["1.weight"]
    assert weights[0] is weights[1]
    assert copied["vectors"][0].stride() == column_major.stride()
    with torch.no_grad():
        model[0].weight.zero_()
        column_major.zero_()
        state["betas"][1].zero_()
    assert weights[0].all()
    assert copied["vectors"][0].sum() == 15
    assert copied["betas"] == (0.9, torch.ones(1))
    assert copied["scaler"] is None
