"""``python -m workflow.bench.plan``: print a tier's jobs and runs, with the ids of the runs."""

from __future__ import annotations

import argparse
import sys

from workflow.bench.plan import rank_shares
from workflow.bench.plan.plan import add_arguments, load_from
from workflow.bench.support.command_line import run_command


def main(arguments: list[str] | None = None) -> int:
    """Print the plan: jobs, runs, and notes on what is left out."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.plan", description=main.__doc__)
    parser.add_argument("experiment", nargs="*", help="print only these experiments, with every run")
    add_arguments(parser)
    return run_command(parser, _print_plan, arguments)


def _print_plan(options: argparse.Namespace) -> None:
    plan = load_from(options)
    experiments = [plan.experiment(name) for name in options.experiment] or list(plan.experiments.values())
    jobs = [job for experiment in experiments for job in experiment.jobs.values()]
    # Experiments may share a run, which is trained once.
    run_ids = {run_id for job in jobs for run_id in job.run_ids}
    print(f"tier {plan.tier.name}, {len(jobs)} jobs, {len(run_ids)} runs, results in {plan.results}")
    for job in jobs:
        # Snakemake starts a job when those whose weights it needs are done.
        after = "".join(f", after {experiment}/{label}" for experiment, label in job.upstream)
        runs = "1 run" if len(job.runs) == 1 else f"{len(job.runs)} runs"
        print(f"{job.experiment}/{job.label}: {runs}{after}")
        if options.experiment:
            for run in job.runs:
                print(f"  {run.id}  {run.describe()}")
    for line in rank_shares.lines(plan, lambda _: rank_shares.Allocation(plan.tier.ranks, plan.tier.threads)):
        print(line)
    for experiment, note in plan.noted:
        if not options.experiment or experiment in (None, *options.experiment):
            print(f"note: {note}")


if __name__ == "__main__":
    sys.exit(main())
