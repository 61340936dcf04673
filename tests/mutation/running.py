"""Runs tests: unchanged, to record the lines that each of them executes, and on mutants."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import mmap
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

from tests.mutation.lanes import Lanes, Report, limit, supervised
from tests.mutation.mutants import Mutant

PYTEST = ("-q", "-s", "--tb=no", "-o", "faulthandler_timeout=0", "-p", "no:cacheprovider", "-p", "no:xdist")
"""Options for all runs of tests; output goes to a log."""
SECONDS = 20.0
"""CPU time after which a mutant that no test has failed counts as survived, its slower tests unrun."""
TIME_LIMIT = "the time limit"
"""What ended a mutant with which a test did not end in time."""


def _cpu_seconds() -> float:
    """Return the CPU time of this process and its ended children."""
    return sum(os.times()[:4])


# What each test executes


class _Recorder:
    """A pytest plugin that records the lines of some files which each test executes, and its CPU seconds.

    Those of all shared fixtures of its file count as a test's own, which may use them. A line is a place in ``places``.
    """

    def __init__(self, files: Iterable[str], root: Path) -> None:
        self.places: list[tuple[str, int]] = []
        self.first: dict[str, int] = {}
        for file in files:
            self.first[str(root / file)] = len(self.places)
            lines = (root / file).read_text(encoding="utf-8").count("\n") + 3
            self.places += [(file, line) for line in range(lines)]
        # A byte of shared memory for each, so that the lines of forked processes are recorded too.
        self.seen = mmap.mmap(-1, len(self.places) + 1)
        self.tests: dict[str, tuple[float, set[int]]] = {}
        self.shared: tuple[float, set[int]] = (0.0, set())
        self.imported: set[int] = set()
        self.failed: list[str] = []

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow the functions of the chosen files (a trace function)."""
        first = self.first.get(frame.f_code.co_filename)
        if first is None:
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                self.seen[first + frame.f_lineno] = 1
            return line

        return line

    def taken(self) -> set[int]:
        """Return the lines seen since the last call."""
        seen, self.seen[:] = self.seen[:], bytes(len(self.seen))
        return {place for place, hit in enumerate(seen) if hit}

    def pytest_collection_finish(self) -> None:
        self.imported = self.taken()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before, start = self.taken(), _cpu_seconds()
        try:
            return (yield)
        finally:
            self.shared = (self.shared[0] + _cpu_seconds() - start, self.shared[1] | self.taken())
            for place in before:
                self.seen[place] = 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record a test's lines and seconds."""
        self.taken()
        start, self.outcome = _cpu_seconds(), "passed"
        result = yield
        if self.outcome == "passed":
            self.tests[item.nodeid] = (_cpu_seconds() - start, self.taken())
        elif self.outcome == "failed":
            self.failed.append(item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.outcome = report.outcome

    def by_file(self, lines: Iterable[int]) -> dict[str, list[int]]:
        found = defaultdict(list)
        for file, line in (self.places[place] for place in sorted(lines)):
            found[file].append(line)
        return found

    def record(self, test_file: str, store: Path, digest: str) -> None:
        """Run a file's tests in this process, and store what they did with the digest of what it depends on."""
        sys.settrace(self.trace)
        code = pytest.main([*PYTEST, test_file], plugins=[self])
        sys.settrace(None)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not self.failed:
            self.failed.append(f"{test_file} (pytest ended with {code})")
        seconds, lines = self.shared
        content = {
            "digest": digest,
            "tests": {name: (own + seconds, self.by_file(seen | lines)) for name, (own, seen) in self.tests.items()},
            "imported": self.by_file(self.imported),
            "failed": self.failed,
        }
        store.write_text(json.dumps(content), encoding="utf-8")


class Records:
    """What the tests of every file execute without a mutant."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """CPU seconds of each test, those of shared fixtures included."""
        self.imported: set[tuple[str, int]] = set()
        """The lines, with their files, that are executed when modules are imported or tests collected."""
        self.by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.by_file: dict[str, set[str]] = defaultdict(set)

    def add(self, recording: Mapping[str, Any]) -> None:
        """Add what `_Recorder.record` stored."""
        self.imported |= {(file, line) for file, lines in recording["imported"].items() for line in lines}
        for name, (seconds, lines_by_file) in recording["tests"].items():
            self.seconds[name] = seconds
            for file, lines in lines_by_file.items():
                self.by_file[file].add(name)
                for line in lines:
                    self.by_line[file, line].add(name)

    def runs_at_import(self, mutant: Mutant) -> bool:
        """Return whether the changed statement is executed when modules are imported or tests collected."""
        return mutant.top_level or any((mutant.module, line) in self.imported for line in mutant.statement)

    def chosen(self, mutant: Mutant, test_files: Sequence[str]) -> list[str]:
        """Return the tests that may notice a mutant, in the order to run them.

        Those are the tests that execute the changed statement. What a module or class defines can be used anywhere:
        there, the tests that execute some of its file come first, then all others.
        """
        hits = set().union(*(self.by_line.get((mutant.module, line), ()) for line in mutant.statement))
        groups = [hits, self.by_file[mutant.module], set(self.seconds)] if mutant.top_level else [hits]

        def rank(name: str) -> tuple[int, str]:
            # By the power of two of the seconds, then by name, which keeps tests that share fixtures together.
            return math.ceil(math.log2(max(self.seconds[name], 0.01))), name

        ordered = [name for group in groups for name in sorted(group, key=rank)]
        return [name for name in dict.fromkeys(ordered) if name.partition("::")[0] in test_files]


def record(lanes: Lanes, sources: Mapping[str, Sequence[str]], cache: Path) -> Records:
    """Record what the tests of files execute, each on its own ``sources``, or end if one fails.

    A file that was recorded with the same texts is read from ``cache``.
    """
    copy = lanes.copy(0)
    shared = sorted([*copy.glob("tests/support/*.py"), *copy.glob("tests/**/conftest.py")])
    digests, stores, missing = {}, {}, []
    for file in sources:
        read = (Path(__file__), copy / file, *shared, *(copy / name for name in sources[file]))
        texts = [path.read_bytes() for path in read]
        digests[file] = hashlib.sha256(b"\0".join(texts)).hexdigest()
        stores[file] = cache / (file.replace("/", "-") + ".json")
        stored = json.loads(stores[file].read_text(encoding="utf-8")) if stores[file].exists() else {}
        if stored.get("digest") != digests[file]:
            stores[file].unlink(missing_ok=True)
            missing.append(file)
    queue = lanes.queue("files", range(len(missing)))

    def work(copy: Path, report: Report) -> None:
        for number in queue:
            file = missing[number]
            supervised(partial(_Recorder(sources[file], copy).record, file, stores[file], digests[file]))
            report(file)

    for done, file in enumerate(lanes.run(work), start=1):
        print(f"recorded {file} ({done} of {len(missing)})", flush=True)
    records = Records()
    for file, store in stores.items():
        recording = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
        if failed := recording.get("failed", [f"{file}: its process ended"]):
            store.unlink(missing_ok=True)
            sys.exit(f"{lanes.log()}\nThese tests fail without a mutant:\n" + "\n".join(failed))
        records.add(recording)
    return records


# Testing mutants


class _Job(NamedTuple):
    """A mutant to test; without a module, the tests run unchanged."""

    number: int
    module: str
    text: str
    tests: Sequence[str]
    """In the order to run them."""


class _Runner:
    """A pytest plugin that runs chosen tests for mutants, and reports what became of each."""

    def __init__(self, copy: Path, report: Report, seconds: Mapping[str, float]) -> None:
        self.copy, self.report, self.seconds = copy, report, seconds
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def isolated(self, job: _Job, run: Callable[[], str | None]) -> None:
        """Run a job's tests in a process of its own, with the mutant in the copy's file and temporary files apart.

        Report its number and what killed it, None if it survived.
        """
        file = self.copy / job.module
        original = (file.read_bytes(), file.stat().st_mtime_ns) if job.module else None

        def work() -> None:
            limit(temporary)
            self.report((job.number, run()))

        with tempfile.TemporaryDirectory(dir=self.copy.parent, ignore_cleanup_errors=True) as temporary:
            try:
                if original:
                    file.write_text(job.text, encoding="utf-8")
                    os.utime(file, (0, job.number + 1))  # bytecode of any other text is out of date
                status = supervised(work)
            finally:
                if original:
                    file.write_bytes(original[0])
                    os.utime(file, ns=(original[1], original[1]))
        if status:
            timed_out = status in (-signal.SIGPROF, -signal.SIGALRM)
            self.report((job.number, TIME_LIMIT if timed_out else f"exit status {status}"))

    def first_failure(self, job: _Job, items: Iterable[pytest.Item]) -> str | None:
        """Run a job's tests in this process until one fails, and return its name."""
        start, by_name = _cpu_seconds(), {item.nodeid: item for item in items}
        chosen = [by_name[name] for name in job.tests if name in by_name]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            if job.module and _cpu_seconds() - start > SECONDS:
                break
            limit = 5 + 10 * self.seconds[item.nodeid]
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, 2 * limit)  # ranks that wait for each other use no CPU time
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return item.nodeid
        return None


