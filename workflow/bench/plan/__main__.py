"""``python -m workflow.bench.plan``: print what is trained at a tier, and under which ids."""

from __future__ import annotations

import argparse
import sys

from workflow.bench.plan.plan import add_arguments, load_from
from workflow.bench.support.config import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Print the plan: jobs, runs, and what is left out."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.plan", description=main.__doc__)
    parser.add_argument("experiment", nargs="*", help="print only these experiments, with every run")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        plan = load_from(given)
        chosen = [plan.experiment(name) for name in given.experiment] or list(plan.experiments.values())
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return 1
    jobs = [job for experiment in chosen for job in experiment.jobs.values()]
    print(f"tier {plan.tier.name}, {len(jobs)} jobs, {len({i for job in jobs for i in job.run_ids})} runs, ", end="")
    print(f"results in {plan.results}")
    for job in jobs:
        after = "".join(f", after {experiment}/{label}" for experiment, label in job.upstream)
        print(f"{job.experiment}/{job.label}: {len(job.runs)} runs{after}")
        if given.experiment:
            for run in job.runs:
                print(f"  {run.id}  {run.describe()}")
    for note in plan.notes:
        print(f"note: {note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
