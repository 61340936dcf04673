"""Checkpoint files: damaged ones are refused, and the previous one is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from workflow.bench.training import checkpoint
from workflow.bench.training.checkpoint_header import DamagedError, newest_first

STATE = {"weights": torch.arange(1000.0), "step": 3, "nested": {"names": ["a", None, 1.5, True]}}


def assert_same(loaded: object, state: dict[str, object]) -> None:
    assert isinstance(loaded, dict)
    assert loaded.keys() == state.keys()
    assert torch.equal(loaded["weights"], state["weights"])
    assert {key: value for key, value in loaded.items() if key != "weights"} == {
        key: value for key, value in state.items() if key != "weights"
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a checkpoint of run ``a`` at step 4, and the previous one of step 3."""
    file = tmp_path / "run" / "checkpoint.pt"
    checkpoint.save(file, "a", 3, STATE)
    checkpoint.save(file, "a", 4, {**STATE, "step": 4})
    return file


def test_the_latest_is_loaded_and_the_previous_kept(path: Path):
    latest, previous = newest_first(path)
    assert_same(checkpoint.load(latest, "a"), {**STATE, "step": 4})
    assert_same(checkpoint.load(previous, "a"), STATE)
    assert sorted(file.name for file in path.parent.iterdir()) == ["checkpoint.pt", "checkpoint.pt.previous"]


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_checkpoint_is_damaged(path: Path, kept: float):
    os.truncate(path, int(kept * path.stat().st_size))
    with pytest.raises(DamagedError, match=r"checkpoint\.pt: damaged"):
        checkpoint.load(path, "a")


@pytest.mark.parametrize("position", [0.3, 0.6, 0.9])
def test_one_flipped_bit_is_noticed(path: Path, position: float):
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="checksum does not match"):
        checkpoint.load(path, "a")


def test_a_checkpoint_of_another_run_is_damaged(path: Path):
    with pytest.raises(DamagedError, match=r"checkpoint\.pt: belongs to run a, not to b"):
        checkpoint.load(path, "b")


def test_a_checkpoint_in_another_format_is_not_loaded(path: Path):
    path.write_bytes(path.read_bytes().replace(b'"format": 3', b'"format": 4', 1))
    with pytest.raises(DamagedError, match="written by other code"):
        checkpoint.load(path, "a")


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path):
    """weights_only: an object of any other class is refused, not unpickled."""
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, "a", 1, {"path": Path()})
    with pytest.raises(DamagedError, match="Weights only load failed"):
        checkpoint.load(path, "a")


def test_names_of_a_state_are_texts(tmp_path: Path):
    path = tmp_path / "weights.pt"
    state: Any = {0: torch.zeros(2)}
    checkpoint.save(path, "a", 1, state)
    with pytest.raises(DamagedError, match=r"weights\.pt: damaged: it contains no state"):
        checkpoint.load(path, "a")


def test_a_full_disk_leaves_the_old_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, "a", 5, {**STATE, "step": 5})
    assert_same(checkpoint.load(path, "a"), {**STATE, "step": 4})
    assert sorted(file.name for file in path.parent.iterdir()) == ["checkpoint.pt", "checkpoint.pt.previous"]
