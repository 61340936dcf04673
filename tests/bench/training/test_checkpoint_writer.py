"""Checkpoints that a thread writes while training goes on: what they hold, when they are complete, and what fails."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from tests.support.records import read_summary
from workflow.bench import train
from workflow.bench.plan.runs import Run
from workflow.bench.training import checkpoint, one_run
from workflow.bench.training.build import Setting
from workflow.bench.training.checkpoint_header import newest_first, open_checkpoint
from workflow.bench.training.checkpoint_writer import host_copy
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads import create
from workflow.bench.workloads.base import Workload

SAVE = checkpoint.save
STEPS = 20


@pytest.fixture(scope="module")
def workload() -> Workload:
    return create("autoencoder", batch_size=32, hidden=[8, 4, 8])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of 20 steps with momentum and factors, both changed in place."""
    shared = {"workload": {"name": "autoencoder", "batch_size": 32, "hidden": [8, 4, 8]}, "steps": STEPS}
    write(make_folder(tmp_path / "config"), "one", block(optimizer("mkor", inverse_update_period=3), **shared))
    return load(tmp_path / "config").job("one", "mkor").runs[0]


def setting(after_step: Callable[[], object]) -> Setting:
    """Save every 6 steps; after_step: called after each one; True asks to stop."""
    progress = Progress(1, io.StringIO())
    return Setting(torch.device("cpu"), 60, progress, lambda: after_step() is True, checkpoint_steps=6)


def saved_steps(place: RunFolder, run: Run) -> list[int]:
    """Return the steps of the run's checkpoints, the last one first."""
    found = []
    for file in newest_first(place.checkpoint):
        with open_checkpoint(file, run.id) as (header, _):
            found.append(header.step)
    return found


def test_a_checkpoint_holds_the_state_of_its_step_though_training_goes_on(
    run: Run, workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is serialised when three more steps are done. Truth: the run left alone, bit for bit."""
    whole, place = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "run")
    one_run.train(run, workload, whole, setting(lambda: None), keep_weights=True)
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
        one_run.train(run, workload, place, setting(after_step))
    assert waited == [True]
    monkeypatch.undo()
    assert one_run.train(run, workload, place, setting(lambda: None), keep_weights=True) == "finished"
    assert read_summary(place)["slices"] == 2
    assert rows(place.metrics, TIMES) == rows(whole.metrics, TIMES)
    mine, true = (checkpoint.load(each.weights, run.id) for each in (place, whole))
    assert all(torch.equal(mine[name], tensor) for name, tensor in true.items())


@pytest.mark.parametrize("end", ["stop", "error", "finish"])
def test_a_slow_disk_is_waited_for_by_the_next_checkpoint_and_at_every_end(
    end: str, run: Run, workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place, written = RunFolder(tmp_path / "run"), [0]
    steps = iter(range(1, STEPS + 1))

    def slow(path: Path, run: str, step: int, *state: Any, **names: Any) -> None:
        time.sleep(0.1)
        SAVE(path, run, step, *state, **names)
        written.append(step)

    def after_step() -> bool:
        step = next(steps)
        # The checkpoint of this step, if it has one, is begun by now.
        assert written[-1] >= step // 6 * 6 - 6
        if step == 14 and end == "error":
            raise RuntimeError("killed")
        return step == 14 and end == "stop"

    monkeypatch.setattr(checkpoint, "save", slow)
    if end == "error":
        with pytest.raises(RuntimeError, match="killed"):
            one_run.train(run, workload, place, setting(after_step))
        assert saved_steps(place, run) == [12, 6]
    elif end == "stop":
        assert one_run.train(run, workload, place, setting(after_step)) == "interrupted"
        assert saved_steps(place, run) == [14, 12]
    else:
        assert one_run.train(run, workload, place, setting(after_step)) == "finished"
        assert written == [0, 6, 12, 18]
        assert not place.checkpoint.exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.parametrize("fails_at", [6, 18])
def test_a_full_disk_is_one_line_at_the_next_checkpoint_or_at_the_end(
    fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = make_folder(tmp_path / "config")
    with (folder / "tiers" / "embedded.yaml").open("a") as file:
        file.write("checkpoint_steps: 6\n")
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
    assert begun == list(range(6, fails_at + 1, 6))
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
