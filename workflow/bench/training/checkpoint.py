"""Checkpoint files: atomic, checksummed, bound to their run, and with the previous one kept.

A file is one line of JSON, which states run, step, format, length and SHA-256, followed by what torch.save writes.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from workflow.bench.support.files import write_atomically
from workflow.bench.training.checkpoint_header import DamagedError, Header, newest_first, open_checkpoint, previous
from workflow.bench.training.peak_memory import is_out_of_memory
from workflow.bench.training.record import first_line


def save(path: Path, run: str, step: int, state: dict[str, Any], *, keep_previous: bool = True) -> None:
    """Write ``state`` as the checkpoint of a run at a step, and keep the one before as ``<path>.previous``.

    state: tensors, numbers, strings, and containers of them, as ``torch.load(weights_only=True)`` accepts them.
    keep_previous: False replaces the one before, as for final weights, which a run writes anew if it is killed just
        after.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    header = Header(run, step, len(payload), hashlib.sha256(payload).hexdigest())
    write_atomically(path, header.line(), payload, previous=previous(path) if keep_previous else None)


def load(path: Path, run: str) -> dict[str, Any]:
    """Return the state that `save` wrote to ``path``, with all tensors on the CPU.

    The objects that take it know where a tensor belongs: AdamW, for one, counts its steps on the CPU, and on a GPU
    every later step would wait for the counters.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedError: it is unreadable, truncated, altered, of another run, or of another format version.
    """
    return unpack(path, read(path, run))


def read(path: Path, run: str) -> bytes:
    """Return what `save` wrote to ``path`` after the first line, for `unpack`. Raises what `load` does."""
    with open_checkpoint(path, run) as (header, file):
        payload = file.read()
    if hashlib.sha256(payload).hexdigest() != header.sha256:
        raise DamagedError(f"{path}: damaged: its checksum does not match")
    return payload


def unpack(path: Path, payload: bytes) -> dict[str, Any]:
    """Return the state in a payload that `read` returned of ``path``, on this rank or another. See `load`."""
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        # torch.load raises errors of many types for a payload that torch.save has not written.
        raise DamagedError(f"{path}: damaged: torch cannot load it: {first_line(problem):.200}") from None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise DamagedError(f"{path}: damaged: it contains no state")
    return state


def remove(path: Path) -> None:
    """Delete a checkpoint and the one before it."""
    for file in newest_first(path):
        file.unlink(missing_ok=True)
