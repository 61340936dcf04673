"""What ran, what runs, what failed and what is left, with the time that it will take; and what older code made."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import made_from, measured_by
from workflow.bench.plan.runs import Job, Run
from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import is_locked
from workflow.bench.support.provenance import gpu_names
from workflow.bench.support.source_code import is_current
from workflow.bench.training.progress import duration
from workflow.bench.training.record import FINAL, DamagedRecordError, RunFolder, is_done, read_metrics, read_summary

#: States of runs that still need training time. A skipped run waits for its data, not for time.
_TO_DO: Final = ("running", "left", "interrupted", "failed")


@dataclass(frozen=True)
class State:
    """One planned run: where it stands, and how many of its steps are done."""

    job: Job
    run: Run
    state: str
    """A run's status, ``running``, or ``left`` where it was never begun or its record is gone."""
    steps_done: int
    wall_seconds: float | None
    """How long its ``steps_done`` took; None where it has not ended."""
    reason: str
    older: bool
    """Whether other code than today's made it."""

    @property
    def steps_left(self) -> int:
        """How many optimizer steps it still needs."""
        return max(0, int(self.run.spec["steps"]) - self.steps_done) if self.state in _TO_DO else 0


def states(plan: Plan, job: Job) -> list[State]:
    """Return where a job's runs stand, from their folders alone."""
    found = []
    for run in job.runs:
        folder = RunFolder.of(plan.results, run.id)
        summary = read_summary(folder)
        older = summary is not None and not is_current(summary, run.lineage)
        seconds = None
        running = is_locked(folder.lock)
        if summary and not running and is_done(folder, needs_weights=run.id in plan.started_from):
            state = summary["status"]
            done, seconds = int(summary.get("steps_done", 0)), summary.get("wall_seconds")
        else:
            evaluated = _evaluated(folder)
            if running:
                state = "running"
            elif summary:
                state = "left" if summary["status"] in FINAL else summary["status"]
            else:
                state = "interrupted" if evaluated else "left"
            # What broke off without a checkpoint begins anew.
            done = evaluated if state == "running" or folder.checkpoint.is_file() else 0
        found.append(State(job, run, state, done, seconds, str((summary or {}).get("reason") or ""), older))
    return found


def _evaluated(folder: RunFolder) -> int:
    """How many steps a run had done at its last evaluation; none where its metrics.csv is damaged: it begins anew."""
    try:
        steps = [row["step"] for row in read_metrics(folder)]
    except DamagedRecordError as problem:
        warnings.warn(f"{problem}; the run counts as not begun", stacklevel=2)
        return 0
    return int(steps[-1] or 0) if steps else 0


@dataclass(frozen=True)
class Estimate:
    """Seconds of training that are left, on one core or GPU, and for how many runs nothing here tells them."""

    seconds: float
    unknown: int


class Rates:
    """Wall seconds a step, from the runs that finished: of a label on its workload, and of the workload at large."""

    def __init__(self, found: Iterable[State]) -> None:
        by_label: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        by_workload: dict[str, list[float]] = defaultdict(list)
        for state in found:
            if state.state == "finished" and state.wall_seconds and state.steps_done:
                rate = state.wall_seconds / state.steps_done
                by_label[state.job.experiment, state.job.label, state.run.workload].append(rate)
                by_workload[state.run.workload].append(rate)
        self._by_label = {key: mean(rates) for key, rates in by_label.items()}
        self._by_workload = {key: mean(rates) for key, rates in by_workload.items()}

    def of(self, state: State) -> float | None:
        """Return seconds a step of a run's label, else of its workload, None where neither has a finished run."""
        label = (state.job.experiment, state.job.label, state.run.workload)
        return self._by_label.get(label, self._by_workload.get(state.run.workload))

    def left(self, found: Iterable[State]) -> Estimate:
        """Return the time that runs still need."""
        seconds, unknown = 0.0, 0
        for state in found:
            rate = self.of(state)
            if state.steps_left and rate is None:
                unknown += 1
            elif rate is not None:
                seconds += state.steps_left * rate
        return Estimate(seconds, unknown)


def count(found: Iterable[State]) -> Counter[str]:
    """Return how many runs are in which state, and how many are ``by older code``."""
    counts: Counter[str] = Counter()
    for state in found:
        counts[state.state] += 1
        counts["by older code"] += state.older
    return +counts


def _side_by_side(plan: Plan) -> int:
    """How many runs this machine trains at a time: one a GPU, or as many as have their threads."""
    if plan.tier.device == "cuda":
        return max(1, len(gpu_names()))
    return max(1, (os.cpu_count() or 1) // plan.tier.threads)


def main(arguments: list[str] | None = None) -> int:
    """Print how many runs of every optimizer ended how, run, or are left, what failed, and how long the rest takes."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.status", description=main.__doc__)
    add_arguments(parser)
    try:
        plan = load_from(parser.parse_args(arguments))
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        return 1
    by_job = {(job.experiment, job.label): states(plan, job) for job in plan.jobs}
    # Experiments may share a run.
    once = list({state.run.id: state for found in by_job.values() for state in found}.values())
    rates = Rates(once)
    for (experiment, label), found in by_job.items():
        print(
            "; ".join(filter(None, [f"{experiment}/{label}: {_shown(count(found))}", _time_left(rates.left(found), 1)]))
        )
    for state in once:
        if state.state == "failed":
            print(f"failed: {state.run.id} ({state.run.describe()}): {state.reason}")
    print(f"all {len(plan.runs)} runs in {plan.results}: {_shown(count(once))}")
    for line in _made(plan):
        print(line)
    here = _side_by_side(plan)
    runs = "one run" if here == 1 else f"{here} runs"
    print(f"training, {runs} at a time: {_time_left(rates.left(once), here) or 'nothing left'}")
    return 0


def _made(plan: Plan) -> Iterable[str]:
    """Say which probes, figures and tables are there, and which are not."""
    wanted: Mapping[str, list[Any]] = {
        "probes": [plan.results / "probes" / f"{probe.name}.csv" for probe in measured_by(plan)],
        "figures": [plan.results / "figures" / f"{figure.name}.pdf" for figure in made_from(plan, "figures")],
        "tables": [plan.results / "tables" / f"{table.name}.csv" for table in made_from(plan, "tables")],
    }
    for kind, files in wanted.items():
        left = [file.stem for file in files if not file.is_file()]
        yield f"{kind}: {len(files) - len(left)} of {len(files)}" + (f"; left: {', '.join(left)}" if left else "")


def _time_left(left: Estimate, side_by_side: int) -> str:
    parts = []
    if left.seconds:
        parts.append(f"about {duration(left.seconds / side_by_side)} left")
    if left.unknown:
        runs = "1 run" if left.unknown == 1 else f"{left.unknown} runs"
        parts.append(f"unknown time for {runs} (no finished run of such a workload)")
    return " and ".join(parts)


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
