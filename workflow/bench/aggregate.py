"""One experiment's published CSVs to its tables: ``<experiment>.csv`` and ``<experiment>.runs.csv``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.results.rows import EVALUATION_COLUMNS, RUN_COLUMNS, read_csv, run_rows, write_csv
from workflow.bench.support.config import ConfigError, shown_path


def aggregate(plan: Plan, experiment: str) -> tuple[Path, Path]:
    """Write both tables, and return their paths.

    Raises `ConfigError` where a job's CSV is missing or damaged, or holds other runs than are planned.
    """
    evaluations: list[dict[str, str]] = []
    runs: list[dict[str, Any]] = []
    for job in plan.experiment(experiment).jobs.values():
        file = plan.csv_of(job)
        remedy = f"run python -m workflow.bench.train {experiment} {job.label}"
        if not file.is_file():
            raise ConfigError(f"{shown_path(file)}: is not there yet; {remedy}")
        rows = read_csv(file)
        if any(row.keys() != set(EVALUATION_COLUMNS) for row in rows):
            raise ConfigError(f"{shown_path(file)}: damaged: it has other columns; delete it, then {remedy}")
        if {row["run"] for row in rows} != set(job.run_ids):
            raise ConfigError(f"{shown_path(file)}: holds other runs than are planned; {remedy}")
        evaluations += rows
        runs += run_rows(plan, job)
    tables = plan.results / f"{experiment}.csv", plan.results / f"{experiment}.runs.csv"
    write_csv(tables[0], EVALUATION_COLUMNS, evaluations)
    write_csv(tables[1], RUN_COLUMNS, runs)
    return tables


def main(arguments: list[str] | None = None) -> int:
    """Gather an experiment's published CSVs in <experiment>.csv (evaluations) and <experiment>.runs.csv (runs)."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.aggregate", description=main.__doc__)
    parser.add_argument("experiment", help="a file of <config>/experiments")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        tables = aggregate(load_from(given), given.experiment)
    except (ConfigError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    for table in tables:
        print(shown_path(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
