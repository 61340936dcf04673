"""Checks of another machine's tidy tables, specs and probes against the plan of this configuration.

Each raises `ConfigError` on the first fault, in one line that names the file, and `UnreadableError` if a file cannot be
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import available
from workflow.bench.plan.runs import Spec, run_id
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS, STATUSES, Columns, probe_columns
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ConfigError, error, is_plain, shown_key, shown_value
from workflow.bench.support.provenance import package_versions
from workflow.bench.support.reading import read_json, refuse_links
from workflow.bench.support.source_code import code_fingerprint, probe_fingerprint

Rows = list[dict[str, str]]


def fault(file: Path, words: str) -> ConfigError:
    """Return the error of results that cannot be accepted."""
    return error(file, (), None, words)


def refuse_links_in(results: Path) -> None:
    """Raise `UnreadableError` if a results folder holds a link where files are copied or shown.

    Results may come from others, and a link in them leads to any file that this user may read.
    """
    # No file of these folders is copied. They are large, and may be elsewhere.
    refuse_links(results, but=("logs", "runs"))


def verify_text(file: Path, content: bytes) -> None:
    """Check that the content of a file is lines of plain text: a terminal would act on others."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise fault(file, "is not UTF-8 text") from None
    for number, line in enumerate(lines, start=1):
        if not is_plain(line):
            raise fault(file, f"line {number} has a control character")


def read_specs(folder: Path) -> dict[str, Spec]:
    """Return all specs of a folder by the ids that their file names or keys claim.

    They are in ``specs.json`` if an earlier merge made the folder, else in ``specs/<id>.json``.
    """
    merged = folder / "specs.json"
    try:
        specs = read_json(merged)
    except FileNotFoundError:
        return {file.stem: read_json(file) for file in sorted((folder / "specs").glob("*.json"))}
    if not isinstance(specs, dict):
        raise fault(merged, "damaged: not a mapping of ids to specs")
    return specs


def verify_experiment(file: Path, specs: Mapping[str, Spec], plan: Plan) -> Rows:
    """Check both tables of an experiment, and return the rows of its runs.

    Args:
        file: ``<experiment>.runs.csv``; ``<experiment>.csv`` is in the same folder.
        specs: the machine's specs by id.
        plan: the plan of this configuration.
    """
    experiment = file.name.removesuffix(".runs.csv")
    if experiment not in plan.experiments:
        raise fault(file, f"tier '{plan.tier.name}' has no experiment '{experiment}' here")
    runs = _rows(file, RUN_COLUMNS)
    # Runs may have been adopted from a machine whose results are in the repository.
    known = {folder.parent.name for folder in plan.compared}
    for row in runs:
        own = {} if row["hardware"] in known else {"hardware": plan.hardware}
        _require_values(file, row, experiment=experiment, tier=plan.tier.name, **own)
        if row["status"] not in STATUSES:
            raise error(file, ("status",), row["status"], f"must be one of {', '.join(STATUSES)}")
    statuses = {row["run"]: row["status"] for row in runs}
    if len(statuses) < len(runs):
        raise fault(file, "a run is listed twice")
    table = file.with_name(f"{experiment}.csv")
    evaluations = _rows(table, EVALUATION_COLUMNS)
    if {row["run"] for row in evaluations} != set(statuses):
        raise fault(table, f"its runs are not those of {file.name}")
    for row in evaluations:
        _require_values(table, row, experiment=experiment, status=statuses[row["run"]])
    for row in runs:
        _verify_run(file, row, specs.get(row["run"]), plan)
    return runs


