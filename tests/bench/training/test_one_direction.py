"""A run's way through training is one direction: no module calls one that imports it, and each stage runs once."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.trained import after, run_of, train
from workflow.bench.support.config import ROOT
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads.base import Workload

FOLDER = ROOT / "workflow" / "bench" / "training"
ROOM = "workflow.bench.training"
STAGES = ("prepare", "build", "TrainingState.__init__", "Loop.run", "summarize", "write_summary")


@cache
def below(name: str) -> frozenset[str]:
    """Return the modules of the room that a module imports, directly or not; tests/test_imports.py excludes circles."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(ROOM):
            inside = node.module.removeprefix(ROOM).removeprefix(".")
            found |= {inside} if inside else {alias.name for alias in node.names}
    return frozenset(found.union(*map(below, found)))


@cache
def module_of(file: str) -> str | None:
    """Return the room's module in a file, None for other files."""
    return Path(file).stem if Path(file).parent == FOLDER else None


class Calls:
    """Counts calls of functions of the room, and notes those of a module by one below it."""

    def __init__(self) -> None:
        self.upward: set[tuple[str, str]] = set()
        self.counts: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take an event of `sys.setprofile`."""
        callee = module_of(frame.f_code.co_filename)
        if event != "call" or callee is None:
            return
        self.counts[frame.f_code.co_qualname] += 1
        # The caller may be several frames away, with torch or mkor_core in between.
        outer, caller = frame.f_back, None
        while outer is not None and caller is None:
            caller = module_of(outer.f_code.co_filename)
            outer = outer.f_back
        if caller is not None and caller in below(callee):
            self.upward.add((caller, callee))


@pytest.mark.parametrize("resumes", [False, True], ids=["new", "resumed"])
def test_every_call_of_a_run_goes_down_and_each_stage_runs_once(
    resumes: bool, folder: Path, workload: Workload, tmp_path: Path
):
    run = run_of(folder, "mkor", {"evaluate_every": 5}, inverse_update_period=3)
    begun = RunFolder(tmp_path / "begun")
    # An interrupted run comes first in both cases, so that nothing is imported while calls are followed.
    assert train(run, workload, begun, after(7)) == "interrupted"
    place = begun if resumes else RunFolder(tmp_path / "new")
    calls = Calls()
    sys.setprofile(calls)
    try:
        assert train(run, workload, place, checkpoint_steps=8) == "finished"
    finally:
        sys.setprofile(None)
    assert calls.upward == set()
    assert {stage: calls.counts[stage] for stage in STAGES} == dict.fromkeys(STAGES, 1)
    assert calls.counts["TrainingState.save"] >= 1
