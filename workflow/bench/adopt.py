"""Adopt runs that another machine trained from results/reference, and train only the others here.

`keep` commits the records of an experiment's runs. They are adopted if today's code and specs made them, and only as a
whole set: all runs of an experiment with one seed, of all its optimizers, from one machine. Optimizers are compared
seed by seed, so no comparison mixes machines. Weights are not kept: a run that must be trained here and starts from
another one has that one trained here, too, with its whole set.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from workflow.bench.analysis.wording import integer_ranges, named_seeds
from workflow.bench.plan import REFERENCE, Plan, add_arguments, load_from
from workflow.bench.plan.runs import Run
from workflow.bench.results.archive import SUFFIX, Archive, read_archive
from workflow.bench.results.columns import EVALUATION_COLUMNS
from workflow.bench.results.rows import evaluation_rows, read_csv, write_csv
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.errors import DamagedFileError, FileWarning, UnreadableError
from workflow.bench.support.files import is_locked, locked, write_atomically, write_json
from workflow.bench.support.source_code import is_current
from workflow.bench.training.record import RunFolder, origin_of, read_record, write_spec

Key = tuple[str, int]
"""An experiment and a seed: the planned runs of both are adopted as a whole."""
Sets = Mapping[Key, Sequence[Run]]


class Here(NamedTuple):
    """What the results folder holds of a run."""

    machine: str | None
    """The machine that trained or began it; None if it may be adopted."""
    is_done: bool
    is_adopted: bool


def adopt(plan: Plan, reference: Path = REFERENCE) -> list[str]:
    """Copy the records of all runs of a plan that can be adopted to its run folders; return remarks for the user.

    A job whose runs are then all done gets its CSV, so that the pipeline does not start it.

    Raises:
        UnreadableError: a record here cannot be read.
        OSError: a file cannot be written.
    """
    sets: dict[Key, list[Run]] = defaultdict(list)
    for job in plan.jobs:
        for run in job.runs:
            sets[job.experiment, run.seed].append(run)
    here = {run.id: _here(plan, run) for run in plan.runs.values()}
    lacking = {key: runs for key, runs in sets.items() if any(here[run.id].machine is None for run in runs)}
    offers, remarks = _offers(plan, lacking, reference)
    usable = {key for key, offer in offers.items() if _fits(plan, sets[key], here, offer.hardware)}
    usable -= _clashing(sets, {key: offers[key].hardware for key in usable})
    before = {key for key, runs in sets.items() if any(here[run.id].is_adopted for run in runs)}
    # Runs that were planned or damaged later would be trained here, beside adopted ones of the same seed.
    broken = {key for key in before - usable if not all(here[run.id].is_done for run in sets[key])}
    refused = _to_train(sets, here, usable | before - broken, broken) | broken
    for key in sorted(before & refused):
        for folder in (RunFolder.of(plan.results, run.id) for run in sets[key]):
            if folder.origin.is_file():
                with locked(folder.lock):
                    forget(folder)
    by_source: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for key in sorted(usable - refused):
        by_source[key[0], offers[key].hardware].append(key)
        for run in sets[key]:
            _write(plan, run, offers[key])
    _publish(plan, {run.id for key in before | (usable - refused) for run in sets[key]})
    for (experiment, hardware), keys in by_source.items():
        runs = len({run.id for key in keys for run in sets[key]})
        seeds = named_seeds(seed for _, seed in keys)
        remarks.append(f"{experiment}: {runs} runs adopted from {hardware}, {seeds}")
    return remarks


def _here(plan: Plan, run: Run) -> Here:
    folder = RunFolder.of(plan.results, run.id)
    try:
        record, origin = read_record(folder, run), origin_of(folder)
    except DamagedFileError:  # the run counts as not done, as in training
        return Here(None, is_done=False, is_adopted=False)
    if origin is None:
        begun = record.has_ended or bool(record.rows)
        return Here(plan.hardware if begun else None, record.has_ended, is_adopted=False)
    valid = record.has_ended and is_current(record.summary, run.lineage)
    return Here(origin if valid else None, valid, is_adopted=True)


def _offers(plan: Plan, sets: Sets, reference: Path) -> tuple[dict[Key, Archive], list[str]]:
    """Return an archive for each set that one holds whole, and why other sets of archives cannot be adopted."""
    offers: dict[Key, Archive] = {}
    remarks = []
    for file in sorted(reference.glob(f"*/{plan.tier.name}/*{SUFFIX}")):
        wanted = {key: runs for key, runs in sets.items() if key[0] == file.name.removesuffix(SUFFIX)}
        if not wanted:
            continue
        try:
            archive = read_archive(file)
            current = _current(plan, archive)
        except (ConfigError, UnreadableError) as problem:
            warnings.warn(FileWarning(f"{problem}; ignored"), stacklevel=2)
            continue
        refused: dict[str, list[int]] = defaultdict(list)
        for key, runs in wanted.items():
            if why := _problem(runs, archive, current):
                refused[why].append(key[1])
            else:
                # The first machine that has a set gives it whole: no set mixes machines.
                offers.setdefault(key, archive)
        remarks += [
            f"{shown_path(file)}: not adopted: seeds {integer_ranges(seeds)} {why}" for why, seeds in refused.items()
        ]
    return offers, remarks


def _current(plan: Plan, archive: Archive) -> set[str]:
    """Return the planned runs in an archive that have ended and that today's code made.

    Raises:
        DamagedFileError: one of the archive's planned runs has a damaged record.
    """
    current = set()
    # Written to files, so that an archive's record is accepted by the same checks as one in the results folder.
    with tempfile.TemporaryDirectory() as name:
        for run_id in archive.runs.keys() & plan.runs.keys():
            run, folder = plan.runs[run_id], RunFolder(Path(name) / run_id)
            folder.path.mkdir()
            folder.summary.write_text(json.dumps(archive.runs[run_id].summary), encoding="utf-8")
            folder.metrics.write_text(archive.runs[run_id].metrics, encoding="utf-8", newline="")
            record = read_record(folder, run)
            if record.has_ended and is_current(record.summary, run.lineage):
                current.add(run_id)
    return current


def _problem(runs: Sequence[Run], archive: Archive, current: set[str]) -> str:
    """Return why a set of runs cannot be adopted from an archive; empty if it can."""
    if any(run.id not in archive.runs for run in runs):
        return "lack runs that are planned here"
    if any(run.id not in current for run in runs):
        return "were made by other code"
    machines = set()
    for run in runs:
        summary = archive.runs[run.id].summary
        machine = summary["machine"]
        machines.add(json.dumps([machine["cpu"], machine.get("cores"), machine["gpus"], summary.get("device")]))
    return "were trained by several machines" if len(machines) > 1 else ""


def _fits(plan: Plan, runs: Sequence[Run], here: Mapping[str, Here], hardware: str) -> bool:
    """Return whether no run of a set is being trained, or was begun by another machine than that of an offer."""
    # Whoever trains one of them will finish the set.
    if any(is_locked(RunFolder.of(plan.results, run.id).lock) for run in runs):
        return False
    return {here[run.id].machine for run in runs} <= {None, hardware}


def _clashing(sets: Sets, machines: Mapping[Key, str]) -> set[Key]:
    """Return the sets of experiments that share a run and have offers of different machines."""
    by_run: dict[str, set[Key]] = defaultdict(set)
    for key in machines:
        for run in sets[key]:
            by_run[run.id].add(key)
    return {key for keys in by_run.values() if len({machines[key] for key in keys}) > 1 for key in keys}


def _to_train(sets: Sets, here: Mapping[str, Here], candidates: set[Key], broken: set[Key]) -> set[Key]:
    """Return the candidates that must be trained here: runs to be trained start from them, or are part of them, too.

    broken: sets whose adopted runs are given up.
    """
    keys_of: dict[str | None, set[Key]] = defaultdict(set)
    for key in candidates:
        for run in sets[key]:
            keys_of[run.id].add(key)
    waiting = [
        run
        for key, runs in sets.items()
        for run in runs
        if key in broken or (key not in candidates and not here[run.id].is_done)
    ]
    # Each set that is trained here may need others, until no more are found.
    needed: set[Key] = set()
    while waiting:
        run = waiting.pop()
        for key in (keys_of[run.id] | keys_of[run.start_from]) - needed:
            needed.add(key)
            waiting += sets[key]
    return needed


def _write(plan: Plan, run: Run, archive: Archive) -> None:
    """Write a run's adopted record unless it has one that counts."""
    folder = RunFolder.of(plan.results, run.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.lock):
        if _here(plan, run).machine is not None:
            return
        forget(folder)
        write_spec(plan.results, run)
        write_atomically(folder.metrics, archive.runs[run.id].metrics)
        write_json(folder.origin, archive.hardware)
        # Last, because a run without it counts as not done.
        write_json(folder.summary, archive.runs[run.id].summary)


