"""Checks and notes before anything is submitted: node-hours, account, data, disk. Imports no torch."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workflow.bench.downloads import needs
from workflow.bench.plan import Plan, rank_shares
from workflow.bench.plan.runs import Run
from workflow.bench.support.command_line import aligned
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.errors import DamagedFileError, UnreadableError
from workflow.bench.training.record import RunFolder, is_done, read_record
from workflow.cluster import claim_costs
from workflow.cluster.settings import Cluster, TrainingResources, refused
from workflow.cluster.step_seconds import FAR, StepSeconds, papers_step, step_seconds
from workflow.cluster.submit import SubmitError, account

ESTIMATED_ON: Final = "polaris"
"""The cluster of estimates where none is named."""


@dataclass(frozen=True)
class CostEstimate:
    """The estimated cost of the training jobs that one experiment still needs."""

    experiment: str
    need: TrainingResources
    margin_minutes: float
    steps: tuple[int, ...]
    """Remaining steps of each unfinished job."""
    runs: int
    """Number of unfinished runs."""
    assumed: StepSeconds
    """The seconds of a step's training, and where they are from."""
    shared_seconds: float = 0.0
    """Seconds for each step in which ranks draw batches and read an evaluation's images, each its part."""

    @property
    def step_seconds(self) -> float:
        """Seconds per step, with what comes beside the training."""
        return self.assumed.seconds + self.shared_seconds

    @property
    def hours(self) -> float:
        """Hours of training, if the jobs run one after the other."""
        return sum(self.steps) * self.step_seconds / 3600

    @property
    def slices(self) -> int:
        """Jobs at the scheduler; each trains for its minutes less the margin."""
        minutes = self.need.minutes - self.margin_minutes
        return sum(math.ceil(steps * self.step_seconds / 60 / minutes) for steps in self.steps)

    @property
    def node_hours(self) -> float:
        """Node-hours, including the margin of every slice."""
        return self.need.nodes * (self.hours + self.slices * self.margin_minutes / 60)


def cost_estimates(plan: Plan, cluster: Cluster) -> list[CostEstimate]:
    """Return the estimates of all experiments with unfinished runs; a run that several share counts once."""
    counted: set[str] = set()
    estimates = []
    assumed = step_seconds(plan, cluster)
    never = refused(plan, cluster)
    shared: dict[str, float] = {}
    for saving in rank_shares.savings(plan, cluster.place, rank_shares.measured()[1], never):
        shared[saving.experiment] = shared.get(saving.experiment, 0.0) + saving.step_seconds
    for name, experiment in plan.experiments.items():
        steps, runs = [], 0
        for job in [each for each in experiment.jobs.values() if each not in never]:
            left = [_steps_left(plan, run) for run in job.runs if run.id not in counted]
            counted.update(job.run_ids)
            runs += sum(each > 0 for each in left)
            if sum(left):
                steps.append(sum(left))
        if steps:
            need, margin = cluster.training(name), cluster.margin_minutes
            estimates.append(CostEstimate(name, need, margin, tuple(steps), runs, assumed[name], shared.get(name, 0.0)))
    return estimates


