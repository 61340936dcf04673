"""Which lines of the code every test executes when nothing is changed."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import mmap
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutation.lanes import Lanes, Queue, Report, supervised
from tests.mutation.mutants import Mutant

PYTEST = ("-q", "-s", "--tb=no", "-o", "faulthandler_timeout=0", "-p", "no:cacheprovider", "-p", "no:xdist")
"""Options for all runs of tests; output goes to a log."""


@dataclass
class Test:
    """What one test did without a mutant."""

    seconds: float
    """CPU time, that of the fixtures that it uses included."""
    lines: dict[str, list[int]]
    """The lines of each file that it executed."""


@dataclass
class Recording:
    """What a file's tests did without a mutant."""

    tests: dict[str, Test] = field(default_factory=dict)
    imported: dict[str, list[int]] = field(default_factory=dict)
    """Lines that were executed at import, or while tests were collected."""
    failed: list[str] = field(default_factory=list)

    def write(self, file: Path, digest: str) -> None:
        """Write it with the digest of what it depends on."""
        file.write_text(json.dumps({"digest": digest, **asdict(self)}), encoding="utf-8")

    @classmethod
    def read(cls, file: Path, digest: str) -> Recording | None:
        """Return a recording that was written with the same digest."""
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if stored.pop("digest", None) != digest:
            return None
        tests = {name: Test(**test) for name, test in stored.pop("tests").items()}
        return cls(tests, **stored)


