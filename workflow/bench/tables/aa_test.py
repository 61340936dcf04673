"""The A/A test: how often two measurements of the same steps, or two halves of the same runs, seem to differ."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from workflow.bench.analysis.aa_steps import DRAWS, steps_aa_test
from workflow.bench.analysis.captions import footer
from workflow.bench.analysis.step_times import AA_BLOCKS, AATest, StepTimes, most_exclusions
from workflow.bench.analysis.target_sweep import NoSweepError, target_sweep
from workflow.bench.results.sources import from_rows
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("*",)
PROBES = ("step_time",)

COLUMNS: Final = (
    *("experiment", "contender", "intervals", "excluding_1", "rate", "passes"),
    *("rounds", "rounds left out", "steps_intervals", "steps_excluding_1", "steps_rate", "data"),
)


def _rate(excluding: int, intervals: int) -> float | None:
    return round(excluding / intervals, 3) if intervals else None


def _of_steps(results: Results, test: AATest) -> tuple[int | None, int | None, float | None]:
    """Return the intervals of the A/A test of steps, those that exclude 1, and their share; None without targets."""
    runs, metrics = results.runs(test.experiment), results.metrics(test.experiment)
    # A workload of the experiment on which the optimizer was timed: one that it trained on.
    runs = runs[(runs["workload"] == test.workload) & (runs["optimizer"] == test.optimizer)]
    try:
        found = steps_aa_test(target_sweep(runs, metrics, test.optimizer), test.optimizer)
    except NoSweepError:
        return None, None, None
    return found.intervals, found.excluding_1, _rate(found.excluding_1, found.intervals)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per workload of step_time, named after the first experiment that trains it."""
    if not (results.root / "probes" / "step_time.csv").exists():
        raise NoDataError(f"step_time.csv is missing in {results.root / 'probes'}: run the probe step_time first.")
    times = StepTimes(results.probe("step_time"))
    rows = [
        (
            test.experiment,
            f"{test.optimizer}_again",
            test.intervals,
            test.excluding_1,
            _rate(test.excluding_1, test.intervals),
            times.is_quiet,
            test.rounds,
            test.left_out,
            *_of_steps(results, test),
            from_rows("probes/step_time.csv", experiment=test.experiment, optimizer=test.optimizer),
        )
        for test in times.aa_tests
    ]
    intervals, excluding = times.exclusions
    if (times.rows["busy_share"].isna() & times.rows["round"].notna()).any():
        load = "The load of other processes is unknown on this system, so that no round is left out"
    else:
        load = "Rounds in which other processes took a tenth of the cores or more are left out, and counted"
    notes = [
        f"{excluding} of {intervals} intervals exclude 1; at most {most_exclusions(intervals)} may, the 99 % quantile "
        "of a binomial with a rate of 5 %. Passes holds for all rows together: with more, no claim on times is tested",
        f"An interval is the 95 % t interval of the ratio of two step times over {AA_BLOCKS} successive rounds, "
        "in which every optimizer of the workload has its turn in one process",
        load,
        "Steps: the optimizer's runs to what it reaches itself after 90 % of its steps, divided at random in halves "
        f"that are compared as two labels are, {DRAWS} times; tuning studies stay together, of which it takes four. "
        "All divisions share their runs, so that the rate is no count of independent trials",
    ]
    title = "The same optimizer under two names: intervals that exclude a ratio of 1"
    text = footer(results, times.rows, notes=notes)
    return write_table(pd.DataFrame(rows, columns=list(COLUMNS)), folder, "aa_test", title=title, caption=text)