def lines(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Yield notes for the user before the plan is submitted; none of them stops it."""
    estimates = cost_estimates(plan, cluster)
    yield from cost_lines(plan, cluster, estimates)
    never = refused(plan, cluster)
    yield from rank_shares.lines(plan, cluster.place, never)
    yield from (f"not submitted, recorded as skipped: {reason}" for reason in never.values())
    try:
        own = os.environ.get("SBATCH_ACCOUNT") or "your cluster's default; export SBATCH_ACCOUNT to name another"
        yield f"account: {own if cluster.scheduler == 'slurm' else account()}"
    except SubmitError as problem:
        yield f"account: none yet, needed to submit: {problem}"
    yield from needs.lines(plan, [each.experiment for each in estimates])
    yield _disk(plan, estimates)
    for name in sorted(set(cluster.trainings) - {"default"} - set(plan.experiments)):
        yield f"note: {shown_path(cluster.file)}: training.{name}: no experiment of tier '{plan.tier.name}'"


def cost_lines(plan: Plan, cluster: Cluster, estimates: list[CostEstimate]) -> Iterator[str]:
    """Yield the node-hours by experiment with their sources, what is doubtful in them, and what they can decide."""
    yield from _table(plan, cluster, estimates)
    if not estimates:
        return
    if doubtful := [each for each in estimates if each.assumed.is_doubtful]:
        guesses = ", ".join(f"{one.experiment} {one.assumed.seconds:g} ({one.assumed.model:.2g})" for one in doubtful)
        where = f"{shown_path(cluster.file)}: step_seconds without step_source"
        yield f"warning: {where}, more than {FAR:g} times off the model's: {guesses}; run the pilot, or state a source"
    if paper := papers_step(plan, cluster):
        yield (
            f"overheads weigh {paper.seconds / paper.model:.1f} times what the paper's did: BERT-Large's base step "
            f"takes {paper.model:.1f} s by the model, and took the paper {paper.seconds:.1f} s, "
            f"{100 * paper.share_of_peak:.0f} % of the GPUs' peak"
        )
    yield from claim_costs.lines(plan, {each.experiment: each.node_hours for each in estimates})


def lines_without_cluster(plan: Plan) -> Iterator[str]:
    """Yield what is missing of the data that unfinished runs read, and the node-hours of a large tier.

    These are `cost_lines` as if on `ESTIMATED_ON`, for a tier whose large runs several ranks train and whose plan fits
    that cluster.
    """
    if needs.needs(plan):  # records are read only where data may be missing
        unfinished = {job.experiment for job in plan.jobs for run in job.runs if _steps_left(plan, run)}
        yield from needs.lines(plan, unfinished)
    if plan.tier.ranks == 1:
        return
    try:
        cluster = Cluster.load(ESTIMATED_ON, plan)
        yield from cost_lines(plan, cluster, cost_estimates(plan, cluster))
    except ConfigError as problem:
        yield f"no estimate of node-hours: {problem}"


def set_environment() -> None:
    """Put this Python first on PATH, for the profile's scripts, and limit the submitting host to one thread.

    Login nodes allow few threads; on compute nodes, the profile's launch script sets their number.
    """
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ["OMP_NUM_THREADS"] = "1"


def _table(plan: Plan, cluster: Cluster, estimates: list[CostEstimate]) -> Iterator[str]:
    if not estimates:
        yield f"node-hours: nothing is left to train at tier '{plan.tier.name}'"
        return
    heads = ("experiment", "queue", "nodes", "runs", "hours", "jobs", "node-hours", "s/step", "from")
    rows = []
    for each in estimates:
        jobs = f"{each.need.nodes}", f"{each.runs}", f"{each.hours:,.1f}", f"{each.slices}", f"{each.node_hours:,.1f}"
        step = f"{each.assumed.seconds:.3g}", each.assumed.source
        rows.append((each.experiment, each.need.queue, *jobs, *step))
    runs, slices = sum(each.runs for each in estimates), sum(each.slices for each in estimates)
    node_hours = sum(each.node_hours for each in estimates)
    rows.append(("all", "", "", f"{runs}", "", f"{slices}", f"{node_hours:,.1f}", "", ""))
    yield f"node-hours to train all that is left at tier '{plan.tier.name}', from seconds of a step that a pilot job"
    yield f"measured, that {shown_path(cluster.file)} states, or of a model: that of the base optimizer's step alone,"
    yield "without reading data, a lower bound"
    yield from aligned([heads, *rows], names=2, remarks=1)


def _disk(plan: Plan, estimates: list[CostEstimate]) -> str:
    needed = sum(each.runs * each.need.gigabytes for each in estimates)
    folder = next(parent for parent in (plan.results, *plan.results.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free / 1e9
    line = f"disk: at most {needed:,.0f} GB needed, {free:,.0f} GB free in {shown_path(plan.results)}"
    return line if needed <= free else f"{line}: TOO LITTLE, make room first"


def _steps_left(plan: Plan, run: Run) -> int:
    """Return the steps that a run still needs; at least 1 if it is not done."""
    folder = RunFolder.of(plan.results, run.id)
    try:
        if is_done(folder, run, needs_weights=run.id in plan.started_from):
            return 0
        done = read_record(folder, run).summary.get("steps_done", 0)
    except (UnreadableError, DamagedFileError):
        done = 0
    return int(max(run.spec["steps"] - done, 1))
