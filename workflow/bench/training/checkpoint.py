"""Checkpoint files: atomic, checksummed, bound to their run, with the previous one kept, and written beside training.

A file is one line of JSON, which states run, step, format, length and SHA-256, followed by what torch.save writes.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from workflow.bench.support.errors import DamagedFileError, UnreadableError, first_line
from workflow.bench.support.files import write_atomically
from workflow.bench.support.reading import open_regular

# torch is imported by the functions that need it: commands that only look at first lines start in a tenth of the time.
if TYPE_CHECKING:
    from torch import Tensor

_FORMAT: Final = 3
"""Format version; increment it whenever the saved state changes. Other versions cannot be resumed."""
_MOST_BYTES: Final = 4096
"""The longest first line."""


@dataclass(frozen=True)
class Header:
    """What the first line of a checkpoint states."""

    run: str
    step: int
    bytes: int
    """The length of the payload, which is the rest of the file."""
    sha256: str
    """The SHA-256 of the payload."""
    format: int = _FORMAT


def newest_first(path: Path) -> tuple[Path, Path]:
    """Return the files in which a run's checkpoint may be: the last one, and the one before."""
    return path, path.with_name(path.name + ".previous")


def save(path: Path, run: str, step: int, state: dict[str, Any], *, keep_previous: bool = True) -> None:
    """Write ``state`` as the checkpoint of a run at a step, and keep the one before as ``<path>.previous``.

    state: tensors, numbers, strings, and containers of them, as ``torch.load(weights_only=True)`` accepts them.
    keep_previous: False replaces the one before, as for final weights, which a run writes anew if it is killed just
        after.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    header = json.dumps(asdict(Header(run, step, len(payload), hashlib.sha256(payload).hexdigest())))
    write_atomically(path, f"{header}\n", payload, previous=newest_first(path)[1] if keep_previous else None)


def load(path: Path, run: str) -> dict[str, Any]:
    """Return the state that `save` wrote to ``path``, with all tensors on the CPU.

    The objects that take it know where a tensor belongs: AdamW, for one, counts its steps on the CPU, and on a GPU
    every later step would wait for the counters.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFileError: it is unreadable, truncated, altered, of another run, or of another format version.
    """
    return unpack(path, read(path, run))


def read(path: Path, run: str) -> bytes:
    """Return what `save` wrote to ``path`` after the first line, for `unpack`. Raises what `load` does."""
    with open_checkpoint(path, run) as (header, file):
        payload = file.read()
    if hashlib.sha256(payload).hexdigest() != header.sha256:
        raise DamagedFileError(f"{path}: damaged: its checksum does not match")
    return payload


def unpack(path: Path, payload: bytes) -> dict[str, Any]:
    """Return the state in a payload that `read` returned of ``path``, on this rank or another. See `load`."""
    import torch

    from workflow.bench.training.peak_memory import is_out_of_memory

    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        # torch.load raises errors of many types for a payload that torch.save has not written.
        raise DamagedFileError(f"{path}: damaged: torch cannot load it: {first_line(problem):.200}") from None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise DamagedFileError(f"{path}: damaged: it contains no state")
    return state


@contextmanager
def open_checkpoint(path: Path, run: str) -> Iterator[tuple[Header, BinaryIO]]:
    """Open a checkpoint of a run, and yield its header and the file at the start of its payload.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFileError: it cannot be read, belongs to another run, or is truncated or of another format version.
    """
    try:
        file = open_regular(path)
    except UnreadableError as problem:
        raise DamagedFileError(str(problem)) from None
    with file:
        try:
            content = json.loads(file.readline(_MOST_BYTES))
        except (ValueError, RecursionError):
            content = None
        kinds = {"run": str, "step": int, "bytes": int, "sha256": str, "format": int}
        if not isinstance(content, dict) or {key: type(value) for key, value in content.items()} != kinds:
            raise DamagedFileError(f"{path}: damaged: its first line is not that of a checkpoint")
        header = Header(**content)
        if header.run != run:
            raise DamagedFileError(f"{path}: belongs to run {header.run}, not to {run}")
        if header.format != _FORMAT:
            raise DamagedFileError(
                f"{path}: has format {header.format}, written by other code; this code reads format {_FORMAT}"
            )
        length = os.fstat(file.fileno()).st_size - file.tell()
        if length != header.bytes:
            raise DamagedFileError(f"{path}: damaged: contains {length} of {header.bytes} bytes")
        yield header, file


def remove(path: Path) -> None:
    """Delete a checkpoint and the one before it."""
    for file in newest_first(path):
        file.unlink(missing_ok=True)


class CheckpointWriter:
    """Writes the checkpoints of a run to one file, one after the other, in a thread beside training.

    Training may change the state as soon as `save` returns. `wait` and `close` raise what goes wrong in the thread,
    such as a full disk.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy ``state`` to host memory, and begin to serialise, hash and write it; see `save`. Call `wait` before."""
        self._written = self._thread.submit(save, self._path, self._run, step, host_copy(state))

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
    from torch import Tensor

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
