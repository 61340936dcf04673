"""Tests mutants: each in a process of its own, forked after the imports, with bounds on time and memory."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutation.lanes import Lanes, Queue, Report, supervised
from tests.mutation.mutants import Mutant
from tests.mutation.recording import PYTEST, Records, cpu_seconds

MEMORY = 4 * 2**30
"""Bytes that a mutant may allocate beyond what its process had when it was forked."""
SECONDS = 20.0
"""CPU time after which a mutant that no test has failed counts as survived, its slower tests unrun."""

Place = tuple[str, str, int]
"""Where a function is defined: file, qualified name, first line."""


@dataclass(frozen=True)
class Job:
    """A mutant to test; without a module, the tests run unchanged."""

    number: int
    module: str
    text: str
    tests: Sequence[tuple[str, float]]
    """Names of tests and their CPU seconds without a mutant, in the order to run them."""


class Runner:
    """A pytest plugin that runs chosen tests for mutants, and reports what became of each.

    Args:
        copy: the copy of the repository.
        report: receives a job's number and what killed the mutant; None if it survived.
    """

    def __init__(self, copy: Path, report: Callable[[int, str | None], None]) -> None:
        self.copy, self.report = copy, report
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def isolated(self, job: Job, run: Callable[[], str | None]) -> None:
        """Run a job's tests in a process of its own, with the mutant in the copy's file and temporary files apart."""
        file = self.copy / job.module if job.module else None
        original = (file.read_bytes(), file.stat()) if file else None

        def work() -> None:
            _limit(temporary)
            self.report(job.number, run())

        with tempfile.TemporaryDirectory(dir=self.copy.parent, ignore_cleanup_errors=True) as temporary:
            try:
                if file:
                    file.write_text(job.text, encoding="utf-8")
                    os.utime(file, (0, job.number + 1))  # bytecode of any other text is out of date
                status = supervised(work)
            finally:
                if file and original:
                    file.write_bytes(original[0])
                    os.utime(file, ns=(original[1].st_atime_ns, original[1].st_mtime_ns))
        if status in (-signal.SIGPROF, -signal.SIGALRM):
            self.report(job.number, "the time limit")
        elif status != 0:
            self.report(job.number, f"exit status {status}")

    def first_failure(self, job: Job, items: Iterable[pytest.Item]) -> str | None:
        """Run a job's tests in this process until one fails, and return its name."""
        start, by_name = cpu_seconds(), {item.nodeid: item for item in items}
        chosen = [(by_name[name], seconds) for name, seconds in job.tests if name in by_name]
        for (item, seconds), following in zip(chosen, [*(item for item, _ in chosen[1:]), None], strict=True):
            if job.module and cpu_seconds() - start > SECONDS:
                break
            limit = 5 + 10 * seconds
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, 2 * limit)  # ranks that wait for each other use no CPU time
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return item.nodeid
        return None


class SwappingRunner(Runner):
    """Tests mutants of function bodies: collects the tests once, then gives loaded functions each mutant's code."""

    def __init__(self, copy: Path, report: Callable[[int, str | None], None], jobs: Iterable[Job]) -> None:
        super().__init__(copy, report)
        self.jobs = jobs

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Test all mutants instead of running all tests."""
        functions: dict[Place, list[FunctionType]] = defaultdict(list)
        gc.unfreeze()  # get_objects leaves out what tests/conftest.py has frozen
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(str(self.copy)):
                functions[_place(thing.__code__)].append(thing)
        gc.freeze()

        def swapped(job: Job) -> str | None:
            file = str(self.copy / job.module)
            for code in _codes(compile(job.text, file, "exec", dont_inherit=True)):
                for function in functions[_place(code)]:
                    function.__code__ = code
            return self.first_failure(job, session.items)

        for job in self.jobs:
            self.isolated(job, partial(swapped, job))
        return True


class ImportingRunner(Runner):
    """Tests mutants that are executed at import: collects the tests anew for each."""

    killer: str | None = None

    def test(self, job: Job) -> None:
        """Test one mutant."""
        self.isolated(job, partial(self._collected, job))

    def _collected(self, job: Job) -> str | None:
        self.job = job
        files = dict.fromkeys(name.partition("::")[0] for name, _ in job.tests)
        code = pytest.main([*PYTEST, *files], plugins=[self])
        collected = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return self.killer or (None if collected else "import or collection")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the chosen tests instead of all."""
        if not session.testsfailed:
            self.killer = self.first_failure(self.job, session.items)
        return True


