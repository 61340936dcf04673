"""The seconds of a few training steps of a run, as its training takes them."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path

import torch

from workflow.bench import workloads
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.training.build import Setting
from workflow.bench.training.loop import Loop
from workflow.bench.training.peak_memory import is_out_of_memory
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import Ranks
from workflow.bench.training.record import RunFolder, first_line
from workflow.bench.training.resume import prepare
from workflow.bench.workloads.base import Workload

WARM_UP = 1
"""Steps before those that are timed: in the first one, memory is allocated and kernels are chosen."""


class UntimedError(Exception):
    """A run cannot be timed, on any rank; the message is the reason, in one line."""


def seconds_of_steps(plan: Plan, run: Run, steps: int, ranks: Ranks) -> list[float]:
    """Return the seconds of steps after `WARM_UP` others, of the slowest rank, without evaluations and checkpoints.

    Nothing is kept of the training. All ranks make the same call.

    Raises:
        UntimedError: its data is not on this machine, it does not fit the memory, or something refuses it.
    """
    torch.set_num_threads(plan.tier.threads)
    # The first rank prepares the data alone, and keeps them in files that the others then find.
    workload, reason = _created(run) if ranks.is_first else (None, None)
    reason = ranks.from_first(reason)
    if reason is None and not ranks.is_first:
        workload, reason = _created(run)
    _refuse_any(ranks, reason)
    assert workload is not None
    own: list[float] = []
    device = torch.device("cuda", torch.cuda.current_device()) if plan.tier.device == "cuda" else torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        setting = Setting(device, 0.0, Progress(1, nowhere), lambda: False, ranks=ranks)
        reason = None
        try:
            parts, state = prepare(run, workload, RunFolder(Path(folder)), setting, None)
            with closing(state):
                own = list(Loop(parts, state, setting).timed(WARM_UP + steps))[WARM_UP:]
        except ConfigError as problem:
            reason = str(problem)
        except Exception as problem:
            if not is_out_of_memory(problem) or ranks.size > 1:
                raise  # another rank may wait in a collective; all end together
            reason = first_line(problem)
    _refuse_any(ranks, reason)
    return [max(same_step) for same_step in zip(*ranks.gathered(own), strict=True)]


def _created(run: Run) -> tuple[Workload | None, str | None]:
    """Return a run's workload, or why there is none."""
    try:
        return workloads.create(**run.spec["workload"]), None
    except (DataNotFound, ConfigError) as problem:
        return None, first_line(problem)


def _refuse_any(ranks: Ranks, reason: str | None) -> None:
    """Raise `UntimedError` on all ranks if one of them has a reason."""
    found = next((each for each in ranks.gathered(reason) if each is not None), None)
    if found is not None:
        raise UntimedError(found)
