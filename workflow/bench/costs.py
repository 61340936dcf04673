"""Print what every experiment and probe of a complete run cost, from the logs of its jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from workflow.bench.plan import add_arguments, load_from
from workflow.bench.results.costs import FILE, JobCost, logged_costs, read_costs, summed
from workflow.bench.support.command_line import run_command, show
from workflow.bench.support.config import ConfigError, shown_path

HEAD: Final = ("job", "runs", "core-seconds", "seconds alone", "peak MB")
_SMALL: Final = 2
"""The cores of the machine for which `main` estimates the time."""


def table(costs: Sequence[JobCost]) -> Iterator[str]:
    """Yield the lines of a Markdown table, with the sums and the time that they take on two cores."""
    every = summed(costs)
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for cost in (*costs, every):
        shown = ("" if value is None else f"{value:,.0f}" for value in cost[1:])
        yield f"| {' | '.join([cost.name, *shown])} |"
    yield ""
    minutes = (every.seconds_on(_SMALL) or 0) / 60
    yield f"On {_SMALL} cores that is {minutes:.1f} minutes: core-seconds / {_SMALL} + seconds alone."


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the core-seconds and the peak memory of every experiment and probe, from the logs of a complete run."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.costs", description=main.__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, help="a folder of results/reference, whose costs.csv is read in place of logs"
    )
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        if options.folder:
            costs = read_costs(options.folder / FILE)
            if not costs:
                raise ConfigError(f'folder = "{options.folder}": has no {FILE}; give a folder of results/reference')
        else:
            plan = load_from(options)
            costs = list(logged_costs(plan))
            if all(cost.core_seconds is None and cost.seconds_alone is None for cost in costs):
                raise ConfigError(f"no job of {shown_path(plan.results)} has logged its cost; run make reproduce first")
        show(table(costs))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