def kill(
    lanes: Lanes, found: Sequence[Mutant], tests: Mapping[str, Sequence[str]], records: Records
) -> list[str | None]:
    """Return what killed each mutant, None for those that survived."""
    texts = {mutant.module: (lanes.copy(0) / mutant.module).read_text(encoding="utf-8") for mutant in found}
    jobs = [
        Job(number, mutant.module, mutant.apply(texts[mutant.module]), records.chosen(mutant, tests[mutant.package]))
        for number, mutant in enumerate(found)
    ]
    untested = [job.number for job in jobs if not job.tests]
    at_import = [
        job.number
        for job in jobs
        if job.tests
        and (
            records.runs_at_import(found[job.number])
            or _variables_around(job.text) != _variables_around(texts[job.module])
        )
    ]
    swapped = Queue(lanes.scratch / "swapped", sorted({job.number for job in jobs} - {*untested, *at_import}))
    imported = Queue(lanes.scratch / "imported", at_import)
    files = sorted({name.partition("::")[0] for job in jobs for name, _ in job.tests})

    def work(copy: Path, report: Report) -> None:
        runner = SwappingRunner(copy, lambda *result: report(result), (jobs[number] for number in swapped))
        if supervised(partial(_collect, files, runner), end=signal.SIGTERM) != 0:
            sys.exit(1)
        importing = ImportingRunner(copy, lambda *result: report(result))
        for number in imported:
            importing.test(jobs[number])

    killers: dict[int, str | None] = {}
    start = time.monotonic()
    for number, killer in chain(((number, None) for number in untested), lanes.run(work)):
        killers.setdefault(number, killer)
        if killer is None:
            print(f"{found[number]} survived", flush=True)
        if len(killers) % 50 == 0 or len(killers) == len(jobs):
            left = (time.monotonic() - start) * (len(jobs) / len(killers) - 1) / 60
            print(f"{len(killers)} of {len(jobs)} mutants tested, {left:.0f} minutes left", flush=True)
    suspects = [(name, records.tests[name].seconds) for name in {*killers.values()} & records.tests.keys()]
    _check_killers(lanes, sorted(suspects, key=lambda suspect: suspect[1]), files)
    return [killers[number] for number in range(len(jobs))]


def _check_killers(lanes: Lanes, suspects: Sequence[tuple[str, float]], files: Sequence[str]) -> None:
    """Refuse the verdicts of a test that fails without a mutant too, in the order and place in which mutants ran."""
    queue = Queue(lanes.scratch / "suspects", [0])

    def work(copy: Path, report: Report) -> None:
        runner = SwappingRunner(copy, lambda *result: report(result), (Job(0, "", "", suspects) for _ in queue))
        supervised(partial(_collect, files, runner), end=signal.SIGTERM)

    for _, failed in lanes.run(work):
        if failed:
            sys.exit(f"{failed} killed mutants and fails without one too.")


def _collect(files: Sequence[str], runner: SwappingRunner) -> None:
    """Collect the tests of the files and hand them to a runner."""
    if pytest.main([*PYTEST, *files], plugins=[runner]) != pytest.ExitCode.OK:
        sys.exit(1)


def _limit(temporary: str) -> None:
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


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _variables_around(text: str) -> dict[Place, tuple[str, ...]]:
    """Return the variables that each function takes from around it; code can only be swapped for the same."""
    return {_place(code): code.co_freevars for code in _codes(compile(text, "module", "exec", dont_inherit=True))}
