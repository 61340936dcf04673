"""Read files that somebody may have damaged, misplaced or made unreadable; never waits on a FIFO or a device."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

from workflow.bench.support.errors import DamagedFileError, UnreadableError

MOST_BYTES: Final = 2**30
"""The largest file that is read into memory as a whole, except checkpoints."""


def open_regular(path: Path, *, writable: bool = False) -> BinaryIO:
    """Open a regular file for reading; ``writable``: for writing, too.

    Raises:
        FileNotFoundError: it does not exist.
        UnreadableError: it is a folder, a FIFO, a socket or a device, or it may not be read.
    """
    try:
        # Looked at before it is opened, because opening a device may have an effect, and opening a FIFO waits for a
        # writer; and again after, because it may have been replaced in between.
        _require_regular(path, path.stat().st_mode)
        handle = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, UnreadableError):
        raise
    except OSError as problem:
        raise UnreadableError(f"{path}: cannot be read: {problem.strerror}") from None
    try:
        _require_regular(path, os.fstat(handle).st_mode)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "r+b" if writable else "rb")


def is_regular(path: Path) -> bool:
    """Return whether a path is a file, as far as this user may know."""
    try:
        return path.is_file()
    except OSError:
        return False


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise UnreadableError(f"{path}: cannot be read: it is {kind}, not a file")


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        FileNotFoundError: it does not exist.
        UnreadableError: it cannot be read.
        DamagedFileError: it is larger than `MOST_BYTES`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise DamagedFileError(f"{path}: damaged: it has {size} bytes, more than any such file")
        try:
            return file.read()
        except OSError as problem:
            raise UnreadableError(f"{path}: cannot be read: {problem.strerror}") from None


def read_text(path: Path) -> str:
    """Return the content of a regular file that is UTF-8 text.

    Raises:
        FileNotFoundError, UnreadableError, DamagedFileError: as `read_bytes`; the last also if it is not UTF-8.
    """
    return _decoded(path, read_bytes(path))


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DamagedFileError(f"{path}: damaged: it is not UTF-8 text") from None


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; all its numbers are finite, and all its text can be printed.

    Raises:
        FileNotFoundError, UnreadableError, DamagedFileError: as `read_text`; the last also if it is not such a file.
    """
    return parse_json(path, read_bytes(path))


def parse_json(path: Path, content: bytes) -> Any:
    """Return the value in the content of a JSON file, as `read_json`.

    Raises:
        DamagedFileError: as `read_json`.
    """
    text = _decoded(path, content)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        # JSON may escape half of a surrogate pair, which no encoding can write.
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise DamagedFileError(f"{path}: damaged: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise DamagedFileError(f"{path}: damaged: it contains half of a surrogate pair") from None
    except ValueError as problem:
        raise DamagedFileError(f"{path}: damaged: not valid JSON: {problem}") from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number
