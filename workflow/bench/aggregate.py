"""Write the tidy tables of an experiment, ``<experiment>.csv`` and ``<experiment>.runs.csv``, from its run folders."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.runs import Job
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.rows import evaluation_rows, read_csv, run_rows, write_csv
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.cost_line import exit_with_cost


def aggregate(plan: Plan, experiment: str) -> tuple[Path, Path]:
    """Write the tables of evaluations and of runs, and return their paths.

    Both are read from the folders of the planned runs. A job's own CSV is only the sign that the job ended with these
    runs, and what Snakemake tracks.

    Raises:
        ConfigError: a job's CSV is missing, damaged or of other runs, or a run's metrics.csv is damaged.
        OSError: a file cannot be read or written.
    """
    jobs = plan.experiment(experiment).jobs.values()
    # Else a table would lack the runs of jobs that have not ended, and look complete.
    for job in jobs:
        _check_published(plan, job)
    tables = plan.results / f"{experiment}.csv", plan.results / f"{experiment}.runs.csv"
    write_csv(tables[0], EVALUATION_COLUMNS, (row for job in jobs for row in evaluation_rows(plan, job)))
    write_csv(tables[1], RUN_COLUMNS, (row for job in jobs for row in run_rows(plan, job)))
    return tables


def _check_published(plan: Plan, job: Job) -> None:
    """Raise `ConfigError` unless a job has published a CSV of exactly the planned runs."""
    file = plan.csv_of(job)
    remedy = f"run python -m workflow.bench.train {job.experiment} {job.label}"
    if not file.is_file():
        raise ConfigError(f"{shown_path(file)}: does not exist yet; {remedy}")
    rows = read_csv(file)
    if any(row.keys() != set(EVALUATION_COLUMNS) for row in rows):
        raise ConfigError(f"{shown_path(file)}: damaged, its columns differ; delete it, then {remedy}")
    if {row["run"] for row in rows} != set(job.run_ids):
        raise ConfigError(f"{shown_path(file)}: its runs are not the planned ones; {remedy}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write <experiment>.csv (evaluations) and <experiment>.runs.csv (runs) of a trained experiment."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.aggregate", description=main.__doc__)
    parser.add_argument("experiment", help="name of a file in <config>/experiments")
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        for table in aggregate(load_from(options), options.experiment):
            print(shown_path(table))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    exit_with_cost(main())
