"""``python -m workflow.bench.merge FOLDER``: another machine's results into results/reference, checked and small.

FOLDER is that machine's ``results/<hardware>/<tier>``, or what this command made of it elsewhere.  Of it are kept: the
tidy tables, the probes, tables as CSV and Markdown, a few figures as PNG, and every run's spec in one specs.json;
neither runs' folders nor weights.

Refused, with nothing changed, where a table has other columns than today's, a run's id is not the hash of its spec, a
run is not one that the configuration here plans, its target is another, or it was made by another PyTorch or other
code (unless ``--other-versions`` accepts that).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan import REFERENCE, Plan
from workflow.bench.plan.artefacts import available
from workflow.bench.plan.runs import Planned, Spec, run_id
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS, STATUSES, probe_columns
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import CONFIG, ConfigError, shown_key, shown_path, shown_value
from workflow.bench.support.files import sync_folder, write_atomically, write_json
from workflow.bench.support.provenance import package_versions
from workflow.bench.support.source_code import code_fingerprint, probe_fingerprint

#: Pictures that are kept, those of the README; the others can be drawn again from the tables.
FIGURES: Final = (
    "fig04_inversion_frequency",
    "fig05_rank1_error",
    "fig13_update_rules",
    "fig14_cost_scaling",
)

Rows = list[dict[str, str]]


class MergeError(ValueError):
    """Results that cannot be taken: one line that names the file and what is wrong with it."""


@dataclass(frozen=True)
class Found:
    """Another machine's results, checked."""

    files: Mapping[str, bytes]
    """What is kept, by its path in the folder."""
    specs: Mapping[str, Spec]
    notes: tuple[str, ...]
    """What is not quite as it should be, and no reason to refuse it."""


def merge(folder: Path, into: Path = REFERENCE, config_dir: Path = CONFIG, *, other_versions: bool = False) -> Path:
    """Check ``folder`` and copy what is kept to ``into/<hardware>/<tier>``, whole or not at all; return that folder.

    What stood there is replaced.  Prints the notes.  Raises `MergeError`, `ConfigError` where the configuration here
    is faulty or lacks the tier, `OSError`.
    """
    source = folder.resolve()
    hardware, tier = source.parent.name, source.name
    if not source.is_dir():
        raise MergeError(f"{shown_path(folder)}: is no folder; give results/<hardware>/<tier> of another machine")
    if source.is_relative_to(into.resolve()):
        raise MergeError(f"{shown_path(folder)}: lies in {shown_path(into)} already")
    if not re.fullmatch("[a-z0-9-]+", hardware):
        raise MergeError(f"{shown_path(folder)}: its parent's name is no machine's: small letters, digits and dashes")
    plan = Plan.load(config_dir, tier=tier, hardware=hardware)
    found = check(source, plan, other_versions=other_versions)
    for note in found.notes:
        print(f"note: {note}")
    target = into / hardware / tier
    _replace(target, found)
    return target


def check(folder: Path, plan: Plan, *, other_versions: bool = False) -> Found:
    """Return what is to be kept of ``folder``, results of the tier and hardware that ``plan`` is for.

    Raises `MergeError` on the first fault.
    """
    tables = sorted(folder.glob("*.runs.csv"))
    probes = sorted((folder / "probes").glob("*.csv"))
    if not tables and not probes:
        raise MergeError(f"{shown_path(folder)}: holds neither <experiment>.runs.csv nor probes; run make timing there")
    specs = _specs(folder)
    kept: dict[str, Spec] = {}
    notes: list[str] = []
    runs: Rows = []
    for file in tables:
        experiment = file.name.removesuffix(".runs.csv")
        rows = _check_experiment(file, experiment, plan)
        kept |= _check_runs(file, experiment, rows, specs, plan)
        notes += _left_out(experiment, rows, plan)
        runs += rows
    measured = [row for file in probes for row in _check_probe(file, plan)]
    differences = _differences(runs, measured, plan)
    if differences and not other_versions:
        raise MergeError(f"{shown_path(folder)}: {'; '.join(differences)}; --other-versions takes it all the same")
    tabulated = [folder / "tables" / f"{name}{suffix}" for name in available("tables") for suffix in (".csv", ".md")]
    pictures = [folder / "figures" / f"{name}.png" for name in FIGURES]
    evaluations = [folder / file.name.replace(".runs.csv", ".csv") for file in tables]
    files = [*tables, *evaluations, *probes, *(file for file in (*tabulated, *pictures) if file.is_file())]
    contents = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
    return Found(contents, dict(sorted(kept.items())), (*notes, *differences))


