"""Print which runs are done, running, failed or left, how long the rest takes, and which runs older code made."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import planned_artefacts, planned_probes
from workflow.bench.plan.runs import Job, Run
from workflow.bench.support.command_line import run_command
from workflow.bench.support.errors import DamagedFileError, UnreadableError
from workflow.bench.support.files import is_locked
from workflow.bench.support.reading import is_regular
from workflow.bench.support.source_code import is_current
from workflow.bench.training.progress import duration
from workflow.bench.training.record import Record, RunFolder, has_weights, origin_of, read_record

_TO_DO: Final = ("running", "left", "interrupted", "failed", "unreadable")
"""States of runs that still need training time. A skipped run lacks its data set, so it needs none."""


@dataclass(frozen=True)
class RunState:
    """The state of one planned run and its progress."""

    job: Job
    run: Run
    state: str
    """A run's status, ``running``, ``left`` if it was never begun or lost its weights, or ``unreadable``."""
    steps_done: int
    wall_seconds: float | None
    """The time that ``steps_done`` took; None for a run that has not ended."""
    reason: str
    outdated: bool
    """Whether other code than today's made it."""

    @property
    def steps_left(self) -> int:
        """Optimizer steps that the run still needs."""
        return max(0, int(self.run.spec["steps"]) - self.steps_done) if self.state in _TO_DO else 0


def states(plan: Plan, job: Job) -> list[RunState]:
    """Return the states of a job's runs, read from their folders."""
    return [_state(plan, job, run) for run in job.runs]


def _state(plan: Plan, job: Job, run: Run) -> RunState:
    folder = RunFolder.of(plan.results, run.id)
    try:
        record = read_record(folder, run)
        needs_weights = run.id in plan.started_from and origin_of(folder) is None
        state, steps_done, seconds = _progress(folder, run, record, needs_weights=needs_weights)
    except (UnreadableError, DamagedFileError) as problem:
        return RunState(job, run, "unreadable", 0, None, str(problem), outdated=False)
    outdated = bool(record.summary) and not is_current(record.summary, run.lineage)
    return RunState(job, run, state, steps_done, seconds, record.summary.get("reason", ""), outdated)


def _progress(folder: RunFolder, run: Run, record: Record, *, needs_weights: bool) -> tuple[str, int, float | None]:
    """Return a run's state, steps done and, if it has ended, wall seconds."""
    if is_locked(folder.lock):
        return "running", record.last_step, None
    if record.has_ended and (not needs_weights or has_weights(folder, run, record)):
        return str(record.status), record.summary["steps_done"], record.summary["wall_seconds"]
    # Without a checkpoint, training begins anew.
    resumes_at = record.last_step if is_regular(folder.checkpoint) else 0
    if record.status is None:
        return "interrupted" if record.rows else "left", resumes_at, None
    # A final status whose weights are damaged or missing does not count as done.
    return "left" if record.has_ended else record.status, resumes_at, None


@dataclass(frozen=True)
class TimeLeft:
    """Training time that is left if one run is trained at a time."""

    seconds: float
    unknown: int
    """Runs that are not in `seconds`, because no finished run shows how long a step of theirs takes."""


class Pace:
    """Wall seconds per step, averaged over the finished runs of a label on a workload, or of the workload."""

    def __init__(self, runs: Iterable[RunState]) -> None:
        by_label: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        by_workload: dict[str, list[float]] = defaultdict(list)
        for run in runs:
            if run.state == "finished" and run.wall_seconds and run.steps_done:
                seconds = run.wall_seconds / run.steps_done
                by_label[_label(run)].append(seconds)
                by_workload[run.run.workload].append(seconds)
        self._by_label = {key: mean(seconds) for key, seconds in by_label.items()}
        self._by_workload = {key: mean(seconds) for key, seconds in by_workload.items()}

    def of(self, run: RunState) -> float | None:
        """Return the seconds per step of a run's label, else of its workload; None if neither has a finished run."""
        return self._by_label.get(_label(run), self._by_workload.get(run.run.workload))

    def time_left(self, runs: Iterable[RunState]) -> TimeLeft:
        """Return the time that runs still need."""
        seconds, unknown = 0.0, 0
        for run in runs:
            pace = self.of(run)
            if run.steps_left and pace is None:
                unknown += 1
            elif pace is not None:
                seconds += run.steps_left * pace
        return TimeLeft(seconds, unknown)


def _label(run: RunState) -> tuple[str, str, str]:
    return run.job.experiment, run.job.label, run.run.workload


def count(runs: Iterable[RunState]) -> Counter[str]:
    """Return the number of runs in each state, and under ``by older code`` of those that older code made."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.state] += 1
        counts["by older code"] += run.outdated
    return +counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many runs of every optimizer are in which state, which failed, and how long the rest takes."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.status", description=main.__doc__)
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        for line in report(load_from(options)):
            print(line)

    return run_command(parser, work, arguments)


def report(plan: Plan) -> Iterator[str]:
    """Yield the lines of the report: each job, failed runs, all runs, artefacts, and the time left."""
    by_job = {(job.experiment, job.label): states(plan, job) for job in plan.jobs}
    # Experiments may share a run, which counts once.
    runs = list({run.run.id: run for of_job in by_job.values() for run in of_job}.values())
    pace = Pace(runs)
    for (experiment, label), of_job in by_job.items():
        parts = [f"{experiment}/{label}: {_counted(of_job)}", _in_words(pace.time_left(of_job), 1)]
        yield "; ".join(filter(None, parts))
    for state in ("failed", "unreadable"):
        for run in runs:
            if run.state == state:
                yield f"{state}: {run.run.id} ({run.run.describe()}): {' '.join(run.reason.split())}"
    yield f"all {len(plan.runs)} runs in {plan.results}: {_counted(runs)}"
    yield from _artefacts(plan)
    at_a_time = plan.runs_at_a_time
    number = "one run" if at_a_time == 1 else f"{at_a_time} runs"
    yield f"training, {number} at a time: {_in_words(pace.time_left(runs), at_a_time) or 'nothing left'}"


def _artefacts(plan: Plan) -> Iterator[str]:
    """Yield for probes, figures and tables how many are made, and which are left."""
    planned: dict[str, list[Path]] = {
        "probes": [plan.results / "probes" / f"{probe.name}.csv" for probe in planned_probes(plan)],
        "figures": [plan.results / "figures" / f"{figure.name}.pdf" for figure in planned_artefacts(plan, "figures")],
        "tables": [plan.results / "tables" / f"{table.name}.csv" for table in planned_artefacts(plan, "tables")],
    }
    for kind, files in planned.items():
        left = [file.stem for file in files if not is_regular(file)]
        yield f"{kind}: {len(files) - len(left)} of {len(files)}" + (f"; left: {', '.join(left)}" if left else "")


def _in_words(left: TimeLeft, runs_at_a_time: int) -> str:
    parts = []
    if left.seconds:
        parts.append(f"about {duration(left.seconds / runs_at_a_time)} left")
    if left.unknown:
        runs = "1 run" if left.unknown == 1 else f"{left.unknown} runs"
        parts.append(f"unknown time for {runs} (no finished run of such a workload)")
    return " and ".join(parts)


def _counted(runs: Iterable[RunState]) -> str:
    return ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in sorted(count(runs).items()))


if __name__ == "__main__":
    sys.exit(main())
