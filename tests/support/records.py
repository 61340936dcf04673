"""Records of runs: written without training, changed as their run would have, and read without a plan."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

from workflow.bench.plan.runs import Run
from workflow.bench.support.provenance import collect
from workflow.bench.training.record import METRIC_COLUMNS, Record, RunFolder, Status, read_record, write_summary
from workflow.bench.training.summary import Account, report_of_rank, summarize, summarize_untrained

_WORKLOAD: Any = SimpleNamespace(
    model_name="autoencoder",
    dataset_name="digits",
    train_examples=1437,
    validation_examples=360,
    steps_per_epoch=11,
    data_fingerprint="0" * 16,
)


A_RUN: Final = Run(
    {
        "steps": 100,
        "workload": {"name": "autoencoder"},
        "optimizer": {"name": "sgd", "hyperparameters": {"lr": 0.1}},
        "seed": 0,
        "start_from": None,
    }
)
"""A run of no plan."""


def read(folder: RunFolder) -> Record:
    """Return the record in a folder of any name, as that of the run that it names."""
    return read_record(folder, json.loads(folder.summary.read_text())["id"] if folder.summary.exists() else "")


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Return the content of a run.json, empty if there is none."""
    return dict(read(folder).summary)


def read_metrics(folder: RunFolder) -> list[dict[str, str]]:
    """Return the rows of a metrics.csv."""
    return read(folder).rows


def summary(run: Run, status: Status, *, steps: int = 0, seconds: float = 0.0, reason: str = "") -> dict[str, Any]:
    """Return the content of the run.json of a run that ended after some steps."""
    if status in ("skipped", "failed"):
        return summarize_untrained(run, status, reason)
    account = Account(steps_done=steps, nanoseconds={"update": round(seconds * 1e9)})
    return summarize(
        run,
        _WORKLOAD,
        status,
        reason,
        account,
        by_rank=[report_of_rank(account, 0)],
        world_size=1,
        device="cpu",
        threads=1,
        started=datetime.now(UTC),
        provenance=collect(run.lineage),
    )


def put(folder: RunFolder, run: Run, status: Status, **of_summary: Any) -> None:
    """Write the record of a run, without rows unless it has some already."""
    write_summary(folder, summary(run, status, **of_summary), with_digest=status not in ("skipped", "failed"))


def rewrite(folder: RunFolder, **changes: Any) -> None:
    """Write a record anew with other values, as the run would have written them."""
    write_summary(folder, {**read_summary(folder), **changes})


def evaluated(folder: RunFolder, *steps: int) -> None:
    """Write a metrics.csv with an evaluation at each of some steps."""
    folder.path.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{step},0.1,validation,loss,0.2,0.1,0.5,0.6\n" for step in steps)
    folder.metrics.write_text(f"{','.join(METRIC_COLUMNS)}\n{rows}")
