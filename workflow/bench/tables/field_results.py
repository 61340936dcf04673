"""Every optimizer of the field against its base: steps and time to its targets, and where it ends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.field import CONTROLS, Contest, contests
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
LAST: Final = 3
"""The last targets, whose mean stands beside that of all."""
_NOTES: Final = (
    "Base is the optimizer that a method wraps; methods of their own are compared to the base that most methods of the "
    "experiment wrap. Reached: runs that cross the experiment's target. Steps and time are geometric means of the "
    "optimizer's over its base's, below 1 in its favor, over the targets that the experiment's base reaches after 30, "
    "40, ... 100 % of its steps, and over the last three of them, paired by seed; targets that are no better than the "
    "trivial predictor, or that the base crosses by its third evaluation, are left out. A run that misses a target "
    "enters with its budget, which moves the ratio toward 1; one that diverged with the longer budget of the two",
    "End is the last value of the target's metric, and end - base its difference, paired by seed; a run that did not "
    "finish counts as infinitely bad in both",
    "A control is a label of the same rule that was tuned apart. Kaisa_again differs from kaisa by the chance of "
    "tuning alone, so that the interval of steps / control should contain 1; dp_kfac has factors of another size",
    "Time is steps times the time of a step, which the probe step_time measures in turns. That of methods that "
    "simulate a device is no evidence and left out",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row for each label of an experiment."""
    found = contests(results)
    times = StepTimes(results.probe("step_time"))
    rows = [_row(contest, label, times) for contest in found for label in contest.labels]
    runs = pd.concat([contest.runs for contest in found], ignore_index=True)
    title, text = "Every optimizer against its base", caption(results, runs, notes=_NOTES)
    return write_table(pd.DataFrame(rows), folder, "field_results", title=title, caption=text)


def _row(contest: Contest, label: str, times: StepTimes) -> dict[str, Any]:
    reached, runs = contest.reached(label)
    base = contest.base_of(label)
    time = "" if base == label else contest.time(label, times)
    last = "" if base == label else contest.time(label, times, LAST)
    controlled = contest.over_control(label)
    return {
        "experiment": contest.experiment,
        "optimizer": label,
        "base": base,
        "target": contest.runs["target"].iloc[0].describe(),
        "reached": reached,
        "runs": runs,
        **_parts("end", contest.end(label)),
        **_parts("end - base", contest.loss_difference(label) if base != label else None),
        **_parts("steps / base", contest.steps(label).estimate if base != label else None),
        **_parts("time / base", time.estimate if isinstance(time, SweptRatio) else None),
        **_parts("steps / base, last three", contest.steps(label, LAST).estimate if base != label else None),
        **_parts("time / base, last three", last.estimate if isinstance(last, SweptRatio) else None),
        "control": CONTROLS[label] if controlled else "",
        **_parts("steps / control", controlled),
        "no time": time if isinstance(time, str) else "",
        "data": from_runs(
            f"{contest.experiment}.runs.csv",
            contest.runs[contest.runs["optimizer"].isin([label, base, *([CONTROLS[label]] if controlled else [])])],
        ),
    }


def _parts(name: str, found: Estimate | None) -> dict[str, str]:
    """Return an estimate's value and bounds as columns, ``inf`` of runs that diverged; empty without one."""
    values = (found.value, found.low, found.high) if found else (math.nan,) * 3
    texts = (f"{value:g}" if math.isinf(value) else number(value, DIGITS) for value in values)
    return dict(zip((name, f"{name}, low", f"{name}, high"), texts, strict=True))