class _SwappingRunner(_Runner):
    """Tests mutants of function bodies: collects the tests once, then gives loaded functions each mutant's code."""

    def test(self, files: Sequence[str], jobs: Iterable[_Job]) -> int:
        """Test all ``jobs`` in a process that has collected the tests of ``files``; return its exit status."""
        self.jobs = jobs

        def collected() -> None:
            if pytest.main([*PYTEST, *files], plugins=[self]) != pytest.ExitCode.OK:
                sys.exit(1)

        return supervised(collected, end=signal.SIGTERM)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Test all mutants instead of running all tests."""
        functions: dict[Any, list[FunctionType]] = defaultdict(list)
        gc.unfreeze()  # get_objects leaves out what tests/conftest.py has frozen
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(str(self.copy)):
                functions[_place(thing.__code__)].append(thing)
        gc.freeze()

        def swapped(job: _Job) -> str | None:
            for code in _codes(job.text, str(self.copy / job.module)):
                for function in functions[_place(code)]:
                    function.__code__ = code
            return self.first_failure(job, session.items)

        for job in self.jobs:
            self.isolated(job, partial(swapped, job))
        return True


class _ImportingRunner(_Runner):
    """Tests mutants that are executed at import: collects the tests anew for each."""

    killer: str | None = None

    def test(self, job: _Job) -> None:
        """Test one mutant."""
        self.job = job
        self.isolated(job, self.collected)

    def collected(self) -> str | None:
        files = dict.fromkeys(name.partition("::")[0] for name in self.job.tests)
        code = pytest.main([*PYTEST, *files], plugins=[self])
        fine = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return self.killer or (None if fine else "import or collection")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the chosen tests instead of all."""
        if not session.testsfailed:
            self.killer = self.first_failure(self.job, session.items)
        return True


