"""Small disks, which only root can mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = 4096
_FILLER = "filler"


@contextmanager
def small_disk(path: Path, pages: int) -> Iterator[Path]:
    """Mount a file system of the given number of pages at ``path``; skip the test if that is not allowed."""
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE}", "small", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def read_only(path: Path) -> None:
    """Make a small disk read-only, also for root, which ignores file modes."""
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)


def leave(path: Path, pages: int) -> None:
    """Fill a small disk except for the given number of pages."""
    free(path)
    stat = os.statvfs(path)
    (path / _FILLER).write_bytes(b"x" * ((stat.f_bfree - pages) * PAGE))
    assert os.statvfs(path).f_bfree == pages


def free(path: Path) -> None:
    """Delete the file with which `leave` filled it."""
    (path / _FILLER).unlink(missing_ok=True)
