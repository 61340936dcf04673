"""Checks of another machine's tidy tables, specs and probes against the plan of this configuration."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import available
from workflow.bench.plan.runs import PlannedRun, Spec, run_id
from workflow.bench.results.columns import (
    EVALUATION_COLUMNS,
    FORMER_VALUES,
    LATER,
    RUN_COLUMNS,
    STATUSES,
    probe_columns,
)
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ConfigError, is_plain, shown_key, shown_path, shown_value
from workflow.bench.support.provenance import package_versions
from workflow.bench.support.reading import read_json, refuse_links
from workflow.bench.support.source_code import code_fingerprint, probe_fingerprint

Rows = list[dict[str, str]]

_NOT_COPIED: Final = ("logs", "runs")
"""Folders in a results folder of which no file is copied. They are large, and may be elsewhere."""


class VerificationError(ConfigError):
    """Results that cannot be accepted; the message is one line that names the file and the fault."""

    def __init__(self, file: Path, fault: str) -> None:
        super().__init__(f"{shown_path(file)}: {fault}")


def refuse_links_in(results: Path) -> None:
    """Raise `UnreadableError` if a results folder holds a link where files are copied or shown.

    Results may come from others, and a link in them leads to any file that this user may read.
    """
    refuse_links(results, but=_NOT_COPIED)


def verify_text(file: Path, content: bytes) -> None:
    """Raise `VerificationError` unless the content of a file is lines of plain text: a terminal would act on others."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise VerificationError(file, "is not UTF-8 text") from None
    for number, line in enumerate(lines, start=1):
        if not is_plain(line):
            raise VerificationError(file, f"line {number} has a control character")


def read_specs(folder: Path) -> dict[str, Spec]:
    """Return all specs of a folder by the ids that their file names or keys claim.

    They are in ``specs.json`` if an earlier merge made the folder, else in ``specs/<id>.json``.

    Raises:
        ConfigError: a file of specs is damaged.
        UnreadableError: one cannot be read.
    """
    merged = folder / "specs.json"
    try:
        specs = read_json(merged)
    except FileNotFoundError:
        return {file.stem: read_json(file) for file in sorted((folder / "specs").glob("*.json"))}
    if not isinstance(specs, dict):
        raise VerificationError(merged, "damaged: not a mapping of ids to specs")
    return specs


def verify_experiment(file: Path, specs: Mapping[str, Spec], plan: Plan) -> Rows:
    """Check both tables of an experiment, and return the rows of its runs.

    Args:
        file: ``<experiment>.runs.csv``; ``<experiment>.csv`` is in the same folder.
        specs: the machine's specs by id.
        plan: the plan of this configuration.

    Raises:
        VerificationError: a table differs from what this code writes, or a run from what this configuration plans.
    """
    experiment = file.name.removesuffix(".runs.csv")
    if experiment not in plan.experiments:
        raise VerificationError(file, f"tier '{plan.tier.name}' has no experiment '{experiment}' here")
    runs = _rows(file, RUN_COLUMNS)
    _require_values(file, runs, experiment=experiment, tier=plan.tier.name)
    # Runs may have been adopted from a machine whose results are in the repository.
    known = {folder.parent.name for folder in plan.compared}
    _require_values(file, (row for row in runs if row["hardware"] not in known), hardware=plan.hardware)
    _require_numbers(file, runs, "steps_to_target", "seconds_to_target", "train_seconds", "wall_seconds")
    statuses = {row["run"]: row["status"] for row in runs}
    if len(statuses) < len(runs):
        raise VerificationError(file, "a run is listed twice")
    if unknown := set(statuses.values()) - set(STATUSES):
        must = f"must be one of {', '.join(STATUSES)}"
        raise VerificationError(file, f"status = {shown_value(min(unknown))}: {must}")
    _verify_evaluations(file.with_name(f"{experiment}.csv"), experiment, statuses)
    for row in runs:
        _verify_run(file, row, specs.get(row["run"]), plan)
    return runs


def _verify_evaluations(file: Path, experiment: str, statuses: Mapping[str, str]) -> None:
    """Check ``<experiment>.csv`` against the statuses of the runs by id."""
    rows = _rows(file, EVALUATION_COLUMNS)
    _require_numbers(file, rows, "step", "value", "train_seconds")
    if {row["run"] for row in rows} != set(statuses):
        raise VerificationError(file, f"its runs are not those of {experiment}.runs.csv")
    for row in rows:
        _require_values(file, [row], experiment=experiment, status=statuses[row["run"]])


