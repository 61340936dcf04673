"""Print which runs are done, running, failed or left, how long the rest takes, and which runs older code made."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from workflow.bench.downloads import needs
from workflow.bench.plan import REFERENCE, Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import planned_artefacts, planned_probes
from workflow.bench.plan.runs import Job, Run
from workflow.bench.results.costs import ARTEFACTS, kept_costs, nearest_first, probes_here_and_elsewhere
from workflow.bench.results.rows import read_csv
from workflow.bench.results.verification import read_specs
from workflow.bench.support.command_line import aligned, run_command, show
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.errors import DamagedFileError, UnreadableError
from workflow.bench.support.files import is_locked
from workflow.bench.support.provenance import usable_cores
from workflow.bench.support.reading import is_regular
from workflow.bench.support.source_code import is_current
from workflow.bench.training.progress import duration
from workflow.bench.training.record import Record, RunFolder, has_weights, origin_of, read_record

_TO_DO: Final = ("running", "left", "interrupted", "failed", "unreadable")
"""States of runs that still need training time. A skipped run lacks its data set, so it needs none."""
_OLDER: Final = "by older code"
_NAMED: Final = 5
"""The most artefacts of a kind that are named as left, unless all names are asked for."""
_PRIOR: Final = 60.0
"""Seconds of finished jobs for which other machines' paces are trusted as much as what was measured here."""


class RunState(NamedTuple):
    """The state of one planned run and its progress."""

    job: Job
    run: Run
    state: str
    """A run's status, ``running``, ``left`` if it was never begun or lost its weights, or ``unreadable``."""
    steps_done: int = 0
    wall_seconds: float | None = None
    """The time that ``steps_done`` took here; None for a run that has not ended, or that was adopted."""
    reason: str = ""
    outdated: bool = False
    """Whether other code than today's made it."""

    @property
    def steps_left(self) -> int:
        """Optimizer steps that the run still needs."""
        return max(0, int(self.run.spec["steps"]) - self.steps_done) if self.state in _TO_DO else 0


def states(plan: Plan, job: Job) -> list[RunState]:
    """Return the states of a job's runs, read from their folders."""
    return [_state(plan, job, run) for run in job.runs]


def share_left(plan: Plan, job: Job) -> float:
    """Return the share of a job's steps that its runs still need."""
    found = states(plan, job)
    return sum(run.steps_left for run in found) / sum(int(run.run.spec["steps"]) for run in found)


def _state(plan: Plan, job: Job, run: Run) -> RunState:
    folder = RunFolder.of(plan.results, run.id)
    try:
        record = read_record(folder, run)
        origin = origin_of(folder)
        state, steps_done = _progress(folder, run, record, needs_weights=run.id in plan.started_from and origin is None)
    except (UnreadableError, DamagedFileError) as problem:
        return RunState(job, run, "unreadable", reason=str(problem))
    seconds = record.summary["wall_seconds"] if record.has_ended and state == record.status and origin is None else None
    outdated = bool(record.summary) and not is_current(record.summary, run.lineage)
    return RunState(job, run, state, steps_done, seconds, record.summary.get("reason", ""), outdated)


def _progress(folder: RunFolder, run: Run, record: Record, *, needs_weights: bool) -> tuple[str, int]:
    """Return a run's state and the steps that are done."""
    # First, because a process that trains the run again has not replaced the old outcome yet.
    if is_locked(folder.lock):
        return "running", record.last_step
    if record.has_ended and (not needs_weights or has_weights(folder, run, record)):
        return str(record.status), record.summary["steps_done"]
    # Without a checkpoint, training begins anew.
    resumes_at = record.last_step if is_regular(folder.checkpoint) else 0
    if record.status is None:
        return "interrupted" if record.rows else "left", resumes_at
    # A final status whose weights are damaged or missing does not count as done.
    return "left" if record.has_ended else record.status, resumes_at