def kill(
    lanes: Lanes, found: Sequence[Mutant], tests: Mapping[str, Sequence[str]], records: Records
) -> list[str | None]:
    """Return what killed each mutant: a test, the time limit or an exit status; None for those that survived."""
    texts = {mutant.module: (lanes.copy(0) / mutant.module).read_text(encoding="utf-8") for mutant in found}
    jobs, at_import, in_functions = [], [], []
    killers: dict[int, str | None] = {}
    for number, mutant in enumerate(found):
        before, after = texts[mutant.module], mutant.apply(texts[mutant.module])
        jobs.append(_Job(number, mutant.module, after, records.chosen(mutant, tests[mutant.package])))
        if not jobs[-1].tests:
            killers[number] = None  # no test runs it
        # Code can be swapped only for code that takes the same variables from around it.
        elif records.runs_at_import(mutant) or _variables_around(before) != _variables_around(after):
            at_import.append(number)
        else:
            in_functions.append(number)
    swapped, imported = lanes.queue("swapped", in_functions), lanes.queue("imported", at_import)
    files = sorted({name.partition("::")[0] for job in jobs for name in job.tests})

    def work(copy: Path, report: Report) -> None:
        swapping = _SwappingRunner(copy, report, records.seconds)
        if swapping.test(files, (jobs[number] for number in swapped)) != 0:
            sys.exit(1)
        importing = _ImportingRunner(copy, report, records.seconds)
        for number in imported:
            importing.test(jobs[number])

    start = time.monotonic()
    for number, killer in lanes.run(work):
        killers.setdefault(number, killer)
        if len(killers) % 50 == 0 or len(killers) == len(jobs):
            left = (time.monotonic() - start) * (len(jobs) / len(killers) - 1) / 60
            print(f"{len(killers)} of {len(jobs)} mutants tested, {left:.0f} minutes left", flush=True)

    # A test that fails without a mutant too, in the order and place in which mutants ran, says nothing.
    suspects = sorted({*killers.values()} & records.seconds.keys(), key=lambda name: records.seconds[name])
    check = lanes.queue("suspects", [0])

    def verify(copy: Path, report: Report) -> None:
        runner = _SwappingRunner(copy, report, records.seconds)
        runner.test(files, (_Job(0, "", "", suspects) for _ in check))

    for _, failed in lanes.run(verify):
        if failed:
            sys.exit(f"{failed} killed mutants and fails without one too.")
    return [killers[number] for number in range(len(jobs))]


def _place(code: CodeType) -> tuple[str, str, int]:
    """Return where a function is defined."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(text: str, file: str) -> Iterator[CodeType]:
    """Yield the code of all functions and classes of a module."""
    waiting = [compile(text, file, "exec", dont_inherit=True)]
    while waiting:
        inside = [constant for constant in waiting.pop().co_consts if isinstance(constant, CodeType)]
        yield from inside
        waiting += inside


def _variables_around(text: str) -> dict[Any, tuple[str, ...]]:
    """Return the variables that each function takes from around it."""
    return {_place(code): code.co_freevars for code in _codes(text, "module")}
