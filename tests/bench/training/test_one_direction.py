"""A run's way through training is one direction: every call goes to a module further down, and each stage runs once."""

from __future__ import annotations

import ast
import io
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from tests.support.experiments import block, load, make_folder, optimizer, write
from workflow.bench.support.config import ROOT
from workflow.bench.training import one_run
from workflow.bench.training.build import Setting
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder
from workflow.bench.workloads import create

FOLDER = ROOT / "workflow" / "bench" / "training"
ROOM = "workflow.bench.training"
LEVELS = [
    {"launcher", "stop_signals", "lr_schedules", "peak_memory", "progress", "checkpoint_header", "fitting", "effects"},
    {"clocks"},
    {"device_clocks"},
    {"record"},
    {"checkpoint", "watchdog", "summary"},
    {"ranks", "checkpoint_writer"},
    {"batch_shares", "precision"},
    {"build"},
    {"state", "early_ends", "replicas"},
    {"loop", "resume"},
    {"one_run"},
    {"runner", "timed_steps"},
]
"""The modules of the room from the lowest up; each may import and call those of lower levels only."""
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
STAGES = ("prepare", "build", "TrainingState.__init__", "Loop.run", "summarize", "write_summary")


def test_modules_of_the_room_import_lower_levels_only():
    modules = {file.stem: file for file in FOLDER.glob("*.py") if file.stem != "__init__"}
    assert modules.keys() == LEVEL.keys()
    for name, file in modules.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(ROOM):
                continue
            imported = (node.module or "").removeprefix(f"{ROOM}.")
            for used in [alias.name for alias in node.names] if node.module == ROOM else [imported]:
                assert LEVEL[used] < LEVEL[name], f"{name} imports {used}"


@cache
def module_of(file: str) -> str | None:
    """Return the room's module in a file, None for other files."""
    return Path(file).stem if Path(file).parent == FOLDER else None


class Calls:
    """Counts calls of functions of the room, and notes those from a lower level to a higher one."""

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
        if caller is not None and LEVEL[caller] < LEVEL[callee]:
            self.upward.add((caller, callee))


@pytest.mark.parametrize("resumes", [False, True], ids=["new", "resumed"])
def test_every_call_of_a_run_goes_down_and_each_stage_runs_once(resumes: bool, tmp_path: Path):
    write(make_folder(tmp_path / "config"), "one", block(optimizer("mkor", inverse_update_period=3), evaluate_every=5))
    run = load(tmp_path / "config").job("one", "mkor").runs[0]
    workload, begun = create(**run.spec["workload"]), RunFolder(tmp_path / "begun")
    # An interrupted run comes first in both cases, so that nothing is imported while calls are followed.
    steps = iter(range(1, 100))
    stopping = Setting(torch.device("cpu"), 60, Progress(1, io.StringIO()), lambda: next(steps) >= 7)
    assert one_run.train(run, workload, begun, stopping) == "interrupted"

    folder = begun if resumes else RunFolder(tmp_path / "new")
    setting = Setting(torch.device("cpu"), 60, Progress(1, io.StringIO()), lambda: False, checkpoint_steps=8)
    calls = Calls()
    sys.setprofile(calls)
    try:
        assert one_run.train(run, workload, folder, setting, keep_weights=True) == "finished"
    finally:
        sys.setprofile(None)
    assert calls.upward == set()
    assert {stage: calls.counts[stage] for stage in STAGES} == dict.fromkeys(STAGES, 1)
    assert calls.counts["TrainingState.save"] >= 1
