"""Forgets the runs that older code made, so that the pipeline trains them again."""

from __future__ import annotations

import argparse
import sys

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import locked
from workflow.bench.support.source_code import is_current
from workflow.bench.training.record import RunFolder, read_summary


def forget(plan: Plan) -> int:
    """Remove the records of every planned run made by older code, and its job's table; return how many runs.

    With the summary go metrics and checkpoints: a run that went on from one would be half old.  A run that is being
    trained is waited for.
    """
    forgotten: set[str] = set()
    for job in plan.jobs:
        for run in job.runs:
            folder = RunFolder.of(plan.results, run.id)
            with locked(folder.lock):
                summary = read_summary(folder)
                if summary and not is_current(summary, run.lineage):
                    folder.summary.unlink()
                    folder.metrics.unlink(missing_ok=True)
                    for saved in folder.path.glob(f"{folder.checkpoint.name}*"):
                        saved.unlink()
                    forgotten.add(run.id)
        if forgotten & {*job.run_ids}:
            plan.csv_of(job).unlink(missing_ok=True)
    return len(forgotten)


def main(arguments: list[str] | None = None) -> int:
    """Forget the runs that older code made; the next call of the pipeline trains them again."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.refresh", description=main.__doc__)
    add_arguments(parser)
    try:
        plan = load_from(parser.parse_args(arguments))
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{forget(plan)} runs by older code forgotten in {plan.results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