class Recorder:
    """A pytest plugin that records the lines of some files which each test executes.

    The lines are bytes of shared memory, so that those of forked processes are recorded too.
    """

    def __init__(self, files: Iterable[str], root: Path) -> None:
        self.recording = Recording()
        self.first: dict[str, int] = {}
        self.names = {str(root / file): file for file in files}
        size = 0
        for file in self.names:
            self.first[file] = size
            size += len(Path(file).read_text(encoding="utf-8").splitlines()) + 1
        self.size = size
        self.seen, self.imported = mmap.mmap(-1, size), mmap.mmap(-1, size)
        self.fixtures: dict[Any, tuple[float, bytes]] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow the functions of the chosen files (a trace function)."""
        first = self.first.get(frame.f_code.co_filename)
        if first is None:
            return None
        # The body of a module or class is executed once, whichever test happens to import it.
        target = self.seen if frame.f_code.co_flags & inspect.CO_OPTIMIZED else self.imported

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                target[first + frame.f_lineno] = 1
            return line

        return line

    def take(self) -> bytes:
        """Return the lines seen since the last call."""
        seen = self.seen[:]
        self.seen[:] = bytes(self.size)
        return seen

    def by_file(self, *parts: bytes) -> dict[str, list[int]]:
        """Return the lines of each file in any of the parts."""
        union = [any(values) for values in zip(*parts, strict=True)]
        ends = [*list(self.first.values())[1:], self.size]
        lines = {
            self.names[file]: [place - first for place in range(first, end) if union[place]]
            for (file, first), end in zip(self.first.items(), ends, strict=True)
        }
        return {file: found for file, found in lines.items() if found}

    def pytest_collection_finish(self) -> None:
        self.imported_by_collection = self.take()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Record a shared fixture's lines and seconds apart: they belong to every test that uses it."""
        if fixturedef.scope == "function":
            return (yield)
        before, start = self.take(), cpu_seconds()
        try:
            return (yield)
        finally:
            self.fixtures[fixturedef] = (cpu_seconds() - start, self.take())
            self.seen[:] = before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record a test's lines and seconds."""
        self.take()
        start, known = cpu_seconds(), set(self.fixtures)
        self.outcome = "passed"
        result = yield
        seconds, lines = cpu_seconds() - start, self.take()
        definitions = {d for values in item._fixtureinfo.name2fixturedefs.values() for d in values}  # type: ignore[attr-defined]
        used = {d: self.fixtures[d] for d in definitions if d in self.fixtures}
        seconds += sum(time for definition, (time, _) in used.items() if definition in known)
        if self.outcome == "passed":
            test = Test(round(seconds, 4), self.by_file(lines, *(fixture for _, fixture in used.values())))
            self.recording.tests[item.nodeid] = test
        elif self.outcome == "failed":
            self.recording.failed.append(item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.outcome = report.outcome

    def record(self, test_file: str) -> Recording:
        """Run a file's tests in this process."""
        sys.settrace(self.trace)
        code = pytest.main([*PYTEST, test_file], plugins=[self])
        sys.settrace(None)
        self.recording.imported = self.by_file(self.imported[:], self.imported_by_collection)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not self.recording.failed:
            self.recording.failed.append(f"{test_file} (pytest ended with {code})")
        return self.recording


def cpu_seconds() -> float:
    """Return the CPU time of this process and its ended children."""
    return sum(os.times()[:4])


class Records:
    """What the tests of every file execute without a mutant."""

    def __init__(self, recordings: Mapping[str, Recording]) -> None:
        self.tests: dict[str, Test] = {}
        self.imported: set[tuple[str, int]] = set()
        self.by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.by_file: dict[str, set[str]] = defaultdict(set)
        for recording in recordings.values():
            self.tests |= recording.tests
            self.imported |= {(file, line) for file, lines in recording.imported.items() for line in lines}
        for name, test in self.tests.items():
            for file, lines in test.lines.items():
                self.by_file[file].add(name)
                for line in lines:
                    self.by_line[file, line].add(name)

    def runs_at_import(self, mutant: Mutant) -> bool:
        """Whether the changed statement is executed when modules are imported or tests collected."""
        return mutant.top_level or any((mutant.module, line) in self.imported for line in mutant.statement)

    def chosen(self, mutant: Mutant, test_files: Sequence[str]) -> list[tuple[str, float]]:
        """Return the tests that may notice a mutant, in the order to run them, and their seconds.

        Those are the tests that execute the changed statement. What a module or class defines can be used anywhere:
        there, the tests that execute some of its file come first, then all others.
        """
        hits = set().union(*(self.by_line.get((mutant.module, line), ()) for line in mutant.statement))
        groups = [hits, self.by_file[mutant.module], set(self.tests)] if mutant.top_level else [hits]
        ordered: dict[str, float] = {}
        for group in groups:
            within = [name for name in group if name.partition("::")[0] in test_files]
            ordered |= {
                name: self.tests[name].seconds for name in sorted(within, key=self._rank) if name not in ordered
            }
        return list(ordered.items())

    def _rank(self, name: str) -> tuple[int, str]:
        """Sort by the power of two of the seconds, then by name, which keeps tests that share fixtures together."""
        return math.ceil(math.log2(max(self.tests[name].seconds, 0.01))), name


def record(lanes: Lanes, sources: Mapping[str, Sequence[str]], cache: Path) -> Records:
    """Record what the tests of files execute; a file that was recorded with the same texts is read.

    Args:
        lanes: where to run the tests.
        sources: the test files, each with the files of code whose lines to record.
        cache: the folder of recordings.

    Raises:
        SystemExit: a test fails.
    """
    copy = lanes.copy(0)
    shared = sorted([*copy.glob("tests/support/*.py"), *copy.glob("tests/**/conftest.py")])
    digests = {file: _digest([copy / file, *shared, *(copy / name for name in sources[file])]) for file in sources}
    stores = {file: cache / (file.replace("/", "-") + ".json") for file in sources}
    recordings = {file: Recording.read(stores[file], digests[file]) for file in sources}
    missing = [file for file, recording in recordings.items() if recording is None]
    queue = Queue(lanes.scratch / "files", range(len(missing)))

    def work(copy: Path, report: Report) -> None:
        for number in queue:
            file = missing[number]
            recorder = Recorder(sources[file], copy)
            supervised(lambda file=file, r=recorder: r.record(file).write(stores[file], digests[file]))
            report(file)

    for done, file in enumerate(lanes.run(work), start=1):
        print(f"recorded {file} ({done} of {len(missing)})", flush=True)
        recording = recordings[file] = Recording.read(stores[file], digests[file])
        if recording is None or recording.failed:
            stores[file].unlink(missing_ok=True)
            failed = recording.failed if recording else [f"{file}: its process ended"]
            sys.exit(f"{lanes.log()}\nThese tests fail without a mutant:\n" + "\n".join(failed))
    return Records({file: recording for file, recording in recordings.items() if recording})


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