def forget(folder: RunFolder) -> None:
    """Delete a run's record, and its checkpoints: a run that goes on from an old one would mix results of two codes."""
    for file in (folder.summary, folder.origin, folder.metrics, *folder.path.glob(f"{folder.checkpoint.name}*")):
        file.unlink(missing_ok=True)


def _publish(plan: Plan, touched: set[str]) -> None:
    """Write the CSVs of the jobs with adopted runs that are all done, and delete those of jobs that are not."""
    jobs = {(job.experiment, job.label): job for job in plan.jobs}
    # Upstream jobs come first, so that no CSV is older than one that it depends on.
    for name in TopologicalSorter({name: job.upstream for name, job in jobs.items()}).static_order():
        job = jobs[name]
        if not touched & {*job.run_ids}:
            continue
        file = plan.csv_of(job)
        if not all(_here(plan, run).is_done for run in job.runs):
            file.unlink(missing_ok=True)
        elif not file.is_file() or {row.get("run") for row in read_csv(file)} != {*job.run_ids}:
            write_csv(file, EVALUATION_COLUMNS, evaluation_rows(plan, job))


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy the runs of this plan, made by the same code and specs, from results/reference; they count as done."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.adopt", description=main.__doc__)
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        for remark in adopt(load_from(options)):
            print(remark)

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
