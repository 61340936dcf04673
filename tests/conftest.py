"""Prints what the contract suite checked of every method, what tests of faults counted, and what was not checked."""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from tests.support.tally import counted, shortfalls
from tests.support.unchecked import reason_of, unchecked

# Triton's kernels run in its interpreter where it is installed; it reads this when it is imported, by PyTorch perhaps.
os.environ.setdefault("TRITON_INTERPRET", "1")
# No example has a time limit: a loaded machine would fail it. `make test-faults` makes ten times as many mutants.
settings.register_profile("untimed", deadline=None)
settings.register_profile("long", max_examples=1000, deadline=None)
if settings.get_current_profile_name() == "default":  # and not one of the program that runs the tests
    settings.load_profile("untimed")

COUNTS = "counts"
"""The key of a test's counts in its report, which pytest-xdist sends from the worker to the process that prints."""
total: Counter[str] = Counter()
"""The counts of all tests reported so far."""

CONTRACT = "test_methods.py::test_"

LONGEST = (
    "pipeline/test_miniature.py",
    "training/test_train_ranks.py",
    "pipeline/test_pipeline.py",
    "cluster/test_profile_polaris.py",
    "figures/test_artefacts.py",
    "baselines/test_methods.py",
    "mkor_core/test_sharded.py",
    "mkor_core/test_state_on_ranks.py",
    "training/test_train.py",
    "training/test_runner.py",
    "docs/test_adding.py",
    "support/test_source_code.py",
    "mkor_core/test_compiled.py",
    "commands/test_faults.py",
    "workloads/test_workloads.py",
    "commands/test_fuzz_records.py",
)
"""Test files that take longest, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, so that no worker is left with one of them at the end."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get("/".join(item.path.parts[-2:]), len(rank)))


GARBAGE = 50_000
"""New objects after which Python looks for unreachable cycles; its default, 700, takes a tenth of the tests' time."""


def pytest_collection_finish() -> None:
    """Keep libraries and collected tests out of garbage collections, which would go through all of them each time."""
    gc.set_threshold(GARBAGE)
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep what a file has imported out of the collections of the next one."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-counts",
        action="store_true",
        help="fail unless the tests tried as many faults as tests/support/tally.py requires",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what a phase of a test counted to its report."""
    report = yield
    report.user_properties.append((COUNTS, dict(counted)))
    counted.clear()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the counts of all tests, from whichever worker they come."""
    for name, counts in report.user_properties:
        if name == COUNTS and isinstance(counts, dict):
            # Counter.update adds, and keeps counts of 0.
            total.update(counts)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that had to reach the required counts and did not."""
    if _shortfalls(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _shortfalls(config: pytest.Config) -> list[str]:
    """Return a line for each required count that the whole run, not a worker, did not reach."""
    from baselines import available

    is_worker = hasattr(config, "workerinput")
    return shortfalls(total, available()) if config.getoption("--require-counts") and not is_worker else []


@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """Report every warning under its built-in category, its own name in front of its text.

    pytest-xdist's controller imports the module of a warning's class to rebuild it, and dies where that import fails:
    Lightning's needs torchvision, which does not import in a process that has not declared its missing operators.
    """
    category = warning_message.category
    if category.__module__ != "builtins":
        builtin = next(base for base in category.__mro__ if base.__module__ == "builtins")
        warning_message.category = builtin
        warning_message.message = builtin(f"{category.__name__}: {warning_message.message}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what the fault tests counted, and the contract's points by method: cases passed, and what was left out."""
    from baselines import available

    if total:
        terminalreporter.section("faults")
        for what, number in sorted(total.items()):
            terminalreporter.line(f"{what}: {number}")
        for line in _shortfalls(terminalreporter.config):
            terminalreporter.line(f"NOT REACHED: {line}")

    checked: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    left_out: dict[str, list[str]] = defaultdict(list)
    for outcome in ("passed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            _, found, test = report.nodeid.partition(CONTRACT)
            point, _, case = test.rstrip("]").partition("[")
            method = max((n for n in available() if case == n or case.startswith(f"{n}-")), key=len, default=None)
            method = method or next((n for n in available() if case.endswith(f"-{n}") or f"-{n}-" in case), None)
            if not found or method is None or (outcome == "passed" and report.when != "call"):
                continue
            if outcome == "passed":
                checked[method][point.replace("_", " ")] += 1
            else:
                left_out[method].append(f"{point.replace('_', ' ')}: {reason_of(report)}")
    if not checked:
        return
    terminalreporter.section("the contract, method by method")
    for method in available():
        points = ", ".join(f"{point} ({cases})" if cases > 1 else point for point, cases in checked[method].items())
        terminalreporter.line(f"{method}: {points or 'nothing'}")
        for reason in left_out[method]:
            terminalreporter.line(f"    left out: {reason}")


APART = ("test-faults", "test-slurm", "test-mutations")
"""Targets of make whose tests a run of all tests leaves out; that of the kernels counts as skipped without Triton."""


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line of a run what it did not check."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    apart = APART if config.args_source is config.ArgsSource.TESTPATHS else ()
    if line := unchecked(reporter.stats.get("skipped", []), CONTRACT, apart):
        reporter.write_line(line)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Keep tests that run side by side from taking each other's core."""
    import torch

    torch.set_num_threads(1)
