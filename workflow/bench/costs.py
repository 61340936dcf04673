"""Print what every experiment and probe of a complete run cost, from the logs of its jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import planned_probes
from workflow.bench.support.command_line import run_command
from workflow.bench.support.cost_line import Cost, cost_in, total
from workflow.bench.support.reading import read_text

HEAD: Final = ("job", "runs", "core-seconds", "seconds alone")
_SMALL: Final = 2
"""The cores of the machine for which `main` estimates the time."""


class Row(NamedTuple):
    """What an experiment, a probe, or a kind of artefacts took."""

    name: str
    runs: int | None
    core_seconds: float | None
    """Of jobs that share the machine with others; None if no log has it."""
    seconds_alone: float | None
    """Of a job that needs more than one core, beside which a machine of two cores does nothing else."""


def rows(plan: Plan) -> Iterator[Row]:
    """Yield a row for each experiment, each probe, and each kind of artefacts; jobs that left no cost have none."""
    logs = plan.results / "logs"
    for name, experiment in plan.experiments.items():
        cost = _total([*(logs / "train" / name).glob("*.log"), logs / "aggregate" / f"{name}.log"])
        runs = {run for job in experiment.jobs.values() for run in job.run_ids}
        yield Row(name, len(runs), cost and cost.core_seconds, None)
    for probe in planned_probes(plan):
        cost = _total([logs / "probes" / f"{probe.name}.log"])
        if probe.cores == 1:
            yield Row(probe.name, None, cost and cost.core_seconds, None)
        else:
            yield Row(probe.name, None, None, cost and cost.seconds)
    for kind in ("figures", "tables"):
        cost = _total((logs / kind).glob("*.log"))
        yield Row(kind, None, cost and cost.core_seconds, None)


def _total(logs: Iterable[Path]) -> Cost | None:
    found = [cost for log in logs if log.is_file() and (cost := cost_in(read_text(log)))]
    return total(found) if found else None


def table(costs: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table, with the sums and the time that they take on two cores."""
    shared = sum(row.core_seconds or 0 for row in costs)
    alone = sum(row.seconds_alone or 0 for row in costs)
    runs = sum(row.runs or 0 for row in costs)
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for row in (*costs, Row("all", runs, shared, alone)):
        cells = [_shown(value) for value in (row.runs, row.core_seconds, row.seconds_alone)]
        yield f"| {' | '.join([row.name, *cells])} |"
    yield ""
    minutes = (shared / _SMALL + alone) / 60
    yield f"On {_SMALL} cores that is {minutes:.1f} minutes: core-seconds / {_SMALL} + seconds alone."


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the core-seconds of every experiment and probe, from the logs of a complete run."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.costs", description=main.__doc__)
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        print(*table(list(rows(load_from(options)))), sep="\n")

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
