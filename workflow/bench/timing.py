"""Measure time, memory and bytes of a step on this machine again, and say whether the machine was idle meanwhile."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import Artefact, planned_probes
from workflow.bench.plan.pipeline import run_pipeline
from workflow.bench.results.costs import kept_costs
from workflow.bench.results.rows import read_csv
from workflow.bench.support.command_line import check_option, real, run_command
from workflow.bench.support.config import shown_path
from workflow.bench.support.load import OtherLoad, is_busy
from workflow.bench.support.provenance import usable_cores
from workflow.bench.training.progress import duration

WATCHED: Final = 2.0
"""The seconds for which the machine is watched before it is measured."""
LOOKS: Final = 10.0
"""The seconds between two looks at a busy machine while it is waited for."""
MINUTES: Final = 7 * 24 * 60
"""The longest wait."""
TOLD: Final = 0.1
"""The share of busy rounds from which a warning says so."""
STEP_TIME: Final = "step_time"


def expected(probes: Sequence[Artefact], plan: Plan) -> float | None:
    """Return the seconds that probes took on another machine, for this machine's cores; None if it did not say."""
    costs = kept_costs(plan)
    seconds = [costs[probe.name].seconds_on(usable_cores()) for probe in probes if probe.name in costs]
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(probes) else None


def rounds_left_out(table: Path) -> float | None:
    """Return the share of the rounds of the probe `STEP_TIME` in which the machine was busy; None if it is unknown."""
    rows = [row for row in read_csv(table) if row["busy_share"]]
    return sum(row["left_out"].lower() == "true" for row in rows) / len(rows) if rows else None


def announcement(probes: Sequence[Artefact], plan: Plan) -> str:
    """Return what is measured, and how long that takes."""
    seconds = expected(probes, plan)
    takes = (
        "" if seconds is None else f"; about {duration(seconds)} if the machine is idle and as fast as the reference"
    )
    return f"tier {plan.tier.name}: {', '.join(probe.name for probe in probes)}{takes}"


def share_of_others(wait: float, stream: TextIO) -> float | None:
    """Return the share of the cores that other processes use now, or after a wait for an idle machine.

    Meanwhile it prints the share and the time left: on one line of a terminal, else once a minute. It returns None on a
    system that does not tell.

    wait: seconds to wait at most.
    """
    load, started, told = OtherLoad(), time.monotonic(), 0.0
    seconds = WATCHED
    while True:
        time.sleep(seconds)
        share, waited = load.share(), time.monotonic() - started
        if not is_busy(share) or waited >= wait:
            break
        line = f"waiting for an idle machine: others use {share:.0%} of the cores; {duration(wait - waited)} left"
        if stream.isatty():
            print(f"\r\x1b[K{line}", end="", file=stream, flush=True)
        elif not told or waited - told >= 60:
            print(line, file=stream, flush=True)
            told = waited
        seconds = min(LOOKS, max(WATCHED, wait - waited))
    if stream.isatty():
        print("\r\x1b[K", end="", file=stream, flush=True)
    return share


def refusal(share: float | None, options: argparse.Namespace) -> str:
    """Return why nothing is measured; an empty text if the machine is idle, or is measured anyway."""
    if share is None:
        print("warning: this system does not tell how busy it is; keep it idle", file=sys.stderr)
        return ""
    if not is_busy(share):
        return ""
    busy = f"other processes use {share:.0%} of the cores"
    if options.anyway:
        print(f"warning: {busy}: times will be too long", file=sys.stderr)
        return ""
    waited = f" after {options.wait:g} minutes" if options.wait else ""
    return f"not measured: {busy}{waited}. Stop them, or give --wait MINUTES, or --anyway"


def after(seconds: float, plan: Plan) -> Iterator[str]:
    """Yield how long it took, where the tables are, and a warning if other processes used the machine meanwhile."""
    folder = plan.results / "probes"
    yield f"measured in {duration(seconds)}; tables in {shown_path(folder)}; make compare compares them"
    table = folder / f"{STEP_TIME}.csv"
    share = rounds_left_out(table) if table.is_file() else None
    if share is not None and share >= TOLD:
        yield (
            f"warning: the machine was busy in {share:.0%} of the rounds of {STEP_TIME}, which leaves them out; the "
            "column busy_share says which rows of the other probes were timed under load. Repeat on an idle machine"
        )


def measure(options: argparse.Namespace) -> int:
    """Run the probes that measure the machine; return the exit status."""
    check_option("--wait", options.wait, 0, MINUTES)
    plan = load_from(options)
    probes = [probe for probe in planned_probes(plan) if probe.timing]
    print(announcement(probes, plan), flush=True)
    if problem := refusal(share_of_others(60 * options.wait, sys.stderr), options):
        print(problem, file=sys.stderr)
        return 1
    started = time.monotonic()
    if status := run_pipeline(plan, options, ["--forceall", "timing"]):
        return status
    print(*after(time.monotonic() - started, plan), sep="\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure time, memory and bytes of a step on this machine: every probe of them runs again. Needs no data set.

    On a machine that other processes use it measures nothing without --wait or --anyway.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.timing", description=main.__doc__)
    parser.add_argument("--cores", default="all", help="cores that Snakemake may use (default: all)")
    parser.add_argument(
        "--wait", type=real, default=0.0, metavar="MINUTES", help="wait so long for an idle machine (default: 0)"
    )
    parser.add_argument("--anyway", action="store_true", help="measure a busy machine, too; times will be too long")
    add_arguments(parser)
    return run_command(parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
