"""The first line of a checkpoint file, which binds it to its run, and the checks that need no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import UnreadableError
from workflow.bench.support.reading import open_regular

_FORMAT: Final = 3
"""Format version; increment it whenever the saved state changes. Other versions cannot be resumed."""
_MOST_BYTES: Final = 4096
"""The longest first line."""
_PREVIOUS: Final = ".previous"
"""Suffix of the checkpoint before the last one."""


def previous(path: Path) -> Path:
    """Return the file of the checkpoint before the one in ``path``."""
    return path.with_name(path.name + _PREVIOUS)


def newest_first(path: Path) -> tuple[Path, Path]:
    """Return the files in which a run's checkpoint may be: the last one, and the one before."""
    return path, previous(path)


class CheckpointError(ConfigError):
    """A checkpoint that must not be used; the message is one line that names the file."""


class DamagedError(CheckpointError):
    """A checkpoint that is unreadable, truncated, altered, of another run, or of another format version."""


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

    def line(self) -> str:
        """Return the first line."""
        return json.dumps(asdict(self)) + "\n"


@contextmanager
def open_checkpoint(path: Path, run: str) -> Iterator[tuple[Header, BinaryIO]]:
    """Open a checkpoint of a run, and yield its header and the file at the start of its payload.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedError: it cannot be read, belongs to another run, or is truncated or of another format version.
    """
    try:
        file = open_regular(path)
    except UnreadableError as problem:
        raise DamagedError(str(problem)) from None
    with file:
        header = _parsed(file.readline(_MOST_BYTES))
        if header is None:
            raise DamagedError(f"{path}: damaged: its first line is not that of a checkpoint")
        if header.run != run:
            raise DamagedError(f"{path}: belongs to run {header.run}, not to {run}")
        if header.format != _FORMAT:
            raise DamagedError(
                f"{path}: has format {header.format}, written by other code; this code reads format {_FORMAT}"
            )
        length = os.fstat(file.fileno()).st_size - file.tell()
        if length != header.bytes:
            raise DamagedError(f"{path}: damaged: contains {length} of {header.bytes} bytes")
        yield header, file


def _parsed(line: bytes) -> Header | None:
    """Return the header in a first line; None if it is none."""
    kinds = {"run": str, "step": int, "bytes": int, "sha256": str, "format": int}
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or {key: type(value) for key, value in content.items()} != kinds:
        return None
    return Header(**content)
