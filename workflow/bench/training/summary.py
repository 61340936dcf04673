"""The content of run.json: how a run ended, what it cost, and where it comes from. Imports no torch."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from workflow.bench.plan.runs import Run
from workflow.bench.support.provenance import collect
from workflow.bench.training.clocks import Clock
from workflow.bench.training.record import Status

if TYPE_CHECKING:
    from workflow.bench.workloads.base import Workload


@dataclass
class Account:
    """Counts and sizes of a run that run.json reports; checkpoints hold them, so that they cover all slices."""

    steps_done: int = 0
    code: str = ""
    """Fingerprint of the code that trained the run, or several, separated by commas, if it changed between slices."""
    skipped_steps: int = 0
    """Steps whose gradients overflowed in float16, which lowered the loss scale and updated no weights."""
    slices: int = 0
    """How often the run was started; 1 if it was never interrupted."""
    parameters: int = 0
    preconditioner_bytes: int = 0
    preconditioner_bytes_by_tensor: dict[str, int] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    bytes_sent: dict[str, int] = field(default_factory=dict)
    """Bytes by collective."""
    matmul_precision: str | None = None
    """The precision of the preconditioner's matrix products, in torch's words; None without a preconditioner."""
    switch_step: int | None = None
    """The step at which MKOR-H switched to its base optimizer; None if it did not."""
    replicas_differ_after: int | None = None
    """The first evaluated step after which ranks had different weights or factors; if None, not in run.json."""
    nanoseconds: dict[str, int] = field(default_factory=dict)
    """Time by phase of `clocks.PHASES`."""


def report_of_rank(account: Account, rank: int) -> dict[str, Any]:
    """Return the entry for this rank in run.json's ``by_rank``."""
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "seconds": Clock(nanoseconds=account.nanoseconds).seconds,
        "bytes_sent": account.bytes_sent,
        "peak_memory_bytes": account.peak_memory_bytes,
        "preconditioner_bytes": account.preconditioner_bytes,
    }


def summarize(
    run: Run,
    workload: Workload,
    status: Status,
    reason: str,
    account: Account,
    *,
    by_rank: Sequence[Mapping[str, Any]],
    world_size: int,
    device: str,
    threads: int,
    started: datetime,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of run.json for a run that was trained.

    account: that of the rank that writes; its peak memory is replaced by the largest of all ranks in ``by_rank``.
    started, provenance: taken before training, so that they state the code that was loaded.
    """
    clock = Clock(nanoseconds=account.nanoseconds)
    left_out = {"code", "nanoseconds"} | ({"replicas_differ_after"} if account.replicas_differ_after is None else set())
    counts = {name: value for name, value in asdict(account).items() if name not in left_out}
    return {
        **_outcome(run, status, reason, started),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        **counts,
        "peak_memory_bytes": max(report["peak_memory_bytes"] for report in by_rank),
        "seconds": clock.seconds,
        "train_seconds": clock.train_seconds,
        "wall_seconds": clock.wall_seconds,
        "device": device,
        "threads": threads,
        "world_size": world_size,
        "by_rank": list(by_rank),
        "model": workload.model_name,
        "dataset": workload.dataset_name,
        "train_examples": workload.train_examples,
        "validation_examples": workload.validation_examples,
        "steps_per_epoch": workload.steps_per_epoch,
        "data_fingerprint": workload.data_fingerprint,
        **provenance,
        "code_fingerprint": account.code or provenance["code_fingerprint"],
    }


def summarize_untrained(run: Run, status: Status, reason: str) -> dict[str, Any]:
    """Return the content of run.json for a run that was skipped, or failed with an error."""
    return {**_outcome(run, status, reason, datetime.now(UTC)), **collect(run.lineage)}


def _outcome(run: Run, status: Status, reason: str, started: datetime) -> dict[str, Any]:
    return {
        "id": run.id,
        "spec": run.spec,
        "status": status,
        "reason": reason,
        "started": started.isoformat(timespec="seconds"),
    }
