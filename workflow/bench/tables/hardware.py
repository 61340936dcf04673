"""Step times and times to target by machine: this one, those of results/reference, and any others given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from workflow.bench.analysis import machines as comparison
from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.machines import Machine, TargetTime
from workflow.bench.analysis.time_to_target import rate_of
from workflow.bench.analysis.wording import estimated, number
from workflow.bench.results.tables import Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("*",)
PROBES = ("step_breakdown", "iteration_time", "step_time")
COMPARES = True

COLUMNS: Final = (
    *("quantity", "workload", "experiment", "varied", "target", "optimizer", "rate", "inverse update period"),
    *("machine", "repeats or runs", "reached", "iterations", "iterations measured on"),
    *("measured", "projected", "data"),
)


def _step_rows(machines: Sequence[Machine]) -> Iterator[dict[str, Any]]:
    """Yield one row per probed step time, those of one setting next to each other."""
    times = [time for machine in machines for time in machine.step_times()]
    # NaN, the period of an optimizer without one, differs from itself.
    settings = [(time.probe, time.workload, time.optimizer, str(time.period)) for time in times]
    for _, time in sorted(zip(settings, times, strict=True), key=lambda pair: settings.index(pair[0])):
        yield {
            "quantity": f"ms a step ({time.probe})",
            "workload": time.workload,
            "optimizer": time.optimizer,
            "inverse update period": time.period,
            "machine": time.machine,
            "repeats or runs": time.took.n,
            "measured": estimated(time.took, time.repeats),
            "data": time.data,
        }


def _target_rows(targets: Sequence[TargetTime]) -> Iterator[dict[str, Any]]:
    """Yield one row per configuration and machine, with a measured or projected time."""
    for time in targets:
        yield {
            "quantity": "seconds to target",
            "workload": time.configuration.workload,
            "experiment": time.configuration.experiment,
            "varied": time.configuration.varied,
            "target": time.configuration.target.describe(),
            "optimizer": time.configuration.optimizer,
            "rate": rate_of(time.configuration),
            "inverse update period": time.configuration.period,
            "machine": time.machine,
            "repeats or runs": time.iterations.runs,
            "reached": time.iterations.reached,
            "iterations": estimated(time.iterations.took, time.iterations.values),
            "iterations measured on": time.iterations_from,
            "projected" if time.projected else "measured": estimated(time.seconds, time.by_run),
            "data": time.data,
        }


def make(results: Results, folder: Path) -> list[Path]:
    """Write step times, then times to target; the machines of one setting stand next to each other."""
    machines, notes = comparison.gather(results)
    targets = comparison.target_times(machines)
    table = pd.DataFrame([*_step_rows(machines), *_target_rows(targets)], columns=list(COLUMNS))
    for column in ("inverse update period", "repeats or runs", "reached"):
        # A number that no integer of 64 bits holds is none: the file was not written by this project.
        numbers = np.trunc(pd.to_numeric(table[column]))
        table[column] = numbers.where(numbers.abs() < 2**63).astype("Int64")
    runs = next((machine.runs for machine in machines if not machine.prefix), pd.DataFrame())
    notes += comparison.describe(machines)
    notes += [
        "Step times are those of one process, means over a cycle of the period; step_breakdown waits after each phase, "
        "iteration_time does not",
        "Projected, not measured: iterations to the target on another machine times the step time probed on this one; "
        "the interval multiplies the bounds of both factors. Two or three repeats or runs stand in parentheses, more "
        "have an interval; of two to five the value is the geometric mean. A run that ended without reaching its "
        "target counts as infinitely long",
    ]
    if measured := [time for time in targets if not time.projected]:
        notes.append(comparison.note_on_times(measured, str))
    if check := comparison.projection_check(machines):
        notes.append(
            "On a machine with both, iterations times the probed step time is "
            f"{number(check[0])} to {number(check[1])} of the seconds that the runs measured themselves"
        )
    title, text = "Step times and times to target by machine", caption(results, runs, notes=notes)
    return write_table(table, folder, "hardware", title=title, caption=text)
