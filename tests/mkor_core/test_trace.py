"""What one step of two layers on one process passes through: few files, few functions, few calls."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import mkor_core
from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, Method, Preconditioner
from workflow.bench.support.config import ROOT

CORE = Path(mkor_core.__file__).parent
FILES, FUNCTIONS, CALLS = 10, 90, 300


def trace(method: Method) -> Counter[tuple[str, str]]:
    """Return the calls of mkor_core's functions in a step with an update, by file and name."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Preconditioner(model, method).attach(optimizer)
    inputs, labels = torch.randn(32, 8), torch.randint(4, (32,))
    calls: Counter[tuple[str, str]] = Counter()

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    def count(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(CORE):
            calls[file.relative_to(CORE).as_posix(), frame.f_code.co_qualname] += 1

    step()  # makes states
    step()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(before)
    return calls


def test_a_step_can_be_followed():
    """The page that tells how names the files."""
    calls = trace(MKOR(inverse_update_period=1))
    files = {file for file, _ in calls}
    page = (ROOT / "docs" / "library.md").read_text()
    (way,) = re.findall(
        r"^A step of MKOR on one process passes through ten files.*?\n\n", page, re.DOTALL | re.MULTILINE
    )
    assert set(re.findall(r"`([\w/]+\.py)`", way)) == files
    assert len(files) <= FILES, sorted(files)
    assert len(calls) <= FUNCTIONS, len(calls)
    assert calls.total() <= CALLS, calls.most_common(20)


@pytest.mark.parametrize(
    "method",
    [
        MKOR(inverse_update_period=1),
        MKOR(inverse_update_period=1, window=4),
        Eva(),
        KAISA(factor_update_period=1, inverse_update_period=1),
        HyLo(update_period=1),
    ],
    ids=lambda method: repr(method)[:40],
)
def test_a_step_on_one_process_enters_no_file_about_ranks_graphs_or_comparisons(method: Method):
    files = {file for file, _ in trace(method)}
    assert "capture/hooks.py" in files
    others = {"capture/compiled.py", "capture/blocks.py", "engines/comparison.py"}
    assert {file for file in files if file.startswith("ranks/") or file in others} == set()
