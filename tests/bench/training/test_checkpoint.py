"""Checkpoints are whole or refused; the one before is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from workflow.bench.training import checkpoint
from workflow.bench.training.checkpoint import CheckpointError, DamagedError

STATE = {"weights": torch.arange(1000.0), "step": 3, "nested": {"names": ["a", None, 1.5, True]}}


def assert_same(found: object, state: dict[str, object]) -> None:
    assert isinstance(found, dict)
    assert found.keys() == state.keys()
    assert torch.equal(found["weights"], state["weights"])
    assert {key: value for key, value in found.items() if key != "weights"} == {
        key: value for key, value in state.items() if key != "weights"
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a checkpoint of run ``a`` at step 4, with that of step 3 beside it."""
    found = tmp_path / "run" / "checkpoint.pt"
    checkpoint.save(found, "a", 3, STATE)
    checkpoint.save(found, "a", 4, {**STATE, "step": 4})
    return found


def test_the_latest_is_loaded_and_the_previous_kept(path: Path):
    assert_same(checkpoint.load_latest(path, "a"), {**STATE, "step": 4})
    assert_same(checkpoint.load(path.with_name("checkpoint.pt.previous"), "a"), STATE)
    assert sorted(file.name for file in path.parent.iterdir()) == ["checkpoint.pt", "checkpoint.pt.previous"]


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_one_falls_back_with_a_warning(path: Path, kept: float):
    size = path.stat().st_size
    os.truncate(path, int(kept * size))
    with pytest.raises(DamagedError, match=r"checkpoint\.pt: damaged"):
        checkpoint.load(path, "a")
    with pytest.warns(UserWarning, match="going back to the checkpoint before it"):
        assert_same(checkpoint.load_latest(path, "a"), STATE)


@pytest.mark.parametrize("position", [0.3, 0.6, 0.9])
def test_one_flipped_bit_is_noticed(path: Path, position: float):
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="checksum does not match"):
        assert_same(checkpoint.load_latest(path, "a"), STATE)


def test_a_crash_between_the_two_renames_leaves_the_previous(path: Path):
    path.unlink()
    assert_same(checkpoint.load_latest(path, "a"), STATE)


def test_without_a_whole_one_there_is_none(path: Path, tmp_path: Path):
    assert checkpoint.load_latest(tmp_path / "nothing.pt", "a") is None
    for file in path.parent.iterdir():
        os.truncate(file, 100)
    with pytest.warns(UserWarning, match="damaged"):
        assert checkpoint.load_latest(path, "a") is None


def test_one_of_another_run_is_refused_by_name(path: Path):
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: belongs to run a, not to b"):
        checkpoint.load_latest(path, "b")


def test_one_of_a_step_is_found_among_the_two(path: Path):
    assert_same(checkpoint.load_latest(path, "a", step=3), STATE)
    assert checkpoint.load_latest(path, "a", step=2) is None


def test_one_in_another_format_counts_as_none(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "_FORMAT", checkpoint._FORMAT + 1)
    with pytest.warns(UserWarning, match="written by other code"):
        assert checkpoint.load_latest(path, "a") is None


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path):
    """weights_only: an object of a class of one's own is refused, not unpickled."""
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, "a", 1, {"path": Path()})
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint.load(path, "a")


def test_a_full_disk_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, "a", 5, {**STATE, "step": 5})
    assert_same(checkpoint.load_latest(path, "a"), {**STATE, "step": 4})
    assert sorted(file.name for file in path.parent.iterdir()) == ["checkpoint.pt", "checkpoint.pt.previous"]
