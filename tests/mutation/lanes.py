"""Processes that work side by side, each in a copy of the repository of its own, with bounds on time and memory."""

from __future__ import annotations

import compileall
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

MEMORY = 4 * 2**30
"""Bytes that a mutant may allocate beyond what its process had when it was forked."""

Report = Callable[[Any], None]
"""Takes what a lane reports: anything that JSON can hold, in fewer than 4096 bytes, which a pipe takes whole."""


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

    def run(self, work: Callable[[Path, Report], None]) -> Iterator[Any]:
        """Run ``work(copy, report)`` in every lane, and yield what the lanes report."""
        reading, writing = os.pipe()

        def report(result: Any) -> None:
            os.write(writing, (json.dumps(result) + "\n").encode())

        def in_lane(lane: int) -> None:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            _enter(self.copy(lane), self.root, self.scratch / str(lane) / "log")
            work(self.copy(lane), report)

        self.pids = [_forked(partial(in_lane, lane)) for lane in range(self.number)]
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

    def queue(self, name: str, numbers: Sequence[int]) -> Iterator[int]:
        """Return numbers that the lanes take one by one: forked processes share the offset of an open file."""
        file = self.scratch / name
        file.write_bytes(b"".join(number.to_bytes(4, "big") for number in numbers))
        descriptor = os.open(file, os.O_RDONLY)
        return (int.from_bytes(number, "big") for number in iter(partial(os.read, descriptor, 4), b""))


def _forked(work: Callable[[], object]) -> int:
    """Run a function in a process of its own, which leads a new process group; return its id."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        work()
        status = 0
    except Exception:  # noqa: BLE001 - the process ends here, and its log may be shown
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def supervised(work: Callable[[], object], *, end: signal.Signals = signal.SIGKILL) -> int:
    """Run a function in a forked process group; return its exit status, negative for a signal. Nothing outlives it.

    end: the signal that ends the group with this process; SIGTERM if the function supervises processes itself.
    """
    # While Python forks, it would swallow what the handler of SIGTERM raises.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = _forked(work)
    waited = False
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        status = os.waitpid(pid, 0)[1]
        waited = True
        return os.waitstatus_to_exitcode(status)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, end)
        if not waited:
            os.waitpid(pid, 0)


def _enter(copy: Path, root: Path, log: Path) -> None:
    """Make a copy of the repository the place from which this process imports, and send its output to a log."""
    os.chdir(copy)
    sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry or ".").resolve() not in (root, copy))]
    own = {path.stem for path in copy.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)


def limit(temporary: str) -> None:
    """Bound this process's memory, leave bytecode alone, and put temporary files into a folder."""
    sys.dont_write_bytecode = True
    tempfile.tempdir = temporary
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": temporary, "PYTEST_DEBUG_TEMPROOT": temporary}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        size = int(statistics.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