def _verify_run(file: Path, row: Mapping[str, str], spec: Spec | None, plan: Plan) -> None:
    """Check that a run is planned here under the same label, with the same spec and target."""
    run, label = row["run"], row["optimizer"]
    shown = f"run {run} ({label}, seed {row['seed']})"
    job = plan.experiments[row["experiment"]].jobs.get(label)
    if job is None:
        raise error(file, ("optimizer",), label, f"not in experiment '{row['experiment']}' here")
    if spec is None and row["status"] != "missing":
        raise fault(file, f"{shown} has no spec in specs/")
    if spec is not None and run_id(spec) != run:
        raise fault(file, f"run {run}: its spec's hash is {run_id(spec)}, so the spec was changed")
    planned = next((planned for planned in job.planned if planned.run.id == run), None)
    if planned is None:
        difference = ""
        if spec:
            # The planned run that is most similar shows best what differs. Values such as 1.0 and 1 have two hashes.
            for key, theirs, ours in min((list(_differing(spec, each.run.spec)) for each in job.planned), key=len)[:1]:
                difference = f": {shown_key(key)} = {shown_value(theirs)}, {shown_value(ours)} here"
        raise fault(file, f"{shown} is not planned here{difference}; use one configuration for both")
    target = json.dumps(planned.target.as_dict()) if planned.target else ""
    if row["target"] != target:
        raise fault(file, f"target = {row['target'] or 'none'}: must be {target or 'none'}, as here")


def _differing(theirs: Any, ours: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each key at which two specs differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**theirs, **ours}:
            yield from _differing(theirs.get(name), ours.get(name), (*key, name))
    elif theirs != ours:
        yield key, theirs, ours


def verify_probe(file: Path, plan: Plan) -> Rows:
    """Check a probe's table, and return its rows."""
    if file.stem not in available("probes"):
        raise fault(file, "not the table of a probe in workflow/bench/probes")
    columns = probe_columns(file.stem)
    rows = _rows(file, columns)
    if "hardware" in columns:
        for row in rows:
            _require_values(file, row, hardware=plan.hardware)
    return rows


def version_differences(runs: Rows, probes: Mapping[str, Rows], plan: Plan) -> list[str]:
    """Describe how the versions of PyTorch and of the code differ from those here; empty if they do not.

    probes: the rows of each probe, by its name. PyTorch's build (CPU or CUDA) does not matter.
    """
    differences = []
    torch_here = package_versions().get("torch", "none").partition("+")[0]
    if torch := {row["torch"].partition("+")[0] for row in runs if row["torch"]} - {torch_here}:
        differences.append(f"made with torch {', '.join(sorted(torch))}, {torch_here} here")
    codes = [(row["code_fingerprint"], code_fingerprint(plan.runs[row["run"]].lineage)) for row in runs]
    for name, rows in probes.items():
        here = probe_fingerprint(f"workflow.bench.probes.{name}")
        codes += [(row["code_fingerprint"], here) for row in rows]
    recorded = [(theirs, ours) for theirs, ours in codes if theirs]
    if other := [(theirs, ours) for theirs, ours in recorded if theirs != ours]:
        theirs, ours = min(other)
        share = f"{len(other)} of {len(recorded)} rows of runs and probes"
        differences.append(f"{share} made by other code, such as {theirs}, {ours} here")
    return differences


def _rows(file: Path, columns: Columns) -> Rows:
    """Return a table's rows, checked to have these columns, values of their types, and plain text."""
    try:
        rows = read_csv(file)
    except FileNotFoundError:
        raise fault(file, "does not exist") from None
    if not rows:
        raise fault(file, "has no rows")
    lacks, has = set(columns) - rows[0].keys(), rows[0].keys() - set(columns)
    if lacks or has:
        parts = [f"{verb} {', '.join(sorted(names))}" for verb, names in (("lacks", lacks), ("has", has)) if names]
        raise fault(file, f"its columns differ from those here: it {' and '.join(parts)}; use this code")
    for row in rows:
        for column, value in row.items():
            if not is_plain(value):
                raise error(file, (column,), value, "must be text without line breaks and control characters")
            if columns[column] in (int, float):
                try:
                    float(value or "nan")
                except ValueError:
                    raise error(file, (column,), value, "must be a number") from None
    return rows


def _require_values(file: Path, row: Mapping[str, str], **values: str) -> None:
    for column, value in values.items():
        if row[column] != value:
            raise error(file, (column,), row[column], f"must be {shown_value(value)}")
