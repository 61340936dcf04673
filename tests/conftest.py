"""Prints what the contract suite checked of every method, and what tests of faults counted."""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import settings

from tests.support.tally import counted

# `make test-faults` makes ten times as many mutants.
settings.register_profile("long", max_examples=1000)

CONTRACT = "test_methods.py::test_"

LONGEST = (
    "pipeline/test_miniature.py",
    "pipeline/test_pipeline.py",
    "docs/test_adding_an_optimizer.py",
    "commands/test_fuzz.py",
    "commands/test_faults.py",
    "training/test_train.py",
    "training/test_train_ranks.py",
    "support/test_source_code.py",
    "mkor_core/test_distributed.py",
)
"""Test files that take longest, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, so that no worker is left with one of them at the end."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get("/".join(item.path.parts[-2:]), len(rank)))


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
    """List the contract's points by method, with how many cases passed, and what was left out and why; then figures."""
    from baselines import available

    if counted:
        terminalreporter.section("faults")
        for what, number in counted.items():
            terminalreporter.line(f"{what}: {number}")

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
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                left_out[method].append(f"{point.replace('_', ' ')}: {reason.removeprefix('Skipped: ')}")
    if not checked:
        return
    terminalreporter.section("the contract, method by method")
    for method in available():
        points = ", ".join(f"{point} ({cases})" if cases > 1 else point for point, cases in checked[method].items())
        terminalreporter.line(f"{method}: {points or 'nothing'}")
        for reason in left_out[method]:
            terminalreporter.line(f"    left out: {reason}")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Keep tests that run side by side from taking each other's core."""
    import torch

    torch.set_num_threads(1)