def _specs(folder: Path) -> dict[str, Spec]:
    """Return specs by the ids that their files or keys claim; ``specs.json`` where the folder is in its small form."""
    small = folder / "specs.json"
    try:
        if small.is_file():
            return dict(json.loads(small.read_text(encoding="utf-8")))
        files = sorted((folder / "specs").glob("*.json"))
        return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    except (TypeError, ValueError) as problem:
        raise MergeError(f"{shown_path(folder)}: a spec is no valid JSON: {problem}") from None


def _rows(file: Path, columns: Collection[str]) -> Rows:
    """Return a table's rows, at least one, all of ``columns``."""
    try:
        rows = read_csv(file)
    except ConfigError as problem:
        raise MergeError(str(problem)) from None
    except OSError as problem:
        raise MergeError(f"{shown_path(file)}: cannot be read: {problem}") from None
    if not rows:
        raise MergeError(f"{shown_path(file)}: has no rows")
    lacking, unknown = set(columns) - rows[0].keys(), rows[0].keys() - set(columns)
    if lacking or unknown:
        said = [f"{what} {', '.join(sorted(names))}" for what, names in (("lacks", lacking), ("has", unknown)) if names]
        raise MergeError(f"{shown_path(file)}: other columns than here: it {' and '.join(said)}; run it with this code")
    return rows


def _expect(file: Path, rows: Iterable[Mapping[str, str]], **values: str) -> None:
    """Raise `MergeError` where a row has another value than all should have."""
    for row in rows:
        for name, value in values.items():
            if row[name] != value:
                raise MergeError(f"{shown_path(file)}: {name} = {shown_value(row[name])}: must be {shown_value(value)}")


def _check_numbers(file: Path, rows: Iterable[Mapping[str, str]], *names: str) -> None:
    for row in rows:
        for name in names:
            try:
                float(row[name] or "nan")
            except ValueError:
                raise MergeError(f"{shown_path(file)}: {name} = {shown_value(row[name])}: is no number") from None


def _check_experiment(file: Path, experiment: str, plan: Plan) -> Rows:
    """Check both tables of an experiment, and return its runs."""
    if experiment not in plan.experiments:
        raise MergeError(f"{shown_path(file)}: tier '{plan.tier.name}' has no experiment '{experiment}' here")
    rows = _rows(file, RUN_COLUMNS)
    _expect(file, rows, experiment=experiment, tier=plan.tier.name, hardware=plan.hardware)
    _check_numbers(file, rows, "steps_to_target", "seconds_to_target", "train_seconds", "wall_seconds")
    statuses = {row["run"]: row["status"] for row in rows}
    if len(statuses) < len(rows):
        raise MergeError(f"{shown_path(file)}: a run stands in it twice")
    if unknown := set(statuses.values()) - set(STATUSES):
        raise MergeError(f"{shown_path(file)}: status = {shown_value(min(unknown))}: must be of {', '.join(STATUSES)}")
    evaluations = file.with_name(f"{experiment}.csv")
    found = _rows(evaluations, EVALUATION_COLUMNS)
    _check_numbers(evaluations, found, "step", "value", "train_seconds")
    if {row["run"] for row in found} != set(statuses):
        raise MergeError(f"{shown_path(evaluations)}: holds other runs than {file.name}")
    for row in found:
        _expect(evaluations, [row], experiment=experiment, status=statuses[row["run"]])
    return rows


