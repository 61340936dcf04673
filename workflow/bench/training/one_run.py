"""The way of one run through training: find its checkpoint, build its parts, train, and write its summary."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from mkor_core.ranks import comm
from workflow.bench.plan.runs import Run
from workflow.bench.support.provenance import collect
from workflow.bench.training import checkpoint
from workflow.bench.training.build import Setting
from workflow.bench.training.early_ends import (
    DivergedError,
    InterruptedRunError,
    OneRankDivergedError,
    is_overflow,
)
from workflow.bench.training.loop import Loop
from workflow.bench.training.peak_memory import is_out_of_memory, peak_memory_bytes, reset_peak_memory
from workflow.bench.training.record import RunFolder, Status, first_line, write_summary
from workflow.bench.training.resume import prepare
from workflow.bench.training.summary import Account, report_of_rank, summarize
from workflow.bench.training.watchdog import OneRankError
from workflow.bench.workloads.base import Workload


@dataclass(frozen=True)
class _Outcome:
    status: Status
    reason: str = ""
    on_one_rank: bool = False
    """Whether the other ranks are still training, so that this rank cannot exchange anything with them."""


def train(
    run: Run,
    workload: Workload,
    folder: RunFolder,
    setting: Setting,
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
        ConfigError: the optimizer refuses a hyperparameter, which the message names.
        CheckpointError: the checkpoint is of another number of ranks, or the initial weights are damaged.
        OSError: the disk is full, the folder is not writable, or metrics.csv is not a file.
        OneRankError: this rank alone diverged or ran out of memory; the outcome is recorded.
    """
    started, provenance = datetime.now(UTC), collect(run.lineage)
    reset_peak_memory(setting.device)
    comm.reset_bytes_sent()
    account = Account()
    try:
        parts, state = prepare(run, workload, folder, setting, initial_weights)
        account = state.account
        with closing(state):
            Loop(parts, state, setting).run()
        if keep_weights and setting.ranks.is_first:
            weights = parts.model.state_dict()
            checkpoint.save(folder.weights, run.id, account.steps_done, weights, keep_previous=False)
        outcome = _Outcome("finished")
    except Exception as problem:
        ended = _outcome_of(problem, account, setting.ranks.size)
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


def _outcome_of(problem: Exception, account: Account, ranks: int) -> _Outcome | None:
    """Return the outcome of a run that an exception ended; None if the exception is an error."""
    if isinstance(problem, DivergedError):
        return _Outcome("diverged", str(problem), ranks > 1 and isinstance(problem, OneRankDivergedError))
    if is_overflow(problem):
        return _Outcome("diverged", first_line(problem), ranks > 1)
    if isinstance(problem, InterruptedRunError):
        return _Outcome("interrupted", f"asked to stop after step {account.steps_done}")
    if is_out_of_memory(problem):
        return _Outcome("out_of_memory", first_line(problem), ranks > 1)
    return None


def _write_record(
    run: Run,
    workload: Workload,
    folder: RunFolder,
    setting: Setting,
    outcome: _Outcome,
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
