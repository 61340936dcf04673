"""What every experiment and probe of a run cost: read from the logs of its jobs and runs, kept in ``costs.csv``.

The module imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import Artefact, Kind, planned_artefacts, planned_probes
from workflow.bench.results.rows import csv_text, read_csv
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.cost_line import Cost, cost_in, total
from workflow.bench.support.errors import UnreadableError
from workflow.bench.support.provenance import usable_cores
from workflow.bench.support.reading import read_text

FILE: Final = "costs.csv"
"""The file of a folder ``results/reference/<hardware>/<tier>`` that `merge` writes; logs are not kept there."""
ARTEFACTS: Final[tuple[Kind, ...]] = ("figures", "tables")
"""The kinds of jobs that draw."""


class JobCost(NamedTuple):
    """What an experiment, a probe, or all figures or tables took. Empty fields are unknown."""

    name: str
    runs: int | None
    core_seconds: float | None
    """Of jobs that share the machine with others."""
    seconds_alone: float | None
    """Of a job that needs more than one core, beside which a machine of two cores does nothing else."""
    peak_mb: float | None
    """Peak memory of the largest process, in MB (10^6 bytes)."""

    def seconds_on(self, cores: int) -> float | None:
        """Return the wall seconds that it adds to a run on so many cores; None if its cost is unknown."""
        if self.core_seconds is None:
            return self.seconds_alone
        return self.core_seconds / cores + (self.seconds_alone or 0)


def logged_costs(plan: Plan) -> Iterator[JobCost]:
    """Yield the cost of each experiment, each probe, and each kind of artefacts, from a plan's logs and tables of runs.

    A run that several experiments share counts in the first. Without logs, as in a folder that `merge` made, an
    experiment has no cost: its runs are a part of it.

    Raises:
        UnreadableError: a log or a table of runs cannot be read.
        ConfigError: a table of runs is damaged.
    """
    logs, counted = plan.results / "logs", set[str]()
    for name, experiment in plan.experiments.items():
        cost = total_of([*(logs / "train" / name).glob("*.log"), logs / "aggregate" / f"{name}.log"])
        runs = {run for job in experiment.jobs.values() for run in job.run_ids}
        table = plan.results / f"{name}.runs.csv"
        rows = read_csv(table) if table.is_file() else []
        # Each run resets the peak of its process, so the log's may be the last run's.
        peaks = [_number(table, row["peak_memory_bytes"]) / 1e6 for row in rows if row.get("peak_memory_bytes")]
        peak = max(filter(None, [cost and cost.peak_mb, *peaks]), default=None)
        # Where runs were adopted from another machine, what the jobs took here says nothing of the experiment.
        adopted = any(row.get("hardware", plan.hardware) != plan.hardware for row in rows)
        # Runs of this machine may be older than the logs, and trained by a command that keeps none.
        new = [row for row in rows if row["run"] not in counted and row.get("wall_seconds")] if logs.is_dir() else []
        counted |= {row["run"] for row in rows}
        seconds = max(cost.core_seconds if cost else 0, sum(_number(table, row["wall_seconds"]) for row in new))
        yield JobCost(name, len(runs), None if adopted else seconds or None, None, peak)
    for probe in planned_probes(plan):
        yield _probe_cost(probe, plan)
    for kind in ARTEFACTS:
        cost = total_of((logs / kind).glob("*.log"))
        yield JobCost(kind, None, cost and cost.core_seconds, None, cost and cost.peak_mb)


def _probe_cost(probe: Artefact, plan: Plan) -> JobCost:
    cost = total_of([plan.results / "logs" / "probes" / f"{probe.name}.log"])
    shared, alone = (cost and cost.core_seconds, None) if probe.cores == 1 else (None, cost and cost.seconds)
    return JobCost(probe.name, None, shared, alone, cost and cost.peak_mb)


def probes_here_and_elsewhere(plan: Plan) -> tuple[float, float]:
    """Return the seconds that the finished probes took here, and those that the same ones took by `kept_costs`.

    The pipeline begins with them, so that they tell first how fast this machine is. What cannot be read tells nothing.
    """
    kept, here, there = kept_costs(plan), 0.0, 0.0
    for probe in planned_probes(plan):
        if (plan.results / "probes" / f"{probe.name}.csv").is_file() and probe.name in kept:
            with suppress(UnreadableError):
                # The core-seconds of both, or the seconds of both.
                own, other = (cost.seconds_on(1) for cost in (_probe_cost(probe, plan), kept[probe.name]))
                if own and other:
                    here, there = here + own, there + other
    return here, there


def total_of(logs: Iterable[Path]) -> Cost | None:
    """Return what some logs of jobs say that these cost; None if none of them does."""
    found = [cost for log in logs if log.is_file() and (cost := cost_in(read_text(log)))]
    return total(found) if found else None


def text_of(costs: Iterable[JobCost]) -> str:
    """Return the text of a ``costs.csv``, rounded to what is repeatable: seconds, and MB."""
    fields = (zip(JobCost._fields, cost, strict=True) for cost in costs)
    rounded = (
        {key: value if isinstance(value, str | None) else f"{value:.0f}" for key, value in each} for each in fields
    )
    return csv_text(JobCost._fields, rounded)


def read_costs(file: Path) -> list[JobCost]:
    """Return the costs in a ``costs.csv``; none if it does not exist.

    Raises:
        UnreadableError: it cannot be read.
        ConfigError: it is damaged.
    """
    if not file.is_file():
        return []
    rows = read_csv(file)
    if rows and tuple(rows[0]) != JobCost._fields:
        raise ConfigError(f"{shown_path(file)}: damaged: its columns are not {', '.join(JobCost._fields)}")
    costs = []
    for row in rows:
        runs, *numbers = (None if not text else _number(file, text) for text in list(row.values())[1:])
        costs.append(JobCost(row["name"], None if runs is None else int(runs), *numbers))
    return costs


def nearest_first(folders: Sequence[Path]) -> list[Path]:
    """Return folders ``<hardware>/<tier>``, those of machines with as many cores as this one first.

    Two runs at a time slow each other on two cores, which may be threads of one, more than on four.
    """
    # The names that the harness gives to machines end in their cores.
    return sorted(folders, key=lambda folder: not folder.parent.name.endswith(f"-{usable_cores()}-cores"))


def kept_costs(plan: Plan) -> dict[str, JobCost]:
    """Return the costs that the folders to compare with keep, by name; of several machines the nearest counts."""
    folders = nearest_first(plan.compared)
    return {cost.name: cost for folder in reversed(folders) for cost in read_costs(folder / FILE)}


def expected_core_seconds(plan: Plan, cores: int) -> dict[str, float]:
    """Return what jobs took elsewhere: of training by "<experiment>/<label>", of probes, figures and tables by name.

    An experiment's cost per run is shared among its labels by their steps, that of figures and of tables evenly. A job
    that needs the machine for itself takes all of ``cores``.
    """
    costs = kept_costs(plan)
    expected: dict[str, float] = {}
    for name, experiment in plan.experiments.items():
        if (cost := costs.get(name)) and cost.core_seconds:
            # By steps, because nothing is logged of a single label: one process trains several.
            steps = {
                label: sum(planned.run.spec["steps"] for planned in job.planned)
                for label, job in experiment.jobs.items()
            }
            # The experiment may have had more seeds there.
            runs = {run for job in experiment.jobs.values() for run in job.run_ids}
            core_seconds = cost.core_seconds * len(runs) / (cost.runs or len(runs))
            expected |= {f"{name}/{label}": core_seconds * own / sum(steps.values()) for label, own in steps.items()}
    for probe in planned_probes(plan):
        if cost := costs.get(probe.name):
            expected[probe.name] = cost.core_seconds or (cost.seconds_alone or 0) * cores
    for kind in ARTEFACTS:
        if (cost := costs.get(kind)) and cost.core_seconds:
            names = [artefact.name for artefact in planned_artefacts(plan, kind)]
            expected |= dict.fromkeys(names, cost.core_seconds / len(names))
    return expected


def _number(file: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{shown_path(file)}: damaged: '{text[:40]}' is not a number") from None


def summed(costs: Sequence[JobCost]) -> JobCost:
    """Return the sum of costs, with the largest peak; 0 for what none has."""
    return JobCost(
        "all",
        sum(cost.runs or 0 for cost in costs),
        sum(cost.core_seconds or 0 for cost in costs),
        sum(cost.seconds_alone or 0 for cost in costs),
        max((cost.peak_mb for cost in costs if cost.peak_mb), default=None),
    )