def _check_runs(file: Path, experiment: str, rows: Rows, specs: Mapping[str, Spec], plan: Plan) -> dict[str, Spec]:
    """Check that every run is planned here, under the same label, spec and target; return the specs by id."""
    found = {}
    for row in rows:
        run, label = row["run"], row["optimizer"]
        job = plan.experiments[experiment].jobs.get(label)
        if job is None:
            raise MergeError(
                f"{shown_path(file)}: optimizer = {shown_value(label)}: experiment '{experiment}' has none"
            )
        spec = specs.get(run)
        if spec is None and row["status"] != "missing":
            raise MergeError(f"{shown_path(file)}: run {run} ({label}, seed {row['seed']}) has no spec beside it")
        if spec is not None and run_id(spec) != run:
            raise MergeError(f"{shown_path(file)}: run {run}: its spec's hash is {run_id(spec)}; the spec was changed")
        planned = next((planned for planned in job.planned if planned.run.id == run), None)
        if planned is None:
            raise MergeError(
                f"{shown_path(file)}: run {run} ({label}, seed {row['seed']}) is not planned here"
                f"{_how(spec, job.planned) if spec else ''}; run both with one configuration"
            )
        target = json.dumps(planned.target.as_dict()) if planned.target else ""
        if row["target"] != target:
            theirs, ours = row["target"] or "none", target or "none"
            raise MergeError(f"{shown_path(file)}: target = {theirs}: must be {ours}, as here")
        if spec is not None:
            found[run] = spec
    return found


def _how(spec: Spec, planned: Iterable[Planned]) -> str:
    """Say where a spec differs from the planned one that is nearest to it."""
    differences = [list(_unlike(spec, ours.run.spec)) for ours in planned]
    if not differences:
        return ""
    key, theirs, ours = min(differences, key=len)[0]
    return f": {shown_key(key)} = {shown_value(theirs)}, {shown_value(ours)} here"


def _unlike(theirs: Any, ours: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the keys at which two specs differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**theirs, **ours}:
            yield from _unlike(theirs.get(name), ours.get(name), (*key, name))
    elif theirs != ours:
        yield key, theirs, ours


def _left_out(experiment: str, rows: Rows, plan: Plan) -> list[str]:
    """Return notes on planned runs that have no numbers."""
    having = {row["run"] for row in rows if row["status"] != "missing"}
    jobs = plan.experiments[experiment].jobs.values()
    lacking = sum(run not in having for job in jobs for run in job.run_ids)
    return [f"{experiment}: {lacking} of the runs that are planned here are missing"] if lacking else []


def _check_probe(file: Path, plan: Plan) -> Rows:
    """Check a probe's table, and return its rows."""
    if file.stem not in available("probes"):
        raise MergeError(f"{shown_path(file)}: is no probe's of workflow/bench/probes")
    columns = probe_columns(file.stem)
    rows = _rows(file, columns)
    if "hardware" in columns:
        _expect(file, rows, hardware=plan.hardware)
    return rows


def _differences(runs: Rows, probes: Rows, plan: Plan) -> list[str]:
    """Return what differs from the versions here: PyTorch's release, whatever its build, and the code."""
    here = package_versions().get("torch", "none").partition("+")[0]
    torch = {row["torch"].partition("+")[0] for row in runs if row["torch"]} - {here}
    codes = [(row["code_fingerprint"], code_fingerprint(plan.runs[row["run"]].lineage)) for row in runs]
    codes += [(row["code_fingerprint"], probe_fingerprint()) for row in probes]
    other = sorted({(theirs, ours) for theirs, ours in codes if theirs not in ("", ours)})
    return [
        *([f"made with torch {', '.join(sorted(torch))}, {here} here"] if torch else []),
        *(f"made by code {theirs}, {ours} here" for theirs, ours in other[:1]),
        *([f"and by {len(other) - 1} others"] if len(other) > 1 else []),
    ]


def _replace(target: Path, found: Found) -> None:
    """Put ``found`` in the place of the folder ``target``: written beside it first, then renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name that no glob for a tier finds.
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    new, old = beside / "new", beside / "old"
    try:
        for name, content in found.files.items():
            write_atomically(new / name, content)
        write_json(new / "specs.json", found.specs)
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(new, target)
        except BaseException:
            if old.exists():
                os.replace(old, target)
            raise
        sync_folder(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring another machine's results into results/reference, checked."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.merge", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="the other machine's results/<hardware>/<tier>")
    parser.add_argument("--into", type=Path, default=REFERENCE, help="where to (default: results/reference)")
    parser.add_argument("--other-versions", action="store_true", help="take what another PyTorch or other code made")
    parser.add_argument("--config-dir", type=Path, default=CONFIG, help="the configuration folder")
    given = parser.parse_args(arguments)
    try:
        print(shown_path(merge(given.folder, given.into, given.config_dir, other_versions=given.other_versions)))
    except (MergeError, ConfigError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
