"""Processes that work side by side, each in a copy of the repository of its own."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

Report = Callable[[Any], None]
"""Takes what a lane reports: anything that JSON can hold, in fewer than 4096 bytes."""
Work = Callable[[Path, Report], None]
"""A lane's work, given its copy of the repository."""


class Lanes:
    """Processes that work side by side, each in a copy of the repository of its own; none outlives the context."""

    def __init__(self, root: Path, scratch: Path, number: int) -> None:
        self.root, self.scratch, self.number = root, scratch, number
        self.pids: list[int] = []
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in names:
            if (root / name).is_file():
                (self.copy(0) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.copy(0) / name)
        compileall.compile_dir(self.copy(0), quiet=2)
        for lane in range(1, number):
            shutil.copytree(self.copy(0), self.copy(lane))

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)

    def copy(self, lane: int) -> Path:
        """Return the place of a lane's copy."""
        return self.scratch / str(lane) / "copy"

    def run(self, work: Work) -> Iterator[Any]:
        """Run ``work(copy, report)`` in every lane, and yield what the lanes report."""
        reading, writing = os.pipe()
        for lane in range(self.number):
            if (pid := os.fork()) == 0:
                _end_with(lambda lane=lane: self._work(lane, work, writing))
            self.pids.append(pid)
        os.close(writing)
        with open(reading, encoding="utf-8") as reports:  # noqa: PTH123 - a pipe
            yield from map(json.loads, reports)
        for pid in self.pids.copy():
            status = os.waitpid(pid, 0)[1]
            self.pids.remove(pid)
            if status:
                sys.exit(f"{self.log()}\nThe tests of an unchanged copy did not run: see above.")

    def log(self) -> str:
        """Return the end of what the lanes' tests printed."""
        logs = [self.scratch / str(lane) / "log" for lane in range(self.number)]
        return "\n".join(log.read_text(encoding="utf-8", errors="replace")[-3000:] for log in logs if log.exists())

    def _work(self, lane: int, work: Work, writing: int) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        enter(self.copy(lane), self.root, self.scratch / str(lane) / "log")
        work(self.copy(lane), lambda report: _write(writing, report))


def _write(descriptor: int, report: Any) -> None:
    os.write(descriptor, (json.dumps(report) + "\n").encode())


class Queue:
    """Numbers that several forked processes take one by one: they share the offset of an open file."""

    def __init__(self, file: Path, numbers: Sequence[int]) -> None:
        file.write_bytes(b"".join(number.to_bytes(4, "big") for number in numbers))
        self.descriptor = os.open(file, os.O_RDONLY)

    def __iter__(self) -> Iterator[int]:
        while number := os.read(self.descriptor, 4):
            yield int.from_bytes(number, "big")


def supervised(work: Callable[[], object], *, end: signal.Signals = signal.SIGKILL) -> int:
    """Run a function in a forked process group; return its exit status, negative for a signal. Nothing outlives it.

    Args:
        work: the function.
        end: the signal that ends the group with this process; SIGTERM if the function supervises processes itself.
    """
    pid = os.fork()
    if pid == 0:
        _end_with(work)
    waited = False
    try:
        _, status = os.waitpid(pid, 0)
        waited = True
        return os.waitstatus_to_exitcode(status)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, end)
        if not waited:
            os.waitpid(pid, 0)


def _end_with(work: Callable[[], object]) -> NoReturn:
    """Run a function in a process group of its own, and end the process."""
    status = 1
    try:
        os.setpgid(0, 0)
        work()
        status = 0
    except Exception:  # noqa: BLE001 - the process ends here, and its log may be shown
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def enter(copy: Path, root: Path, log: Path) -> None:
    """Make a copy of the repository the place from which this process imports, and send its output to a log."""
    os.chdir(copy)
    sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry or ".").resolve() not in (root, copy))]
    for name in [name for name in sys.modules if name.partition(".")[0] in {path.stem for path in copy.iterdir()}]:
        del sys.modules[name]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
