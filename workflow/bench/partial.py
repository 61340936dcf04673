"""Draw every figure and table that has data while runs are missing.

The results go to a folder of their own, ``<results>/partial/<hardware>/<tier>``, so the pipeline never takes partial
tables or figures for complete ones.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import Kind, planned_artefacts
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.costs import ARTEFACTS
from workflow.bench.results.rows import evaluation_rows, run_rows, write_csv
from workflow.bench.support.command_line import run_command, show
from workflow.bench.support.config import shown_path
from workflow.bench.support.errors import DamagedFileError, FileWarning, UnreadableError, first_line
from workflow.bench.support.files import write_atomically
from workflow.bench.support.reading import read_bytes


def forget(plan: Plan) -> None:
    """Delete the partial results of an earlier call."""
    shutil.rmtree(plan.partial, ignore_errors=True)
    for folder in (plan.partial.parent, plan.partial.parent.parent):
        with suppress(OSError):  # absent, or holds results of another machine or tier
            folder.rmdir()


def gather(plan: Plan) -> Counter[str]:
    """Write the tidy tables of all runs so far, copy the probes, and count the runs by status.

    Every planned run has a row: ``missing`` if it was never begun, ``interrupted`` with its evaluations so far if it
    has not ended, ``failed`` with the reason if it broke off. An experiment without any run gets no table; captions
    then list it among those without results. Deletes the results of an earlier call first.
    """
    forget(plan)
    folder = plan.partial
    statuses: dict[str, str] = {}
    for name, experiment in plan.experiments.items():
        runs = [row for job in experiment.jobs.values() for row in run_rows(plan, job, forgiving=True)]
        statuses |= {row["run"]: row["status"] for row in runs}
        if all(row["status"] == "missing" for row in runs):
            continue
        evaluations = [row for job in experiment.jobs.values() for row in evaluation_rows(plan, job, forgiving=True)]
        write_csv(folder / f"{name}.csv", EVALUATION_COLUMNS, evaluations)
        write_csv(folder / f"{name}.runs.csv", RUN_COLUMNS, runs)
    (folder / "probes").mkdir(parents=True, exist_ok=True)
    for probe in (plan.results / "probes").glob("*.csv"):
        try:
            write_atomically(folder / "probes" / probe.name, read_bytes(probe, within=plan.results))
        except (UnreadableError, DamagedFileError) as problem:
            warnings.warn(FileWarning(f"{problem}; left out"), stacklevel=2)
    return Counter(statuses.values())


def draw(plan: Plan) -> tuple[dict[Kind, list[str]], dict[str, str]]:
    """Make every figure and table that has data in the files of `gather`; a failing one does not stop the others.

    Returns:
        The names of those that were drawn, by kind, and for each other one the reason in one line.
    """
    # Imported here because Snakemake imports this module for `forget`, and needs no pandas for that.
    from workflow.bench.make_artefact import make
    from workflow.bench.results.tables import NoDataError, Results

    title = f"{plan.tier.title}, partial results"
    results = Results(
        plan.partial, title, plan.other_machines, look=plan.rounds.look, looks=plan.tier.looks, trial_tables=plan.trials
    )
    drawn: dict[Kind, list[str]] = {kind: [] for kind in ARTEFACTS}
    without: dict[str, str] = {}
    for kind in ARTEFACTS:
        for artefact in planned_artefacts(plan, kind):
            try:
                make(kind, artefact.name, results, plan.partial / kind)
                drawn[kind].append(artefact.name)
            except NoDataError as reason:
                without[artefact.name] = first_line(reason)
            except Exception as problem:  # noqa: BLE001  (an error in one artefact must not cost the others)
                without[artefact.name] = f"failed: {type(problem).__name__}: {first_line(problem)}"
    return drawn, without


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw every figure and table that has data, in a folder of their own; captions name the missing runs."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.partial", description=main.__doc__)
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        plan = load_from(options)
        statuses = gather(plan)
        drawn, without = draw(plan)
        counts = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in sorted(statuses.items()))
        made = " and ".join(f"{len(names)} {kind}" for kind, names in drawn.items())
        reasons = (f"{name}: {reason}" for name, reason in without.items())
        show([f"runs: {counts}", *reasons, f"{made} of partial results in {shown_path(plan.partial)}"])

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
