"""Checkpoint files: atomic, checksummed, bound to their run, and with the previous one kept.

A file is one line of JSON, which states run, step, format, length and SHA-256, followed by what torch.save writes.
"""

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
"""Suffix of the checkpoint before the last one."""

_FORMAT: Final = 2
"""Format version; increment it whenever the saved state changes. Other versions cannot be resumed."""


class CheckpointError(ConfigError):
    """A checkpoint that must not be used; the message is one line that names the file."""


class DamagedError(CheckpointError):
    """A checkpoint that is truncated, altered, or of another format version."""


def save(path: Path, run: str, step: int, state: dict[str, Any], *, keep_previous: bool = True) -> None:
    """Write ``state`` as the checkpoint of a run at a step, and keep the one before as ``<path>.previous``.

    state: tensors, numbers, strings, and containers of them, as ``torch.load(weights_only=True)`` accepts them.
    keep_previous: False replaces the one before, as for final weights, which a run writes anew if it is killed just
        after.
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
    write_atomically(path, json.dumps(header) + "\n", payload, previous=_previous(path) if keep_previous else None)


def load(path: Path, run: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the state that `save` wrote to ``path``.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedError: it is truncated, altered or of another format version.
        CheckpointError: it belongs to another run.
    """
    with path.open("rb") as file:
        try:
            header = json.loads(file.readline())
            owner, length, digest, version = (header[key] for key in ("run", "bytes", "sha256", "format"))
        except (ValueError, KeyError, TypeError):
            raise DamagedError(f"{path}: damaged: its first line is not that of a checkpoint") from None
        payload = file.read()
    if owner != run:
        raise CheckpointError(f"{path}: belongs to run {owner}, not to {run}; move it away to start anew")
    if version != _FORMAT:
        raise DamagedError(f"{path}: has format {version}, written by other code; this code reads format {_FORMAT}")
    if len(payload) != length:
        raise DamagedError(f"{path}: damaged: contains {len(payload)} of {length} bytes")
    if hashlib.sha256(payload).hexdigest() != digest:
        raise DamagedError(f"{path}: damaged: its checksum does not match")
    return torch.load(io.BytesIO(payload), map_location=device, weights_only=True)


def load_latest(
    path: Path, run: str, device: torch.device | str = "cpu", *, step: int | None = None
) -> dict[str, Any] | None:
    """Return the state in ``path``, or in the checkpoint before it if that one is damaged; None if neither is usable.

    A damaged checkpoint is a warning.

    step: consider only a checkpoint of this step.

    Raises:
        CheckpointError: a checkpoint belongs to another run.
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
    """Return the step in the first line of a checkpoint; None if it has none."""
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
