"""What can be drawn while runs are missing: tidy tables of all that is there so far, and every artefact with data.

It goes in a folder of its own, ``<results>/partial/<hardware>/<tier>``, and touches nothing that the pipeline makes:
the next call of the pipeline neither takes a partial table for a whole one nor a partial figure.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import Kind, made_from
from workflow.bench.results.rows import EVALUATION_COLUMNS, RUN_COLUMNS, evaluation_rows, run_rows, write_csv
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.training.record import first_line

KINDS: tuple[Kind, ...] = ("figures", "tables")


@dataclass
class Drawn:
    """What became of the artefacts: their names, and why some are not there."""

    made: dict[Kind, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    without: dict[str, str] = field(default_factory=dict)
    """Artefacts without data, or that failed, and the reason in one line."""


def forget(plan: Plan) -> None:
    """Remove what an earlier call left."""
    shutil.rmtree(plan.partial, ignore_errors=True)
    for folder in (plan.partial.parent, plan.partial.parent.parent):
        with suppress(OSError):  # not there, or another machine's or tier's results are in it
            folder.rmdir()


def gather(plan: Plan) -> Counter[str]:
    """Write the tidy tables of what is there so far, and copy the probes; return how many runs have which status.

    A planned run that was never begun has a row with the status ``missing``, one that was begun and has not ended
    ``interrupted`` and its evaluations so far, one that broke off with an error ``failed`` and the reason.  An
    experiment of which nothing is there has no table: captions name it among what has no results yet.  What an
    earlier call left is removed first.
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
        shutil.copy2(probe, folder / "probes")
    return Counter(statuses.values())


def draw(plan: Plan) -> Drawn:
    """Make every figure and table that has data in what `gather` wrote; one that fails stops no other."""
    # Not above: Snakemake's hook and the plan need no pandas.
    from workflow.bench.make_artefact import make
    from workflow.bench.results.tables import NoDataError, Results

    results = Results(plan.partial, f"{plan.tier.title}, partial results", plan.compared)
    drawn = Drawn()
    for kind in KINDS:
        for artefact in made_from(plan, kind):
            try:
                make(kind, artefact.name, results, plan.partial / kind)
            except NoDataError as reason:
                drawn.without[artefact.name] = first_line(reason)
            except Exception as problem:  # noqa: BLE001  (a mistake in one must not cost the others)
                drawn.without[artefact.name] = f"failed: {type(problem).__name__}: {first_line(problem)}"
            else:
                drawn.made[kind].append(artefact.name)
    return drawn


def main(arguments: list[str] | None = None) -> int:
    """Draw what can be drawn while runs are missing, in a folder of its own; captions name the missing runs."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.partial", description=main.__doc__)
    add_arguments(parser)
    try:
        plan = load_from(parser.parse_args(arguments))
        statuses = gather(plan)
        drawn = draw(plan)
    except (ConfigError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    counts = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in sorted(statuses.items()))
    print(f"runs: {counts}")
    for name, reason in drawn.without.items():
        print(f"{name}: {reason}")
    made = " and ".join(f"{len(names)} {kind}" for kind, names in drawn.made.items())
    print(f"{made} of partial results in {shown_path(plan.partial)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