class TimeLeft(NamedTuple):
    """Training time that is left if one run is trained at a time."""

    seconds: float
    unknown: int
    """Runs that are not in `seconds`, because no finished run shows how long a step of theirs takes."""
    borrowed: int = 0
    """Runs whose time is that of another machine's runs."""


PaceKey = tuple[str, ...]
"""Whose pace it is: (experiment, label, workload), or (workload with its parameters,)."""


class Pace:
    """Wall seconds per step of runs: the mean of a label's runs; if none is finished, that of its workload's.

    The workload has the same parameters. Runs here count first, then those of other machines.

    elsewhere: the paces of other machines' runs, which are multiplied by `slower`.
    probes: the seconds that finished probes took here, and elsewhere.
    """

    slower: float
    """How many times as long as elsewhere runs and probes took here, where both are known."""

    def __init__(
        self,
        runs: Iterable[RunState],
        elsewhere: Mapping[PaceKey, float] | None = None,
        probes: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._elsewhere = elsewhere or {}
        found: dict[PaceKey, list[float]] = defaultdict(list)
        here, there = (_PRIOR + seconds for seconds in probes)
        for run in runs:
            if run.state == "finished" and run.wall_seconds and run.steps_done:
                for key in _keys(run):
                    found[key].append(run.wall_seconds / run.steps_done)
                # Compared label by label, because those that end first may be the fastest of their workload.
                if _keys(run)[0] in self._elsewhere:
                    here += run.wall_seconds
                    there += run.steps_done * self._elsewhere[_keys(run)[0]]
        self._here = {key: mean(seconds) for key, seconds in found.items()}
        self.slower = here / there
        self.is_calibrated = there > _PRIOR

    def time_left(self, runs: Iterable[RunState]) -> TimeLeft:
        """Return the time that runs still need."""
        seconds, unknown, borrowed = 0.0, 0, 0
        for run in (run for run in runs if run.steps_left):
            for key in _keys(run):
                if key in self._here:
                    seconds += run.steps_left * self._here[key]
                    break
                if key in self._elsewhere:
                    seconds += run.steps_left * self._elsewhere[key] * self.slower
                    borrowed += 1
                    break
            else:
                unknown += 1
        return TimeLeft(seconds, unknown, borrowed)


def _keys(run: RunState) -> tuple[PaceKey, PaceKey]:
    """Return the keys of a run's pace, the closest first."""
    return (run.job.experiment, run.job.label, run.run.workload), (_workload(run.run.spec),)


def _workload(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec["workload"], sort_keys=True)


def paces_elsewhere(plan: Plan) -> dict[PaceKey, float]:
    """Return the paces of other machines' runs: of labels at this tier, of workloads at every tier.

    Of several machines the nearest counts (`nearest_first`). Tables that cannot be read have none, because an estimate
    is not worth an error.
    """
    paces: dict[PaceKey, float] = {}
    for folder in dict.fromkeys((*nearest_first(plan.compared), *nearest_first(sorted(REFERENCE.glob("*/*"))))):
        found: dict[PaceKey, list[float]] = defaultdict(list)
        specs: Mapping[str, Mapping[str, Any]] = {}
        # Without specs, a label of an experiment still tells its pace.
        with suppress(ConfigError, OSError):
            specs = read_specs(folder)
        for row in _finished_rows(folder):
            with suppress(ValueError, ZeroDivisionError):
                pace = float(row["wall_seconds"]) / float(row["steps_done"])
                if folder in plan.compared:
                    found[row["experiment"], row["optimizer"], row["workload"]].append(pace)
                if row["run"] in specs:
                    found[_workload(specs[row["run"]]),].append(pace)
        paces = {key: mean(seconds) for key, seconds in found.items()} | paces
    return paces


def _finished_rows(folder: Path) -> Iterator[Mapping[str, str]]:
    for file in sorted(folder.glob("*.runs.csv")):
        with suppress(ConfigError, OSError):
            rows = read_csv(file)
            columns = {"run", "experiment", "optimizer", "workload", "status", "steps_done", "wall_seconds"}
            if rows and columns <= rows[0].keys():
                yield from (row for row in rows if row["status"] == "finished")


def count(runs: Iterable[RunState]) -> Counter[str]:
    """Return the number of runs in each state, and under ``by older code`` of those that older code made."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.state] += 1
        counts[_OLDER] += run.outdated
    return +counts


def report(plan: Plan, *, optimizers: bool = False) -> Iterator[str]:
    """Yield the lines of the report: a table of experiments and artefacts, what failed, and the time left.

    optimizers: adds a line for each optimizer, with all states of its runs.
    """
    by_job = {(job.experiment, job.label): states(plan, job) for job in plan.jobs}
    # Experiments may share a run, which counts once.
    runs = _once(run for of_job in by_job.values() for run in of_job)
    pace = Pace(runs, paces_elsewhere(plan), probes_here_and_elsewhere(plan))
    yield f"{plan.tier.name} tier on {plan.hardware}: {shown_path(plan.results)}"
    yield ""
    if optimizers:
        for (experiment, label), of_job in by_job.items():
            counts = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in sorted(count(of_job).items()))
            left = pace.time_left(of_job)
            times = [f"about {duration(left.seconds)} left"] if left.seconds else []
            times += [f"unknown time for {left.unknown} run{'s' * (left.unknown > 1)}"] if left.unknown else []
            yield "; ".join(filter(None, (f"{experiment}/{label}: {counts}", " and ".join(times))))
        yield ""
    rows = {
        name: _row(_once(run for job in experiment.jobs for run in by_job[name, job]), pace, plan)
        for name, experiment in plan.experiments.items()
    }
    cells = [_HEAD, *((name, *row) for name, row in {**rows, "all runs": _row(runs, pace, plan)}.items())]
    yield from aligned(cells, names=1, indent="")
    yield ""
    artefacts = _artefacts(plan)
    yield from (_made(kind, files, all_names=optimizers) for kind, files in artefacts.items())
    yield from _problems(runs)
    waiting = {name for (name, _), of_job in by_job.items() for run in of_job if run.state in (*_TO_DO, "skipped")}
    yield from needs.lines(plan, waiting)
    yield ""
    yield from _time_left(pace, pace.time_left(runs), artefacts, plan)


def _once(runs: Iterable[RunState]) -> list[RunState]:
    return list({run.run.id: run for run in runs}.values())


_HEAD: Final = ("experiment", "runs", "done", "running", "failed", "left", "time left")
_COLUMNS: Final[Mapping[str, str]] = {"running": "running", "failed": "failed", "unreadable": "failed"}
"""The columns of states; those of `_TO_DO` without one are left, and all others done."""


def _row(runs: Sequence[RunState], pace: Pace, plan: Plan) -> tuple[str, ...]:
    """Return the cells of a row of the table, after its name."""
    counts = Counter(_COLUMNS.get(run.state, "left" if run.state in _TO_DO else "done") for run in runs)
    left = pace.time_left(runs)
    time = duration(left.seconds / plan.runs_at_a_time) if left.seconds else ""
    if left.unknown:
        time = f"more than {time}" if time else "unknown"
    return (str(len(runs)), *(str(counts[name] or "") for name in _HEAD[2:-1]), time)


def _problems(runs: Sequence[RunState]) -> Iterator[str]:
    """Yield a line for each run that failed, and one on ended runs whose numbers need a second look."""
    for state in ("failed", "unreadable"):
        for run in runs:
            if run.state == state:
                yield f"{state}: {run.run.id} ({run.run.describe()}): {' '.join(run.reason.split())}"
    notable = count(run for run in runs if run.state not in (*_TO_DO, "finished"))
    of_done = [f"{number} {state.replace('_', ' ')}" for state, number in sorted(notable.items()) if state != _OLDER]
    if of_done:
        yield f"of the runs that are done: {', '.join(of_done)}"
    if older := sum(run.outdated for run in runs):
        yield f"by older code: {older} (make refresh trains them again)"


def _artefacts(plan: Plan) -> dict[str, dict[str, bool]]:
    """Return for probes, figures and tables which are made, by name."""
    planned: dict[str, list[Path]] = {
        "probes": [plan.results / "probes" / f"{probe.name}.csv" for probe in planned_probes(plan)],
        "figures": [plan.results / "figures" / f"{figure.name}.pdf" for figure in planned_artefacts(plan, "figures")],
        "tables": [plan.results / "tables" / f"{table.name}.csv" for table in planned_artefacts(plan, "tables")],
    }
    return {kind: {file.stem: is_regular(file) for file in files} for kind, files in planned.items()}


def _made(kind: str, files: Mapping[str, bool], *, all_names: bool) -> str:
    """Return how many artefacts of a kind are made, and the names of the others if that helps to find them."""
    left = [name for name, made in files.items() if not made]
    line = f"{kind}: {len(files) - len(left)} of {len(files)}"
    if not left or (len(left) == len(files) and not all_names):
        return line
    named = left if all_names else left[:_NAMED]
    more = f" and {len(left) - len(named)} more" if len(left) > len(named) else ""
    return f"{line}; left: {', '.join(named)}{more}"


def _time_left(
    pace: Pace, training: TimeLeft, artefacts: Mapping[str, Mapping[str, bool]], plan: Plan
) -> Iterator[str]:
    """Yield how long training, probes, figures and tables still take on this machine, and what that rests on."""
    at_a_time = plan.runs_at_a_time
    elsewhere = {what: seconds * pace.slower for what, seconds in seconds_elsewhere(artefacts, plan).items()}
    parts = {"training": training.seconds / at_a_time, **elsewhere}
    parts = {what: seconds for what, seconds in parts.items() if seconds >= 1}
    number = "1 run" if at_a_time == 1 else f"{at_a_time} runs"
    if parts:
        named = ", ".join(f"{duration(seconds)} of {what}" for what, seconds in parts.items())
        yield f"time left, {number} at a time: about {duration(sum(parts.values()))} ({named})"
    elif all(all(files.values()) for files in artefacts.values()) and not training.unknown:
        yield "time left: nothing is left to do"
    if training.borrowed or len(parts) > ("training" in parts):
        others = ", ".join(dict.fromkeys(folder.resolve().parent.name for folder in nearest_first(plan.compared)))
        by_jobs = f"times {pace.slower:.2f}, by the jobs that have ended here"
        unknown = "this machine may be faster or slower, which its first jobs will show"
        yield f"estimated in part from the results of {others}; {by_jobs if pace.is_calibrated else unknown}"
    if training.unknown:
        runs = "1 run" if training.unknown == 1 else f"{training.unknown} runs"
        yield f"unknown: the time of {runs}, because no finished run of such a workload is known"


def seconds_elsewhere(artefacts: Mapping[str, Mapping[str, bool]], plan: Plan) -> dict[str, float]:
    """Return the seconds that what is left besides training takes by the costs of another machine."""
    costs = kept_costs(plan)

    def seconds(name: str) -> float:
        return (costs[name].seconds_on(usable_cores()) if name in costs else None) or 0.0

    left = {kind: [name for name, made in files.items() if not made] for kind, files in artefacts.items()}
    drawing = sum(seconds(kind) * len(left[kind]) / len(artefacts[kind]) for kind in ARTEFACTS if artefacts[kind])
    return {"probes": sum(map(seconds, left["probes"])), "figures and tables": drawing}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many runs are in which state, which failed, what is left to measure and draw, and how long it takes."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.status", description=main.__doc__)
    parser.add_argument(
        "--optimizers", action="store_true", help="a line for each optimizer, and all names of artefacts"
    )
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        show(report(load_from(options), optimizers=options.optimizers))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
