"""Every optimizer of the field against its base: steps and time to eight targets, and where it ends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import Estimate, estimate
from workflow.bench.analysis.field import Contest, contests
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import SweptRatio
from workflow.bench.analysis.wording import number
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.sources import from_runs
from workflow.bench.results.tables import Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = FIELD
PROBES = ("step_time",)

DIGITS: Final = 4
_NOTES: Final = (
    "Base is the optimizer that a method wraps; methods of their own are compared to the base that most methods of the "
    "experiment wrap. Reached: runs that cross the experiment's target. Steps and time are geometric means of the "
    "optimizer's over its base's, below 1 in its favor, over eight targets from 30 % to 100 % of what the experiment's "
    "base gains, paired by seed; a run that misses a target enters with its budget, which moves the ratio toward 1",
    "End is the last value of the target's metric, and end - base its difference, paired by seed; a run that did not "
    "finish is left out of the difference",
    "Time is steps times the time of a step, which the probe step_time measures in turns. That of methods that "
    "simulate a device is no evidence and left out",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row for each label of an experiment.

    Raises:
        NoDataError: no experiment of the field has runs.
    """
    found = contests(results)
    times = StepTimes(results.probe("step_time"))
    rows = [_row(contest, label, times) for contest in found for label in contest.labels]
    runs = pd.concat([contest.runs for contest in found], ignore_index=True)
    title, text = "Every optimizer against its base", caption(results, runs, notes=_NOTES)
    return write_table(pd.DataFrame(rows), folder, "field_results", title=title, caption=text)


def _row(contest: Contest, label: str, times: StepTimes) -> dict[str, Any]:
    reached, runs = contest.reached(label)
    ends = [value for value in contest.last(label).values() if math.isfinite(value)]
    base = contest.base_of(label)
    time = "" if base == label else contest.time(label, times)
    return {
        "experiment": contest.experiment,
        "optimizer": label,
        "base": base,
        "target": contest.runs["target"].iloc[0].describe(),
        "reached": reached,
        "runs": runs,
        **_parts("end", estimate(ends) if ends else None),
        **_parts("end - base", contest.loss_difference(label) if base != label else None),
        **_parts("steps / base", contest.steps(label).estimate if base != label else None),
        **_parts("time / base", time.estimate if isinstance(time, SweptRatio) else None),
        "no time": time if isinstance(time, str) else "",
        "data": from_runs(
            f"{contest.experiment}.runs.csv", contest.runs[contest.runs["optimizer"].isin([label, base])]
        ),
    }


def _parts(name: str, found: Estimate | None) -> dict[str, str]:
    """Return an estimate's value and bounds as columns; empty without one."""
    values = (found.value, found.low, found.high) if found else (math.nan,) * 3
    return dict(zip((name, f"{name}, low", f"{name}, high"), (number(v, DIGITS) for v in values), strict=True))
