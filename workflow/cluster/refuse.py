"""Records the runs that do not fit a cluster's GPUs, in place of the jobs that would find out."""

from __future__ import annotations

import argparse
import sys

from workflow.bench.plan import add_arguments, load_from
from workflow.bench.results.columns import EVALUATION_COLUMNS
from workflow.bench.results.rows import evaluation_rows, write_csv
from workflow.bench.support.command_line import run_command
from workflow.bench.training.record import RunFolder, is_done, write_spec, write_summary
from workflow.bench.training.summary import summarize_untrained
from workflow.cluster.settings import Cluster, refused


def main(arguments: list[str] | None = None) -> int:
    """Record runs that do not fit a cluster's GPUs as skipped, with the reason, and publish the rows of their jobs."""
    parser = argparse.ArgumentParser(prog="python -m workflow.cluster.refuse", description=main.__doc__)
    parser.add_argument("cluster", help="a folder of profiles, or the path of one")
    add_arguments(parser)
    return run_command(parser, _refuse, arguments)


def _refuse(options: argparse.Namespace) -> None:
    plan = load_from(options)
    for job, reason in refused(plan, Cluster.load(options.cluster, plan)).items():
        for run in job.runs:
            folder = RunFolder.of(plan.results, run.id)
            if not is_done(folder, run, needs_weights=False):
                write_spec(plan.results, run)
                write_summary(folder, summarize_untrained(run, "skipped", reason), with_digest=False)
        write_csv(plan.csv_of(job), EVALUATION_COLUMNS, evaluation_rows(plan, job))


if __name__ == "__main__":
    sys.exit(main())