def _verify_run(file: Path, row: Mapping[str, str], spec: Spec | None, plan: Plan) -> None:
    """Check that a run is planned here under the same label, with the same spec and target."""
    run, label = row["run"], row["optimizer"]
    shown = f"run {run} ({label}, seed {row['seed']})"
    job = plan.experiments[row["experiment"]].jobs.get(label)
    if job is None:
        fault = f"optimizer = {shown_value(label)}: not in experiment '{row['experiment']}' here"
        raise VerificationError(file, fault)
    if spec is None and row["status"] != "missing":
        raise VerificationError(file, f"{shown} has no spec in specs/")
    if spec is not None and run_id(spec) != run:
        raise VerificationError(file, f"run {run}: its spec's hash is {run_id(spec)}, so the spec was changed")
    planned = next((planned for planned in job.planned if planned.run.id == run), None)
    if planned is None:
        difference = _nearest_difference(spec, job.planned) if spec else ""
        raise VerificationError(file, f"{shown} is not planned here{difference}; use one configuration for both")
    target = json.dumps(planned.target.as_dict()) if planned.target else ""
    if row["target"] != target:
        raise VerificationError(file, f"target = {row['target'] or 'none'}: must be {target or 'none'}, as here")


def _nearest_difference(spec: Spec, planned: Iterable[PlannedRun]) -> str:
    """Describe how a spec differs from the planned spec that is most similar to it."""
    differences = [list(_differing(spec, candidate.run.spec)) for candidate in planned]
    if not differences:
        return ""
    key, theirs, ours = min(differences, key=len)[0]
    return f": {shown_key(key)} = {shown_value(theirs)}, {shown_value(ours)} here"


def _differing(theirs: Any, ours: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each key at which two specs differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**theirs, **ours}:
            yield from _differing(theirs.get(name), ours.get(name), (*key, name))
    elif theirs != ours:
        yield key, theirs, ours


def verify_probe(file: Path, plan: Plan) -> Rows:
    """Check a probe's table, and return its rows.

    Raises:
        VerificationError: the probe does not exist, or the table differs from what its code writes.
    """
    if file.stem not in available("probes"):
        raise VerificationError(file, "not the table of a probe in workflow/bench/probes")
    columns = probe_columns(file.stem)
    rows = _rows(file, columns)
    if "hardware" in columns:
        _require_values(file, rows, hardware=plan.hardware)
    return rows


def version_differences(runs: Rows, probes: Rows, plan: Plan) -> list[str]:
    """Describe how the versions of PyTorch and of the code differ from those here; empty if they do not.

    PyTorch's build (CPU or CUDA) does not matter.
    """
    differences = []
    torch_here = package_versions().get("torch", "none").partition("+")[0]
    if torch := {row["torch"].partition("+")[0] for row in runs if row["torch"]} - {torch_here}:
        differences.append(f"made with torch {', '.join(sorted(torch))}, {torch_here} here")
    codes = [(row["code_fingerprint"], code_fingerprint(plan.runs[row["run"]].lineage)) for row in runs]
    codes += [(row["code_fingerprint"], probe_fingerprint()) for row in probes]
    recorded = [(theirs, ours) for theirs, ours in codes if theirs]
    if other := [(theirs, ours) for theirs, ours in recorded if theirs != ours]:
        theirs, ours = min(other)
        rows = f"{len(other)} of {len(recorded)} rows of runs and probes"
        differences.append(f"{rows} made by other code, such as {theirs}, {ours} here")
    return differences


def _rows(file: Path, columns: Collection[str]) -> Rows:
    """Return a table's rows. Raise `VerificationError` if it has none, or other columns than ``columns``.

    A table of an earlier version may lack the columns in `FORMER_VALUES` and `LATER`.
    """
    try:
        rows = read_csv(file)
    except ConfigError as problem:
        raise VerificationError(file, str(problem).partition(": ")[2]) from None
    except FileNotFoundError:
        raise VerificationError(file, "does not exist") from None
    if not rows:
        raise VerificationError(file, "has no rows")
    later = {*FORMER_VALUES, *LATER}
    missing, unknown = set(columns) - rows[0].keys() - later, rows[0].keys() - set(columns)
    if missing or unknown:
        parts = [
            f"{verb} {', '.join(sorted(names))}" for verb, names in (("lacks", missing), ("has", unknown)) if names
        ]
        raise VerificationError(file, f"its columns differ from those here: it {' and '.join(parts)}; use this code")
    for row in rows:
        for column, value in row.items():
            if not is_plain(value):
                must = "must be text without line breaks and control characters"
                raise VerificationError(file, f"{column} = {shown_value(value)}: {must}")
    return rows


def _require_values(file: Path, rows: Iterable[Mapping[str, str]], **values: str) -> None:
    """Raise `VerificationError` on the first row that has another value in one of the given columns."""
    for row in rows:
        for column, value in values.items():
            if row[column] != value:
                must = f"must be {shown_value(value)}"
                raise VerificationError(file, f"{column} = {shown_value(row[column])}: {must}")


def _require_numbers(file: Path, rows: Iterable[Mapping[str, str]], *columns: str) -> None:
    """Raise `VerificationError` on the first cell of the given columns that is neither empty nor a number."""
    for row in rows:
        for column in columns:
            try:
                float(row[column] or "nan")
            except ValueError:
                raise VerificationError(file, f"{column} = {shown_value(row[column])}: must be a number") from None
