"""Checkpoints that are whole or refused: atomic, checksummed, the previous one kept, bound to their run."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from pathlib import Path
from typing import Any, Final

import torch

from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import write_atomically

PREVIOUS: Final = ".previous"
#: Raised with what a state holds: one of another format cannot be gone on from.
_FORMAT: Final = 2


class CheckpointError(ConfigError):
    """A checkpoint that must not be used; the message is one line that names it."""


class DamagedError(CheckpointError):
    """A checkpoint that is truncated, altered, or in the format of other code."""


def save(path: Path, run: str, step: int, state: dict[str, Any]) -> None:
    """Write ``state`` as the checkpoint of a run at a step; the one before stays beside it as ``<path>.previous``.

    state: what ``torch.load(weights_only=True)`` takes: tensors, numbers, text, and containers of them.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    header = {
        "format": _FORMAT,
        "run": run,
        "step": step,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    write_atomically(path, json.dumps(header) + "\n", payload, previous=_previous(path))


def load(path: Path, run: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the state that `save` wrote to ``path``.

    Raises `DamagedError` where it is truncated, altered or of another format, `CheckpointError` where it belongs to
    another run, `FileNotFoundError` where there is none.
    """
    with path.open("rb") as file:
        try:
            header = json.loads(file.readline())
            owner, length, digest, form = (header[key] for key in ("run", "bytes", "sha256", "format"))
        except (ValueError, KeyError, TypeError):
            raise DamagedError(f"{path}: damaged: its first line is no checkpoint's") from None
        payload = file.read()
    if owner != run:
        raise CheckpointError(f"{path}: belongs to run {owner}, not to {run}; move it away to start anew")
    if form != _FORMAT:
        raise DamagedError(f"{path}: is of format {form}, made by other code; this code's is {_FORMAT}")
    if len(payload) != length:
        raise DamagedError(f"{path}: damaged: {len(payload)} of {length} bytes are there")
    if hashlib.sha256(payload).hexdigest() != digest:
        raise DamagedError(f"{path}: damaged: its checksum does not fit")
    return torch.load(io.BytesIO(payload), map_location=device, weights_only=True)


def load_latest(
    path: Path, run: str, device: torch.device | str = "cpu", *, step: int | None = None
) -> dict[str, Any] | None:
    """Return the newest whole state of ``path`` and the one before it; None where there is none.

    A damaged one is passed over with a warning.  step: take that of this step only.  Raises `CheckpointError` for a
    checkpoint of another run.
    """
    for candidate in (path, _previous(path)):
        try:
            if step is not None and _step_of(candidate) != step:
                continue
            return load(candidate, run, device)
        except FileNotFoundError:
            continue
        except DamagedError as problem:
            warnings.warn(f"{problem}; going back to the checkpoint before it, or to the start", stacklevel=2)
    return None


def _step_of(path: Path) -> int | None:
    """Return the step that a checkpoint says it is of; None where it says none."""
    with path.open("rb") as file:
        try:
            step = json.loads(file.readline())["step"]
        except (ValueError, KeyError, TypeError):
            return None
    return int(step)


def remove(path: Path) -> None:
    """Delete a checkpoint and the one before it."""
    path.unlink(missing_ok=True)
    _previous(path).unlink(missing_ok=True)


def _previous(path: Path) -> Path:
    return path.with_name(path.name + PREVIOUS)
