"""Delete the records of runs that older code made, so that the pipeline trains them again."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from workflow.bench.adopt import forget
from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.runs import Run
from workflow.bench.support.command_line import run_command
from workflow.bench.support.errors import DamagedFileError, FileWarning, UnreadableError
from workflow.bench.support.files import locked
from workflow.bench.support.source_code import is_current
from workflow.bench.training.record import RunFolder, read_record


def forget_outdated(plan: Plan) -> int:
    """Delete the records of all planned runs made by older code and their jobs' CSVs; return the number of runs.

    Waits for a run that another process is training.
    """
    forgotten = {run.id for run in plan.runs.values() if _forget_if_outdated(plan, run)}
    for job in plan.jobs:
        if forgotten & {*job.run_ids}:
            plan.csv_of(job).unlink(missing_ok=True)
    return len(forgotten)


def _forget_if_outdated(plan: Plan, run: Run) -> bool:
    """Delete a run's record if older code made it, and return whether it did."""
    folder = RunFolder.of(plan.results, run.id)
    with locked(folder.lock):
        try:
            summary = read_record(folder, run).summary
        except (UnreadableError, DamagedFileError) as problem:
            warnings.warn(FileWarning(f"{problem}; not deleted"), stacklevel=2)
            return False
        if not summary or is_current(summary, run.lineage):
            return False
        forget(folder)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Delete the records of runs that older code made; the next call of the pipeline trains them again."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.refresh", description=main.__doc__)
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        plan = load_from(options)
        number = forget_outdated(plan)
        runs = "1 run" if number == 1 else f"{number} runs"
        print(f"{runs} made by older code deleted from {plan.results}")

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
