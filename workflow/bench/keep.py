"""Keep the runs of finished experiments in results/reference, so that other machines can adopt them.

For each experiment it writes the records of the runs that were trained here (`adopt` reads them) and the tidy table of
runs, to be committed. Evaluations are in the records, a tenth as large as in a table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow.bench.plan import REFERENCE, Plan, add_arguments, load_from
from workflow.bench.plan.runs import Run
from workflow.bench.results.archive import Archive, Kept, write_archive
from workflow.bench.results.columns import RUN_COLUMNS
from workflow.bench.results.rows import run_rows, write_csv
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.reading import read_text
from workflow.bench.support.source_code import is_current
from workflow.bench.training.record import RunFolder, origin_of, read_record, sealed


def keep(plan: Plan, experiment: str, reference: Path = REFERENCE) -> list[Path]:
    """Write an experiment's archive and its table of runs to ``reference``, and return the files.

    Runs that were adopted are left out: their own machine's archive has them. None but those leaves no files.

    Raises:
        ConfigError: a planned run has not ended or was made by older code, a record is damaged, or the archive would be
            too large to be adopted.
        OSError: a file cannot be read or written.
    """
    jobs = plan.experiment(experiment).jobs.values()
    kept = {}
    # Labels of an experiment may share a run.
    for run in {run.id: run for job in jobs for run in job.runs}.values():
        if origin_of(RunFolder.of(plan.results, run.id)) in (None, plan.hardware):
            kept[run.id] = _kept(plan, experiment, run)
    if not kept:
        return []
    file = write_archive(Archive(experiment, plan.tier.name, plan.hardware, kept), reference)
    table = file.with_name(f"{experiment}.runs.csv")
    write_csv(table, RUN_COLUMNS, (row for job in jobs for row in run_rows(plan, job) if row["run"] in kept))
    return [file, table]


def _kept(plan: Plan, experiment: str, run: Run) -> Kept:
    folder = RunFolder.of(plan.results, run.id)
    record = read_record(folder, run)
    about = f"experiment = '{experiment}': run {run.id} ({run.describe()})"
    if not record.has_ended:
        raise ConfigError(f"{about} has not ended; finish the experiment first")
    if not is_current(record.summary, run.lineage):
        raise ConfigError(f"{about} was made by older code; run python -m workflow.bench.refresh first")
    # The names of hosts are not for publication.
    reports = [{**report, "host": plan.hardware} for report in record.summary["by_rank"]]
    return Kept(sealed({**record.summary, "by_rank": reports}), read_text(folder.metrics, within=folder.path))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the runs of finished experiments to results/reference, from which other machines adopt them."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.keep", description=main.__doc__)
    parser.add_argument("experiment", nargs="+", help="names of files in <config>/experiments")
    parser.add_argument("--into", type=Path, default=REFERENCE, help="where to write (default: results/reference)")
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        plan = load_from(options)
        for experiment in options.experiment:
            files = keep(plan, experiment, options.into)
            lines = [shown_path(file) for file in files] or [f"{experiment}: all runs were adopted; nothing to keep"]
            print(*lines, sep="\n")

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
