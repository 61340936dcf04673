"""Checkpoints are written beside training: a thread serialises, hashes and writes a copy of the state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from workflow.bench.training import checkpoint


class CheckpointWriter:
    """Writes the checkpoints of a run to one file, one after the other.

    Training may change the state as soon as `save` returns. `wait` and `close` raise what goes wrong in the thread,
    such as a full disk.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy ``state`` to host memory, and begin to write it; see `checkpoint.save`. Call `wait` before."""
        self._written = self._thread.submit(checkpoint.save, self._path, self._run, step, host_copy(state))

    def wait(self) -> None:
        """Return once the last checkpoint is complete.

        Raises:
            OSError: it could not be written.
        """
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def close(self) -> None:
        """End the thread, after the last checkpoint is complete. Raises what `wait` does."""
        with self._thread:
            self.wait()


def host_copy(value: Any, copies: dict[Any, Tensor] | None = None) -> Any:
    """Return a nest of mappings, lists and tuples with copies of its tensors in host memory.

    A tensor that occurs twice, such as a tied weight, is copied once, and so saved once.

    copies: the copies made so far.
    """
    copies = {} if copies is None else copies
    if isinstance(value, Tensor):
        key = value.data_ptr(), value.shape, value.stride(), value.dtype, value.device
        if key not in copies:
            copies[key] = value.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)  # of its own type, with the attributes that a model's state dict has
        for name, entry in value.items():
            copied[name] = host_copy(entry, copies)
        return copied
    if isinstance(value, list | tuple):
        return type(value)([host_copy(entry, copies) for entry in value])
    return value
