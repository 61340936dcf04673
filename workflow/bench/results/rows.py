"""The columns of the tidy CSVs, and their rows from what runs leave behind.  Imports neither torch nor pandas."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Job, Planned
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.files import write_atomically
from workflow.bench.support.source_code import is_current
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.record import METRIC_COLUMNS, DamagedRecordError, RunFolder, read_metrics, read_summary

_IDENTITY: Final = (
    "experiment",
    "optimizer",
    "method",
    "update_rule",
    "inverse_update_period",
    "seed",
    "workload",
)

#: ``<experiment>.csv``: one row for every evaluated metric; a run without any has one row, empty from step on.
EVALUATION_COLUMNS: Final = (*_IDENTITY, "run", "status", *METRIC_COLUMNS)

#: ``<experiment>.runs.csv``: one row for every run.
RUN_COLUMNS: Final = (
    "run",
    *_IDENTITY,
    "tier",
    "hardware",
    "status",
    "reason",
    "hyperparameters",
    "tuned",
    "start_from",
    "steps",
    "steps_done",
    "steps_to_target",
    "seconds_to_target",
    "target",
    "model",
    "dataset",
    "train_examples",
    "validation_examples",
    "parameters",
    "preconditioner_bytes",
    "peak_memory_bytes",
    *(f"seconds_{phase}" for phase in PHASES),
    "train_seconds",
    "wall_seconds",
    "bytes_sent",
    "switch_step",
    "data_fingerprint",
    "git_commit",
    "git_dirty",
    "code_fingerprint",
    "code_current",
    "torch",
    "python",
    "cpu",
    "gpu",
    "threads",
)


def evaluation_rows(plan: Plan, job: Job, *, forgiving: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a job's rows of `EVALUATION_COLUMNS`.

    A run that was not trained yet has the status ``missing``, one that has evaluations but no end yet
    ``interrupted``.  A run that is missing or failed has no evaluations.  One whose metrics.csv is damaged counts as
    missing where ``forgiving`` asks for that; else `DamagedRecordError` is raised.
    """
    for planned in job.planned:
        rows, summary = _record(RunFolder.of(plan.results, planned.run.id), planned, forgiving)
        status = summary["status"]
        about = {**_identity(job, planned), "run": planned.run.id, "status": status}
        for row in (rows if status != "failed" else []) or [{}]:
            yield {**about, **row}


def run_rows(plan: Plan, job: Job, *, forgiving: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a job's rows of `RUN_COLUMNS`: what is in a run's run.json, and when it reached its target.

    A damaged metrics.csv is met as in `evaluation_rows`.
    """
    for planned in job.planned:
        run, target = planned.run, planned.target
        rows, summary = _record(RunFolder.of(plan.results, run.id), planned, forgiving)
        reached = target.first_reached(rows) if target and summary["status"] != "failed" else None
        machine, seconds = summary.get("machine", {}), summary.get("seconds", {})
        on_gpu = str(summary.get("device")).startswith("cuda")
        yield {
            **{name: summary.get(name) for name in RUN_COLUMNS},
            **_identity(job, planned),
            "run": run.id,
            "tier": plan.tier.name,
            "hardware": plan.hardware,
            "hyperparameters": json.dumps(run.hyperparameters),
            "tuned": planned.tuned,
            "start_from": run.start_from,
            "steps": run.spec["steps"],
            "steps_to_target": reached.step if reached else None,
            "seconds_to_target": reached.train_seconds if reached else None,
            "target": json.dumps(target.as_dict()) if target else None,
            **{f"seconds_{phase}": seconds.get(phase) for phase in PHASES},
            "bytes_sent": sum(summary["bytes_sent"].values()) if "bytes_sent" in summary else None,
            "code_current": is_current(summary, run.lineage) if "code_fingerprint" in summary else None,
            "torch": summary.get("packages", {}).get("torch"),
            "cpu": machine.get("cpu"),
            "gpu": "; ".join(machine.get("gpus", [])) if on_gpu else None,
        }


def _record(folder: RunFolder, planned: Planned, forgiving: bool) -> tuple[list[dict[str, str]], Mapping[str, Any]]:
    """Return a run's evaluations and its run.json, or in its place what they tell."""
    summary = read_summary(folder)
    try:
        rows = read_metrics(folder, summary)
    except DamagedRecordError as problem:
        if not forgiving:
            raise
        return [], {"status": "missing", "reason": f"{problem}; training it again puts that right"}
    if summary is not None:
        return rows, summary
    if not rows:
        return rows, {"status": "missing", "reason": "not trained yet"}
    done = int(rows[-1]["step"])
    reason = f"not at its end: {done} of {planned.run.spec['steps']} steps so far"
    return rows, {"status": "interrupted", "reason": reason, "steps_done": done}


def _identity(job: Job, planned: Planned) -> dict[str, Any]:
    run = planned.run
    return {
        "experiment": job.experiment,
        "optimizer": job.label,
        "method": run.method,
        "update_rule": run.hyperparameters.get("update_rule"),
        "inverse_update_period": run.hyperparameters.get("inverse_update_period"),
        "seed": run.seed,
        "workload": run.workload,
    }


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, atomically; None becomes an empty field, a truth value ``true`` or ``false``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: str(value).lower() if isinstance(value, bool) else value for key, value in row.items()})
    write_atomically(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return a CSV's rows as text.  Raises `ConfigError` where it is no table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (csv.Error, UnicodeDecodeError) as problem:
        raise ConfigError(f"{shown_path(path)}: damaged: {problem}") from None
    if any(len(row) != len(header) for row in rows):
        raise ConfigError(f"{shown_path(path)}: damaged: its rows differ in length")
    return [dict(zip(header, row, strict=True)) for row in rows]
