"""Read files that somebody may have damaged, misplaced or made unreadable; never waits on a FIFO or a device.

What is copied or published from a folder of others is read with ``within``: a link in it may lead to any file that this
user may read.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, Final

from workflow.bench.support.errors import DamagedFileError, UnreadableError

MOST_BYTES: Final = 2**30
"""The largest file that is read into memory as a whole, except checkpoints."""
MOST_JSON_BYTES: Final = 2**24
"""The largest JSON file that is parsed: 16 MB of ``[[],[],...`` become half a gigabyte of lists."""
_KINDS: Final = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def open_regular(path: Path, *, writable: bool = False, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: the file.
        writable: whether to open it for writing, too.
        within: a folder around the file, below which no part of its path may be a link.

    Raises:
        FileNotFoundError: it does not exist.
        UnreadableError: it is a folder, a FIFO, a socket or a device, it may not be read, or it is not ``within``.
    """
    if within is not None:
        if not path.is_relative_to(within) or ".." in path.parts:
            raise UnreadableError(f"{path}: cannot be read: it is not in {within}")
        for part in (*reversed(path.parents), path):
            if part != within and part.is_relative_to(within):
                _refuse_link(part)
    try:
        # Looked at before it is opened: opening a FIFO waits for a writer, and opening a device may have an effect.
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            raise UnreadableError(f"{path}: cannot be read: it is {_KINDS.get(kind, 'a device')}, not a file")
        handle = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except (FileNotFoundError, UnreadableError):
        raise
    except OSError as problem:
        raise UnreadableError(f"{path}: cannot be read: {problem.strerror}") from None
    return os.fdopen(handle, "r+b" if writable else "rb")


def refuse_links(folder: Path, *, but: Collection[str] = ()) -> None:
    """Raise `UnreadableError` on the first file or folder below ``folder`` that is a link.

    but: names of folders directly in ``folder`` that are not looked at.
    """
    for place, folders, files in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name not in but]
        # os.walk goes on in this order, so that the first link is the same on every file system.
        folders.sort()
        for name in sorted((*folders, *files)):
            _refuse_link(Path(place, name))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UnreadableError(f"{path}: is a link, to {path.readlink()}; put the file or folder itself in its place")


def is_regular(path: Path) -> bool:
    """Return whether a path is a file, as far as this user may know."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_bytes(path: Path, *, within: Path | None = None, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    within: as in `open_regular`. most: the largest number of bytes.

    Raises:
        FileNotFoundError: it does not exist.
        UnreadableError: it cannot be read, or is not ``within``.
        DamagedFileError: it is larger.
    """
    with open_regular(path, within=within) as file:
        # Refused by its size, before it fills the memory.
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DamagedFileError(f"{path}: damaged: it has {size} bytes, more than any such file")
        try:
            return file.read()
        except OSError as problem:  # a disk that fails; Python's own message would not name the file
            raise UnreadableError(f"{path}: cannot be read: {problem.strerror}") from None


def read_text(path: Path, *, within: Path | None = None) -> str:
    """Return the content of a regular file that is UTF-8 text.

    within: as in `open_regular`.

    Raises:
        FileNotFoundError, UnreadableError, DamagedFileError: as `read_bytes`; the last also if it is not UTF-8.
    """
    return _decoded(path, read_bytes(path, within=within))


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DamagedFileError(f"{path}: damaged: it is not UTF-8 text") from None


def read_json(path: Path, *, within: Path | None = None) -> Any:
    """Return the value in a JSON file; all its numbers are finite, and all its text can be printed.

    within: as in `open_regular`.

    Raises:
        FileNotFoundError, UnreadableError, DamagedFileError: as `read_text`; the last also if it is not such a file.
    """
    return parse_json(path, read_bytes(path, within=within, most=MOST_JSON_BYTES))


def parse_json(path: Path, content: bytes) -> Any:
    """Return the value in the content of a JSON file, as `read_json`.

    Raises:
        DamagedFileError: as `read_json`.
    """
    text = _decoded(path, content)
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        # JSON may escape half of a surrogate pair, which no encoding can write.
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise DamagedFileError(f"{path}: damaged: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise DamagedFileError(f"{path}: damaged: it contains half of a surrogate pair") from None
    except ValueError as problem:
        raise DamagedFileError(f"{path}: damaged: not valid JSON: {problem}") from None
    return value


def _finite(text: str) -> float:
    """Return a real number of JSON; Python also reads NaN, Infinity, and 1e999 as infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number
