"""Files that are either whole or absent: atomic writes, and locks that die with their process."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout, lock_descriptor

from workflow.bench.support.reading import open_regular

_UNFINISHED_SUFFIX: Final = ".unfinished"
LONGEST_FILE_NAME: Final = 255 - len(f"..{'x' * 8}{_UNFINISHED_SUFFIX}")
"""The most bytes of the name of a file that `write_atomically` can write, by way of a file with a longer name."""
_POLL_SECONDS: Final = 0.2
"""Seconds between two attempts to take a lock that another process holds."""
# The system reveals a process's umask only by setting a new one, for all threads: so at import, when there is but one.
_UMASK: Final = os.umask(0o077)
os.umask(_UMASK)


def write_atomically(path: Path, *parts: bytes | memoryview | str, previous: Path | None = None) -> None:
    """Write ``parts``, one after the other, to ``path``; at any moment the file holds the old or the new content.

    Missing parent folders are created. If ``previous`` is given, the old file is kept under that name; a crash between
    the two renames leaves at least one of the files.

    Raises:
        OSError: the disk is full or the folder is not writable; no partial file is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the target's folder, because a rename is atomic within one file system only. The name is unique, because two
    # processes may write the same file.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_UNFINISHED_SUFFIX, dir=path.parent)
    try:
        with name_in_errors(path), os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
            # On the disk before the rename: after a power cut the name must not lead to an empty file.
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that nobody else may read, but others read results.
        Path(name).chmod(0o666 & ~_UMASK)
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add ``path`` to an `OSError` that names no file, such as one from writing to an open file."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            raise OSError(problem.errno, problem.strerror, str(path)) from None
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of calls to `write_atomically` in ``folder`` whose process was killed.

    No other process may be writing to the folder.
    """
    for path in folder.glob(f".*{_UNFINISHED_SUFFIX}"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically.

    Raises:
        ValueError: the value contains NaN or infinity.
    """
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(
    path: Path, on_wait: Callable[[], None] = lambda: None, give_up: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold the lock file ``path``; if another process holds it, call ``on_wait`` once and wait.

    The kernel releases the lock when the process ends, however it ends.

    Raises:
        filelock.Timeout: ``give_up`` returned True during the wait.
    """
    with first_free([path], on_wait, give_up):
        yield


@contextmanager
def first_free(
    paths: Sequence[Path], on_wait: Callable[[], None] = lambda: None, give_up: Callable[[], bool] = lambda: False
) -> Iterator[int]:
    """Hold the first of the lock files ``paths`` that no other process holds, and yield its index.

    If all are held, call ``on_wait`` once and wait for one.

    Raises:
        filelock.Timeout: ``give_up`` returned True during the wait.
    """
    # A file system without flock is an error: filelock's substitute would outlive a killed process.
    locks = [FileLock(path, blocking=False, fallback_to_soft=False) for path in paths]
    has_waited = False
    # Polled, because a wait inside the kernel would not end when a signal handler asks to stop.
    while (index := _first_acquired(locks)) is None:
        if not has_waited:
            on_wait()
        if give_up():
            raise Timeout(str(paths[0]))
        has_waited = True
        time.sleep(_POLL_SECONDS)
    try:
        yield index
    finally:
        locks[index].release()


def _first_acquired(locks: Sequence[FileLock]) -> int | None:
    """Acquire the first lock that is free, and return its index; None if none is free."""
    for index, lock in enumerate(locks):
        with suppress(Timeout):
            lock.acquire()
            return index
    return None


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file ``path``.

    Raises:
        UnreadableError: it is not a file that may be read.
    """
    try:
        # Readers of other people's results may lack write permission. With it, the file is opened for writing, because
        # NFS grants an exclusive lock on writable files only.
        with open_regular(path, writable=os.access(path, os.W_OK)) as file:
            return not lock_descriptor(file.fileno(), blocking=False)
    except FileNotFoundError:
        return False
