"""Runs of several lengths, each with its own decay: the shortest length at which a label reaches what its base reaches.

The paper trains each optimizer for its own number of steps. A run cut from a longer schedule understates a faster
method, because its rate has not decayed yet. Over lengths in place of steps, the rest is a sweep of one target.
"""

from __future__ import annotations

import math

import pandas as pd

from workflow.bench.analysis.target_sweep import FINAL, Evaluations, NoSweepError, TargetSweep, sweep_of_evaluations
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import ENDED


def horizon_sweep(runs: pd.DataFrame, metrics: pd.DataFrame, goal: Target, base: str, timed_as: str) -> TargetSweep:
    """Return the sweep whose steps are the lengths of runs, and whose target is the base's final quality.

    A curve over lengths is smoothed and interpolated as one over steps is. A run that did not finish counts as the
    worst final value of any run, or as the trivial predictor if that is worse.

    Args:
        runs: rows of ``<experiment>.runs.csv``, with several lengths for each label and seed.
        metrics: rows of ``<experiment>.csv``.
        goal: the split, metric, direction and trivial predictor of the target.
        base: the label that sets the target: what its runs of `FINAL` of its longest length end at.
        timed_as: the experiment that has the times of the labels' steps.

    Raises:
        NoSweepError: there are no lengths to compare, or the target tells nothing.
    """
    ended = runs[runs["status"].isin(ENDED)]
    if ended.duplicated(["optimizer", "seed", "steps"]).any():
        raise NoSweepError("has several runs of a label, seed and length")
    finals = _finals(ended, metrics, goal)
    evaluations: dict[str, Evaluations] = {}
    longest = []
    for (label, seed), rows in ended.groupby(["optimizer", "seed"]):
        of_seed = rows.sort_values("steps").to_dict("records")
        name = f"{label} {seed}"
        about = {"split": goal.split, "metric": goal.metric, "train_seconds": 0.0}
        evaluations[name] = [about | {"step": row["steps"], "value": finals[row["run"]]} for row in of_seed]
        # Divergence is in the values by now.
        longest.append(of_seed[-1] | {"run": name, "status": "finished", "experiment": timed_as})
    courses = pd.DataFrame(longest, columns=list(runs.columns))
    sweep = sweep_of_evaluations(goal, courses, evaluations, base, (FINAL,))
    for label, course in sweep.courses.items():
        of_label = ended[ended["optimizer"] == label]
        switches = [
            _switch(of_label[of_label["seed"] == seed], course.crossings[int(seed)][0]) for seed in course.runs["seed"]
        ]
        course.runs["switch_step"] = switches
    return sweep


def _finals(ended: pd.DataFrame, metrics: pd.DataFrame, goal: Target) -> dict[str, float]:
    """Return the final value of each run, the worst of all for one that did not finish."""
    chosen = metrics[(metrics["split"] == goal.split) & (metrics["metric"] == goal.metric)]
    last = chosen.sort_values("step").groupby("run")["value"].last().astype(float).to_dict()
    finished = set(ended.loc[ended["status"] == "finished", "run"])
    values = {run: value for run, value in last.items() if run in finished and math.isfinite(value)}
    bounds = [*values.values(), *([] if goal.trivial is None else [goal.trivial])]
    if not bounds:
        raise NoSweepError(f"has no finished run with a {goal.split} {goal.metric}")
    worst = max(bounds) if goal.direction == "below" else min(bounds)
    return {str(run): values.get(run, worst) for run in ended["run"]}


def _switch(of_seed: pd.DataFrame, length: float) -> float:
    """Return the step of the switch in a run of some length; NaN if it does not switch.

    It is at the same share of the length as in the shortest run that is at least as long.
    """
    rows = of_seed.sort_values("steps").to_dict("records")
    arriving = next((row for row in rows if row["steps"] >= length), rows[-1])
    share = min(length, arriving["steps"]) / arriving["steps"]
    return math.nan if pd.isna(arriving["switch_step"]) else float(arriving["switch_step"]) * share
