"""What is said and set before anything is submitted: node-hours, account, data, disk.  Imports no torch."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workflow.bench.data.folder import data_folder
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import shown_path
from workflow.bench.training.record import RunFolder, is_done, read_summary
from workflow.cluster.settings import Cluster, Training
from workflow.cluster.submit import SubmitError, account


@dataclass(frozen=True)
class Estimate:
    """What the training jobs of one experiment are reckoned to take, from where their runs stand."""

    experiment: str
    need: Training
    margin_minutes: float
    steps: tuple[int, ...]
    """Steps that are left, by job."""
    runs: int
    """Runs that are not done."""

    @property
    def hours(self) -> float:
        """Hours of all its jobs, one after the other."""
        return sum(self.steps) * self.need.step_seconds / 3600

    @property
    def slices(self) -> int:
        """Jobs that the scheduler gets: each leaves the margin unused."""
        minutes = self.need.minutes - self.margin_minutes
        return sum(math.ceil(steps * self.need.step_seconds / 60 / minutes) for steps in self.steps)

    @property
    def node_hours(self) -> float:
        """Node-hours, with the margin of every slice."""
        return self.need.nodes * (self.hours + self.slices * self.margin_minutes / 60)


def estimate(plan: Plan, cluster: Cluster) -> list[Estimate]:
    """Return what is left to train, by experiment; a run that several experiments share counts once."""
    counted: set[str] = set()
    found = []
    for name, experiment in plan.experiments.items():
        steps, runs = [], 0
        for job in experiment.jobs.values():
            left = [_steps_left(plan, run) for run in job.runs if run.id not in counted]
            counted.update(job.run_ids)
            runs += sum(each > 0 for each in left)
            if sum(left):
                steps.append(sum(left))
        if steps:
            found.append(Estimate(name, cluster.training(name), cluster.margin_minutes, tuple(steps), runs))
    return found


def lines(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Yield what a user should know before the plan is submitted; none of it stops anything."""
    left = estimate(plan, cluster)
    yield from _table(plan, cluster, left)
    yield f"account: {_account(cluster)}"
    wanted = dict.fromkeys(name for each in left for name in each.need.data)
    missing = [name for name in wanted if not (data_folder() / name).exists()]
    users = {name: [each.experiment for each in left if name in each.need.data] for name in missing}
    for name in missing:
        yield f"data: {name} is not in {shown_path(data_folder())}: runs of {', '.join(users[name])} will be skipped"
    if wanted and not missing:
        yield f"data: all in {shown_path(data_folder())}"
    yield _disk(plan, left)
    for name in sorted(set(cluster.trainings) - {"default"} - set(plan.experiments)):
        yield f"note: {shown_path(cluster.file)}: training.{name}: no experiment of tier '{plan.tier.name}'"


def _account(cluster: Cluster) -> str:
    """Return who is charged, or what to do about it."""
    if cluster.scheduler == "slurm":
        return os.environ.get("SBATCH_ACCOUNT") or "your cluster's default; export SBATCH_ACCOUNT to name another"
    try:
        return account()
    except SubmitError as problem:
        return f"none yet, needed to submit: {problem}"


def set_environment() -> None:
    """Let what runs on the submitting host find the Python that runs this, and take one thread.

    The profile's scripts need the one.  Login nodes allow few threads; on the nodes that compute, launch says how many.
    """
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ["OMP_NUM_THREADS"] = "1"


def _table(plan: Plan, cluster: Cluster, left: list[Estimate]) -> Iterator[str]:
    if not left:
        yield f"node-hours: nothing is left to train at tier '{plan.tier.name}'"
        return
    heads = ("experiment", "queue", "nodes", "runs", "hours", "jobs", "node-hours")
    rows = [
        (
            each.experiment,
            each.need.queue,
            f"{each.need.nodes}",
            f"{each.runs}",
            f"{each.hours:,.1f}",
            f"{each.slices}",
            f"{each.node_hours:,.1f}",
        )
        for each in left
    ]
    total = f"{sum(each.node_hours for each in left):,.1f}"
    rows.append(("all", "", "", f"{sum(each.runs for each in left)}", "", f"{sum(e.slices for e in left)}", total))
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    yield f"node-hours, if all that is left at tier '{plan.tier.name}' is trained; reckoned from the seconds a step in"
    yield f"{shown_path(cluster.file)}, not measured:"
    for names, numbers in ((row[:2], row[2:]) for row in (heads, *rows)):
        words = [word.ljust(width) for word, width in zip(names, widths[:2], strict=True)]
        yield "  " + "  ".join(words + [word.rjust(width) for word, width in zip(numbers, widths[2:], strict=True)])


def _disk(plan: Plan, left: list[Estimate]) -> str:
    asked = sum(each.runs * each.need.gigabytes for each in left)
    folder = next(parent for parent in (plan.results, *plan.results.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free / 1e9
    shown = f"disk: at most {asked:,.0f} GB to come, {free:,.0f} GB free in {shown_path(plan.results)}"
    return shown if asked <= free else f"{shown}: TOO LITTLE, make room first"


def _steps_left(plan: Plan, run: Run) -> int:
    """Return the steps that a run has to go."""
    folder = RunFolder.of(plan.results, run.id)
    if is_done(folder, needs_weights=run.id in plan.started_from):
        return 0
    done = (read_summary(folder) or {}).get("steps_done", 0)
    return int(max(run.spec["steps"] - done, 1))
