"""Files that are either whole or not there: atomic writes, and locks that die with their process."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

_UNFINISHED: Final = ".unfinished"
_LOOK_AGAIN: Final = 0.2
"""Seconds between two looks at a lock that another process holds."""


def write_atomically(path: Path, *parts: bytes | str, previous: Path | None = None) -> None:
    """Write ``parts``, one after the other, to ``path``, which holds the old content or the new, never a part of one.

    Folders on the way are made.  What stood at ``path`` is kept as ``previous``, where that is given; a crash in
    between leaves at least one of the two.  Raises `OSError` (disk full, unwritable), leaving nothing behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, since a rename is atomic within one file system only; a name of its own, since two
    # processes may write the same file.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_UNFINISHED, dir=path.parent)
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an `OSError` name ``path`` where it names no file: one of writing to an open file says only what happened."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            raise OSError(problem.errno, problem.strerror, str(path)) from None
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove what `write_atomically` left in ``folder`` where its process was killed.

    No other process may be writing there.
    """
    for path in folder.glob(f".*{_UNFINISHED}"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically.  Raises `ValueError` on NaN or infinity."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class GivenUpError(Exception):
    """A lock that was waited for in vain."""


@contextmanager
def locked(
    path: Path, on_wait: Callable[[], None] = lambda: None, give_up: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold the lock ``path``; where another process has it, call ``on_wait`` once and wait.

    The kernel drops the lock when its process ends, however it ends.  Raises `GivenUpError` once ``give_up`` says so.
    """
    with first_free([path], on_wait, give_up):
        yield


@contextmanager
def first_free(
    paths: Sequence[Path], on_wait: Callable[[], None] = lambda: None, give_up: Callable[[], bool] = lambda: False
) -> Iterator[int]:
    """Hold the first lock of ``paths`` that no other process has, and yield its position.

    Where all are held, call ``on_wait`` once and wait for one.  Raises `GivenUpError` once ``give_up`` says so.
    """
    with ExitStack() as opened:
        files = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.append(opened.enter_context(path.open("w")))
        found = _first_locked(files)
        if found is None:
            on_wait()
        # Asked again and again: a wait inside the kernel would go on after a signal.
        while found is None:
            if give_up():
                raise GivenUpError
            time.sleep(_LOOK_AGAIN)
            found = _first_locked(files)
        yield found


def _first_locked(files: Sequence[IO[str]]) -> int | None:
    """Lock the first file that can be locked at once, and return its position."""
    for position, file in enumerate(files):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return position
    return None


def _umask() -> int:
    """Return the process's umask, which the system tells only by setting one."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the lock ``path``."""
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
