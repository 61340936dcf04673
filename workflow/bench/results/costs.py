"""What every experiment and probe of a run cost: read from the logs of its jobs, kept in ``costs.csv``.

The module imports neither torch nor pandas.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from csv import DictWriter
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import planned_artefacts, planned_probes
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.cost_line import Cost, cost_in, total
from workflow.bench.support.reading import read_text

FILE: Final = "costs.csv"
"""The file of a folder ``results/reference/<hardware>/<tier>`` that `merge` writes; logs are not kept there."""
ARTEFACTS: Final = ("figures", "tables")
"""The jobs that draw."""


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
        """Return the wall seconds that the job adds to a run on so many cores; None if its cost is unknown."""
        if self.core_seconds is None:
            return self.seconds_alone
        return self.core_seconds / cores


def logged_costs(plan: Plan) -> Iterator[JobCost]:
    """Yield the cost of each experiment, each probe, and each kind of artefacts, from a plan's logs.

    Raises:
        UnreadableError: a log or a table of runs cannot be read.
        ConfigError: a table of runs is damaged.
    """
    logs = plan.results / "logs"
    for name, experiment in plan.experiments.items():
        cost = _total([*(logs / "train" / name).glob("*.log"), logs / "aggregate" / f"{name}.log"])
        runs = {run for job in experiment.jobs.values() for run in job.run_ids}
        peaks = [_peak(cost), *_peaks_of_runs(plan.results / f"{name}.runs.csv")]
        yield JobCost(name, len(runs), cost and cost.core_seconds, None, max(filter(None, peaks), default=None))
    for probe in planned_probes(plan):
        cost = _total([logs / "probes" / f"{probe.name}.log"])
        if probe.cores == 1:
            yield JobCost(probe.name, None, cost and cost.core_seconds, None, _peak(cost))
        else:
            yield JobCost(probe.name, None, None, cost and cost.seconds, _peak(cost))
    for kind in ARTEFACTS:
        cost = _total((logs / kind).glob("*.log"))
        yield JobCost(kind, None, cost and cost.core_seconds, None, _peak(cost))


def _total(logs: Iterable[Path]) -> Cost | None:
    found = [cost for log in logs if log.is_file() and (cost := cost_in(read_text(log)))]
    return total(found) if found else None


def _peak(cost: Cost | None) -> float | None:
    return cost.peak_mb if cost else None


def _peaks_of_runs(table: Path) -> list[float]:
    """Return the peaks of an experiment's runs: each run resets that of its process, so the log's may be the last's."""
    rows = read_csv(table) if table.is_file() else []
    return [_number(table, row["peak_memory_bytes"]) / 1e6 for row in rows if row.get("peak_memory_bytes")]


def text_of(costs: Iterable[JobCost]) -> str:
    """Return the text of a ``costs.csv``, rounded to what is repeatable: seconds, and MB."""
    text = io.StringIO()
    writer = DictWriter(text, JobCost._fields, lineterminator="\n")
    writer.writeheader()
    for cost in costs:
        writer.writerow({name: "" if value is None else _rounded(value) for name, value in cost._asdict().items()})
    return text.getvalue()


def _rounded(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.0f}"


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


def kept_costs(plan: Plan) -> dict[str, JobCost]:
    """Return the costs that the folders to compare with keep, by name; of several machines the first counts."""
    return {cost.name: cost for folder in reversed(plan.compared) for cost in read_costs(folder / FILE)}


def expected_core_seconds(plan: Plan, cores: int) -> dict[str, float]:
    """Return what jobs took elsewhere: of training by "<experiment>/<label>", of probes, figures and tables by name.

    An experiment's cost is shared among its labels by their steps, that of figures and of tables evenly. A job that
    needs the machine for itself takes all of ``cores``.
    """
    costs = kept_costs(plan)
    expected: dict[str, float] = {}
    for name, experiment in plan.experiments.items():
        if (cost := costs.get(name)) and cost.core_seconds:
            steps = {
                label: sum(planned.run.spec["steps"] for planned in job.planned)
                for label, job in experiment.jobs.items()
            }
            expected |= {
                f"{name}/{label}": cost.core_seconds * own / sum(steps.values()) for label, own in steps.items()
            }
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
