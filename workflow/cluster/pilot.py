"""The pilot: measures a few steps of every workload of a plan, on the ranks that it is started on.

``python -m workflow.cluster.pilot --tier T`` trains, for each experiment, one run as `workflow.bench.train` does, with
as many examples on each rank, and writes the mean seconds of its steps to ``<results>/<hardware>/<tier>/pilot.csv``,
which the plan's estimates take from then on. It trains the base optimizer where the experiment has it, and keeps no
weights. Started by torchrun, mpiexec or srun, the processes measure together.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.runs import Run
from workflow.bench.plan.step_costs import shape_of
from workflow.bench.support.command_line import check_option, real, run_command, whole
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.files import write_atomically
from workflow.bench.support.provenance import gpu_names, hardware_name
from workflow.bench.training import launcher
from workflow.cluster.settings import Cluster
from workflow.cluster.step_seconds import PILOT, MeasuredSteps, read_pilot

if TYPE_CHECKING:
    from workflow.bench.training.ranks import Ranks

STEPS: Final = 5
"""Steps that are measured, after one that warms up."""
MOST_STEPS: Final = 10_000
MAX_MINUTES: Final = 525600


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a few steps of every workload of a plan, and write their seconds where the plan's estimates read them."""
    parser = argparse.ArgumentParser(prog="python -m workflow.cluster.pilot", description=main.__doc__)
    parser.add_argument("experiment", nargs="*", help="measure only these (default: all of the tier)")
    parser.add_argument(
        "--cluster", help="the cluster whose ranks the plan's runs have: a folder of profiles, or a path"
    )
    parser.add_argument("--steps", type=whole, default=STEPS, help=f"steps to measure (default: {STEPS})")
    parser.add_argument("--minutes", type=real, help="begin no further workload after so many minutes")
    add_arguments(parser)
    return run_command(parser, _work, arguments)


def _work(options: argparse.Namespace) -> None:
    check_option("--steps", options.steps, 1, MOST_STEPS)
    if options.minutes is not None and not 0 < options.minutes <= MAX_MINUTES:
        raise ConfigError(f"--minutes = {options.minutes}: must be greater than 0, and at most {MAX_MINUTES}")
    place = launcher.launched_rank()
    plan = load_from(options)
    cluster = Cluster.load(options.cluster, plan) if options.cluster else None
    names = [plan.experiment(name).name for name in options.experiment] or list(plan.experiments)
    launcher.prepare(place)
    from workflow.bench.training.ranks import joined
    from workflow.bench.training.runner import refuse_absent_device

    refuse_absent_device(plan)
    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    with joined(place, plan.tier.device) as ranks:
        for name in names:
            if ranks.from_first(time.monotonic() > until):
                _say(ranks, f"{name}: not measured: the {options.minutes:g} minutes are over")
                continue
            _measure(plan, name, cluster, options.steps, ranks)


def _say(ranks: Ranks, line: str) -> None:
    if ranks.is_first:
        print(line, file=sys.stderr, flush=True)


def _measure(plan: Plan, name: str, cluster: Cluster | None, steps: int, ranks: Ranks) -> None:
    """Measure one experiment and add its row to the file, or say why it was not measured."""
    from workflow.bench.training.one_run import UntimedError, seconds_of_steps

    label, planned = chosen(plan, name)
    planned_ranks = cluster.training(name).ranks if cluster else plan.tier.ranks
    examples = planned.spec["workload"]["batch_size"] // planned_ranks
    run = scaled(planned, planned_ranks, ranks.size, steps)
    try:
        seconds = seconds_of_steps(plan, run, steps, ranks)
    except UntimedError as problem:
        _say(ranks, f"{name}: not measured: {problem}")
        return
    if ranks.is_first:
        row = MeasuredSteps(
            experiment=name,
            label=label,
            workload=shape_of(planned.spec["workload"]),
            examples=examples,
            ranks=ranks.size,
            steps=steps,
            step_seconds=sum(seconds) / len(seconds),
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            hardware=plan.hardware,
            processor=gpu_names()[0] if plan.tier.device == "cuda" else hardware_name("cpu"),
        )
        write_row(plan.results / PILOT, row)
        _say(
            ranks, f"{name}: {row.step_seconds:.4g} s a step of {label}, written to {shown_path(plan.results / PILOT)}"
        )


def chosen(plan: Plan, name: str) -> tuple[str, Run]:
    """Return the label and the run that is measured: of a first-order optimizer if there is one, else the first."""
    from baselines import method_class

    jobs = plan.experiments[name].jobs
    label = next((label for label, job in jobs.items() if method_class(job.runs[0].method) is None), next(iter(jobs)))
    return label, jobs[label].runs[0]


def scaled(run: Run, planned_ranks: int, ranks: int, steps: int) -> Run:
    """Return a run of a few steps in which each rank has as many examples and micro-batches as planned.

    planned_ranks: the number that the plan trains the run with; ranks: that of the pilot.
    """
    spec: dict[str, Any] = {**run.spec, "steps": steps + 1, "evaluate_every": steps + 1, "start_from": None}
    rows = max(1, run.spec["workload"]["batch_size"] // planned_ranks)
    spec["workload"] = {**run.spec["workload"], "batch_size": rows * ranks}
    if run.accumulation_steps > 1 and rows <= run.spec["micro_batch_size"]:
        del spec["micro_batch_size"]
    return Run(spec)


def write_row(file: Path, row: MeasuredSteps) -> None:
    """Add a row to the pilot's file, in place of the one of the same experiment; atomically."""
    rows = {**read_pilot(file), row.experiment: row}
    table = pd.DataFrame([rows[name] for name in sorted(rows)], columns=MeasuredSteps._fields)
    write_atomically(file, table.to_csv(index=False))


if __name__ == "__main__":
    sys.exit(main())
