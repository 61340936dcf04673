"""What ran, what runs, what is left, and what older code made."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

from workflow.bench.config import ConfigError
from workflow.bench.files import is_locked
from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.provenance import is_current
from workflow.bench.record import RunFolder, read_summary
from workflow.bench.runs import Run


def count(plan: Plan, runs: Iterable[Run]) -> Counter[str]:
    """Return how many runs are in which state: a run's status, ``running`` or ``left``, and ``by older code``."""
    states: Counter[str] = Counter()
    for run in runs:
        folder = RunFolder.of(plan.results, run.id)
        summary = read_summary(folder)
        if is_locked(folder.lock):
            states["running"] += 1
        else:
            states[summary["status"] if summary else "left"] += 1
        if summary and not is_current(summary):
            states["by older code"] += 1
    return states


def main(arguments: list[str] | None = None) -> int:
    """Print, for every optimizer of every experiment, how many runs ended how, are running, or are left."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.status", description=main.__doc__)
    add_arguments(parser)
    try:
        plan = load_from(parser.parse_args(arguments))
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return 1
    for job in plan.jobs:
        print(f"{job.experiment}/{job.label}: {_shown(count(plan, job.runs))}")
    print(f"all {len(plan.runs)} runs in {plan.results}: {_shown(count(plan, plan.runs.values()))}")
    return 0


def _shown(states: Counter[str]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()))


if __name__ == "__main__":
    sys.exit(main())
