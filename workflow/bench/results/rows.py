"""Write the tidy CSV files from the runs' records, and read them as text. Imports neither torch nor pandas."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Job, PlannedRun
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import DIRECTION, RUN_COLUMNS
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.errors import DamagedFileError, UnreadableError, one_line
from workflow.bench.support.files import write_atomically
from workflow.bench.support.reading import read_text
from workflow.bench.support.source_code import is_current
from workflow.bench.training.clocks import PHASES
from workflow.bench.training.record import RunFolder, origin_of, read_record


def evaluation_rows(plan: Plan, job: Job, *, forgiving: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a job's rows of `EVALUATION_COLUMNS`: one for every evaluated metric of every run.

    A run without evaluations (missing or failed) has one row. The status is ``missing`` for a
    run that was not trained yet, and ``interrupted`` for one that has evaluations but no run.json.

    Args:
        plan: the plan of the results' folder.
        job: the job whose runs are read.
        forgiving: whether a run whose record is damaged or unreadable counts as missing.

    Raises:
        ConfigError: a record is damaged or unreadable, and ``forgiving`` is false.
    """
    for planned in job.planned:
        evaluations, summary = _record(plan, job, planned, forgiving)
        identity = {**_identity(job, planned), "run": planned.run.id, "status": summary["status"]}
        for evaluation in evaluations or [{}]:
            yield {**identity, **evaluation}


def run_rows(plan: Plan, job: Job, *, forgiving: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a job's rows of `RUN_COLUMNS`, one a run: its run.json, and when it reached its target.

    Arguments and errors are those of `evaluation_rows`.
    """
    for planned in job.planned:
        run, target = planned.run, planned.target
        evaluations, summary = _record(plan, job, planned, forgiving)
        reached = target.first_reached(evaluations) if target else None
        crossing = target.crossing(evaluations) if target else None
        cosines = [float(row["value"]) for row in evaluations if (row["split"], row["metric"]) == DIRECTION]
        machine, seconds = summary.get("machine", {}), summary.get("seconds", {})
        on_gpu = str(summary.get("device")).startswith("cuda")
        yield {
            **{name: summary.get(name) for name in RUN_COLUMNS},
            **_identity(job, planned),
            "run": run.id,
            "tier": plan.tier.name,
            "hardware": summary.get("hardware", plan.hardware),
            # It may be the message of any exception.
            "reason": one_line(summary["reason"]),
            "workload_parameters": {name: value for name, value in run.spec["workload"].items() if name != "name"},
            "hyperparameters": run.hyperparameters,
            "tuned": planned.study is not None,
            "study": planned.study,
            "start_from": run.start_from,
            "steps": run.spec["steps"],
            "steps_to_target": reached.step if reached else None,
            "seconds_to_target": reached.train_seconds if reached else None,
            "crossing_step": crossing.step if crossing else None,
            "crossing_seconds": crossing.train_seconds if crossing else None,
            "direction_cosine": median(cosines) if cosines else None,
            "target": target,
            **{f"seconds_{phase}": seconds.get(phase) for phase in PHASES},
            "bytes_sent": sum(summary["bytes_sent"].values()) if "bytes_sent" in summary else None,
            "code_current": is_current(summary, run.lineage) if "code_fingerprint" in summary else None,
            "torch": summary.get("packages", {}).get("torch"),
            "cpu": machine.get("cpu"),
            "gpu": "; ".join(machine.get("gpus", [])) if on_gpu else None,
        }


def _record(
    plan: Plan, job: Job, planned: PlannedRun, forgiving: bool
) -> tuple[list[dict[str, str]], Mapping[str, Any]]:
    """Return a run's evaluations, none of a failed one, and its run.json with the name of the machine that trained it.

    The evaluations give its status if it has no run.json.
    """
    train_again = f"run python -m workflow.bench.train {job.experiment} {job.label}"
    folder = RunFolder.of(plan.results, planned.run.id)
    try:
        record = read_record(folder, planned.run)
        origin = origin_of(folder)
    except DamagedFileError as problem:
        reason = f"{problem}; to train the run again, {train_again}"
    except UnreadableError as problem:
        reason = f"{problem}; make it readable or move it away, then {train_again}"
    else:
        if record.summary:
            rows = [] if record.status == "failed" else record.rows
            return rows, {**record.summary, "hardware": origin or plan.hardware}
        if not record.rows:
            # A run that was never begun has a row, too: a comparison must not lose it in silence.
            return [], {"status": "missing", "reason": "not trained yet"}
        reason = f"not at its end: {record.last_step} of {planned.run.spec['steps']} steps so far"
        return record.rows, {"status": "interrupted", "reason": reason, "steps_done": record.last_step}
    if not forgiving:
        raise ConfigError(reason)
    return [], {"status": "missing", "reason": reason}


def _identity(job: Job, planned: PlannedRun) -> dict[str, Any]:
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
    """Write rows as a CSV file, atomically.

    None becomes an empty field, a truth value ``true`` or ``false``, a target or a mapping its JSON.
    """
    # In memory first, so that a table is there as a whole or not at all.
    write_atomically(path, csv_text(columns, rows))


def csv_text(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of the file that `write_csv` writes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({column: _cell(value) for column, value in row.items()})
    return text.getvalue()


def _cell(value: object) -> object:
    match value:
        case bool():
            return str(value).lower()
        case Target():
            return json.dumps(value.as_dict())
        case Mapping():
            return json.dumps(value)
    return value


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file as text.

    Raises:
        FileNotFoundError: the file does not exist.
        UnreadableError: it cannot be read.
        ConfigError: it is not a CSV file, or its rows differ in length.
    """
    try:
        header, *rows = list(csv.reader(io.StringIO(read_text(path), newline=""))) or [[]]
    except csv.Error as problem:
        raise ConfigError(f"{shown_path(path)}: damaged: {problem}") from None
    if any(len(row) != len(header) for row in rows):
        raise ConfigError(f"{shown_path(path)}: damaged: its rows differ in length")
    return [dict(zip(header, row, strict=True)) for row in rows]


def read_verdicts(folder: Path) -> dict[str, Mapping[str, str]]:
    """Return the rows of a machine's table of claims by id; none without the table.

    Raises:
        ConfigError: the table is damaged.
        UnreadableError: it cannot be read.
    """
    file = folder / "tables" / "claims.csv"
    rows = read_csv(file) if file.is_file() else []
    needed = ("id", "claim", "verdict")
    if rows and not set(needed) <= rows[0].keys():
        raise ConfigError(f"{shown_path(file)}: damaged: it lacks one of the columns {', '.join(needed)}")
    return {row["id"]: row for row in rows}
