"""The way of one run through training: find its checkpoint, build its parts, train, and write its summary.

`seconds_of_steps` trains a few steps in the same way, and keeps only how long they took.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from mkor_core.ranks import comm
from workflow.bench import workloads
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.errors import first_line
from workflow.bench.support.provenance import collect
from workflow.bench.training import checkpoint
from workflow.bench.training.build import RunSetting
from workflow.bench.training.loop import DivergedError, InterruptedRunError, Loop, OneRankDivergedError, is_overflow
from workflow.bench.training.peak_memory import is_out_of_memory, peak_memory_bytes, reset_peak_memory
from workflow.bench.training.progress import Progress
from workflow.bench.training.ranks import Ranks
from workflow.bench.training.record import RunFolder, Status, write_summary
from workflow.bench.training.state import prepare
from workflow.bench.training.summary import Account, report_of_rank, summarize
from workflow.bench.training.watchdog import OneRankError
from workflow.bench.workloads.base import Workload

WARM_UP = 1
"""Steps before those that are timed: in the first one, memory is allocated and kernels are chosen."""


class Outcome(NamedTuple):
    """How the training of a run ended."""

    status: Status
    reason: str = ""
    on_one_rank: bool = False
    """Whether the other ranks are still training, so that this rank cannot exchange anything with them."""


def train(
    run: Run,
    workload: Workload,
    folder: RunFolder,
    setting: RunSetting,
    *,
    initial_weights: Path | None = None,
    keep_weights: bool = False,
) -> Status:
    """Train a run until it ends or is interrupted, write its record to ``folder``, and return how it ended.

    An interrupted run resumes from its checkpoint, and ends with the rows and weights of an uninterrupted one.
    Divergence and lack of memory are outcomes, not errors. Ranks that train together (``setting.ranks``) make the same
    call and get the same result; the first one writes.

    initial_weights: the file with the final weights of the run that ``run.start_from`` names.
    keep_weights: write the final weights beside the record.

    Raises:
        ConfigError: the optimizer refuses a hyperparameter, which the message names; the checkpoint is of another
            number of ranks, or the initial weights are damaged.
        OSError: the disk is full, the folder is not writable, or metrics.csv is not a file.
        OneRankError: this rank alone diverged or ran out of memory; the outcome is recorded.
    """
    # Before training, so that they state the code that was loaded.
    started, provenance = datetime.now(UTC), collect(run.lineage)
    ranks = setting.ranks
    reset_peak_memory(setting.device)
    comm.reset_bytes_sent()
    account = Account()
    try:
        parts, state = prepare(run, workload, folder, setting, initial_weights)
        account = state.account
        with closing(state):
            Loop(parts, state, setting).run()
        if keep_weights and ranks.is_first:
            weights = parts.model.state_dict()
            checkpoint.save(folder.weights, run.id, account.steps_done, weights, keep_previous=False)
        outcome = Outcome("finished")
    except Exception as problem:
        ended = _outcome_of(problem, account, ranks.size)
        if ended is None:
            raise
        outcome = ended
    account.peak_memory_bytes = max(account.peak_memory_bytes, peak_memory_bytes(setting.device))
    _write_record(run, workload, folder, setting, outcome, account, started, provenance)
    if outcome.on_one_rank:
        raise OneRankError(
            f"{run.describe()}: {outcome.status}: {outcome.reason}; the same command continues with the other runs"
        )
    return outcome.status


def _write_record(
    run: Run,
    workload: Workload,
    folder: RunFolder,
    setting: RunSetting,
    outcome: Outcome,
    account: Account,
    started: datetime,
    provenance: dict[str, object],
) -> None:
    """Write run.json on one rank, and remove the checkpoint of a run that has ended for good."""
    ranks = setting.ranks
    report = report_of_rank(account, ranks.rank)
    summary = summarize(
        run,
        workload,
        outcome.status,
        outcome.reason,
        account,
        by_rank=[report] if outcome.on_one_rank else ranks.gathered(report),
        world_size=ranks.size,
        device=str(setting.device),
        threads=torch.get_num_threads(),
        started=started,
        provenance=provenance,
    )
    # Several ranks may fail alone, at the same time.
    if ranks.claim(run.id) if outcome.on_one_rank else ranks.is_first:
        # On a shared disk, ranks other than the first may not see all of metrics.csv yet.
        write_summary(folder, summary, with_digest=ranks.is_first)
        if outcome.status != "interrupted":
            checkpoint.remove(folder.checkpoint)


def _outcome_of(problem: Exception, account: Account, ranks: int) -> Outcome | None:
    """Return the outcome of a run that an exception ended; None if the exception is an error."""
    if isinstance(problem, DivergedError):
        return Outcome("diverged", str(problem), ranks > 1 and isinstance(problem, OneRankDivergedError))
    if is_overflow(problem):
        return Outcome("diverged", first_line(problem), ranks > 1)
    if isinstance(problem, InterruptedRunError):
        return Outcome("interrupted", f"asked to stop after step {account.steps_done}")
    if is_out_of_memory(problem):
        return Outcome("out_of_memory", first_line(problem), ranks > 1)
    return None


class UntimedError(Exception):
    """A run cannot be timed, on any rank; the message is the reason, in one line."""


def seconds_of_steps(plan: Plan, run: Run, steps: int, ranks: Ranks) -> list[float]:
    """Return the seconds of steps after `WARM_UP` others, of the slowest rank, without evaluations and checkpoints.

    Nothing is kept of the training. All ranks make the same call.

    Raises:
        UntimedError: its data is not on this machine, it does not fit the memory, or something refuses it.
    """
    torch.set_num_threads(plan.tier.threads)
    made: list[Workload] = []

    def create() -> str | None:
        try:
            made.append(workloads.create(**run.spec["workload"]))
        except (DataNotFound, ConfigError) as problem:
            return first_line(problem)
        return None

    if reason := ranks.first_refusal(create):
        raise UntimedError(reason)
    own: list[float] = []
    device = torch.device("cuda", torch.cuda.current_device()) if plan.tier.device == "cuda" else torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        setting = RunSetting(device, 0.0, Progress(1, nowhere), lambda: False, ranks=ranks)
        try:
            parts, state = prepare(run, made[0], RunFolder(Path(folder)), setting, None)
            with closing(state):
                own = list(Loop(parts, state, setting).timed(WARM_UP + steps))[WARM_UP:]
        except ConfigError as problem:
            reason = str(problem)
        except Exception as problem:
            if not is_out_of_memory(problem) or ranks.size > 1:
                raise  # another rank may wait in a collective; all end together
            reason = first_line(problem)
    for each in ranks.gathered(reason):
        if each is not None:
            raise UntimedError(each)
    return [max(same_step) for same_step in zip(*ranks.gathered(own), strict=True)]
