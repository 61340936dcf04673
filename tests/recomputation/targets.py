"""When runs reach what their base reaches after a share of its steps, and ratios of their steps and seconds."""

from __future__ import annotations

from math import gcd, inf, lcm, nan
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import isotonic_regression

from tests.recomputation.reading import Experiment, true
from tests.recomputation.statistics import Found, crossed, mean

FINAL = 0.9
ROUNDING = 1e-12

Key = tuple[str, str, str, float]
"""What a step time belongs to: experiment, workload, label, period (0 without one)."""


class Goal(NamedTuple):
    split: str
    metric: str
    rising: bool
    trivial: float | None

    @classmethod
    def of(cls, target: dict[str, Any]) -> Goal:
        return cls(target["split"], target["metric"], "above" in target, target.get("trivial"))


def nearest(values: np.ndarray, rising: bool) -> np.ndarray:
    """The monotone sequence nearest to some values in least squares."""
    return isotonic_regression(values, increasing=rising).x if len(values) else values


def crossing(steps: np.ndarray, values: np.ndarray, limit: float, rising: bool) -> float:
    """The step at which the monotone curve reaches a limit, on a straight line between evaluations; inf if never."""
    sound = np.logical_and.accumulate(np.isfinite(values))
    steps, values = steps[sound], values[sound]
    sign = 1.0 if rising else -1.0
    curve, goal = sign * nearest(values, rising), sign * limit
    at = int(np.searchsorted(curve, goal))
    if at == len(curve):
        return inf
    if at == 0:
        return float(steps[0])
    return float(np.interp(goal, curve[at - 1 : at + 1], steps[at - 1 : at + 1]))


def base_limit(curves: list[tuple[np.ndarray, np.ndarray]], goal: Goal, share: float = FINAL) -> float | None:
    """What the base reaches after a share of its steps, the mean over its runs; None if that tells nothing."""
    sound = [(steps, nearest(values, goal.rising)) for steps, values in curves if len(values)]
    sound = [curve for curve in sound if np.isfinite(curve[1]).all()]
    if not sound:
        return None
    end = min(steps[-1] for steps, _ in sound)
    grid = np.unique(np.concatenate([steps[steps <= end] for steps, _ in sound]))
    center = np.mean([np.interp(grid, *curve) for curve in sound], axis=0)
    limit = float(np.interp(share * end, grid, center))
    limit += (-1 if goal.rising else 1) * ROUNDING * abs(limit)
    if goal.trivial is not None and not (limit > goal.trivial if goal.rising else limit < goal.trivial):
        return None
    evaluated = grid[grid > 0]
    # The target has to be crossed after the third evaluation, so that there has to be a fourth.
    if len(evaluated) < 4 or crossing(grid, center, limit, goal.rising) <= evaluated[2] * (1 + 1e-9):
        return None
    return limit


def arrivals(experiment: Experiment, base: str) -> pd.DataFrame | None:
    """Return when each run reaches the base's final quality; None if no target can be set.

    Columns ``reach`` (step, inf if never), ``steps`` (the budget), ``switch`` (inf if never), and those of the run.
    """
    if experiment.goal is None or experiment.ended.duplicated(["optimizer", "seed"]).any():
        return None
    goal, runs = Goal.of(experiment.goal), experiment.ended
    curves = {
        run: (rows["step"].to_numpy(float), rows["value"].to_numpy(float))
        for run, rows in experiment.curves(goal.split, goal.metric).items()
    }
    nothing = (np.empty(0), np.empty(0))
    of_base = runs[(runs["optimizer"] == base) & (runs["status"] == "finished")]
    limit = base_limit([curves.get(run, nothing) for run in of_base["run"]], goal)
    if limit is None:
        return None
    reach = [
        inf if status == "diverged" else crossing(*curves.get(run, nothing), limit, goal.rising)
        for run, status in zip(runs["run"], runs["status"], strict=True)
    ]
    return runs.assign(reach=reach, switch=runs["switch_step"].astype(float).fillna(inf))


def own_lengths(experiment: Experiment, target: dict[str, Any], base: str, timed_as: str) -> pd.DataFrame | None:
    """Return, as `arrivals` does, the shortest length of each label and seed that reaches what the base's runs reach.

    experiment: runs of several lengths; timed_as: the experiment whose step times are theirs.
    """
    goal, runs = Goal.of(target), experiment.ended
    if runs.duplicated(["optimizer", "seed", "steps"]).any():
        return None
    last = {
        run: float(rows.sort_values("step")["value"].iloc[-1])
        for run, rows in experiment.curves(goal.split, goal.metric).items()
    }
    ends = runs["run"].map(last).astype(float).where(runs["status"] == "finished")
    ends = ends.where(np.isfinite(ends))
    known = [*ends.dropna(), *([] if goal.trivial is None else [goal.trivial])]
    if ends.isna().all() and not known:
        return None
    runs = runs.assign(end=ends.fillna(min(known) if goal.rising else max(known))).sort_values("steps")
    curves = {
        key: (rows["steps"].to_numpy(float), rows["end"].to_numpy(float))
        for key, rows in runs.groupby(["optimizer", "seed"])
    }
    limit = base_limit([curve for (label, _), curve in curves.items() if label == base], goal)
    if limit is None:
        return None
    found = []
    for key, rows in runs.groupby(["optimizer", "seed"]):
        reach = crossing(*curves[key], limit, goal.rising)
        arriving = rows[rows["steps"] >= reach]
        near = arriving.iloc[0] if len(arriving) else rows.iloc[-1]
        switch = inf if pd.isna(near["switch_step"]) else near["switch_step"] * min(1.0, reach / near["steps"])
        longest = rows.iloc[-1].to_dict()
        found.append(longest | {"reach": reach, "switch": switch, "status": "finished", "experiment": timed_as})
    return pd.DataFrame(found)


class Clock:
    """The step times of the probe ``step_time``."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.is_empty = rows.empty
        if self.is_empty:
            return
        self.rows = rows.assign(
            period=rows["inverse_update_period"].astype(float).fillna(0.0),
            again=true(rows["again"]),
            busy=true(rows["left_out"]),
        )
        self.is_quiet = self._is_quiet()

    def _is_quiet(self) -> bool:
        """Whether no more 95 % intervals between two copies of one optimizer exclude 1 than on a quiet machine."""
        timed = self.rows.dropna(subset="step_ms")
        excluding = []
        for _, rows in timed.groupby(["experiment", "workload", "optimizer"]):
            runs = rows.loc[rows["again"], "run"].unique()
            first, second = (rows[(rows["again"] == again) & rows["run"].isin(runs)] for again in (False, True))
            if first.empty or second.empty:
                continue
            both = pd.concat([self._by_round(first), self._by_round(second)], axis=1, join="inner").sort_index()
            first_ms, second_ms = by_block(both, 1).T
            logs = np.log(first_ms / second_ms)
            triples = logs[: len(logs) // 3 * 3].reshape(-1, 3)
            t = triples.mean(axis=1) / stats.sem(triples, axis=1)
            excluding += list(abs(t) > stats.t.ppf(0.975, 2))
        return sum(excluding) <= stats.binom.ppf(0.99, len(excluding), 0.05)

    @staticmethod
    def _by_round(rows: pd.DataFrame) -> pd.Series:
        """The mean time of a step by idle round, in which each kind of step has the weight of its runs."""
        idle = rows[~rows["busy"]]
        return (idle["step_ms"] * idle["runs"]).groupby(idle["round"]).sum() / idle.groupby("round")["runs"].sum()

    def _of(self, key: Key) -> pd.DataFrame:
        columns = ["experiment", "workload", "optimizer", "period"]
        same = (self.rows[columns] == pd.Series(key, columns)).all(axis=1)
        return self.rows[same & ~self.rows["again"]].dropna(subset="step_ms")

    def blocks(self, keys: list[Key]) -> dict[Key, np.ndarray] | None:
        """The time of a step by block of whole cycles that are idle for all; None if they cannot be compared."""
        if self.is_empty:
            return None
        rows = {key: self._of(key) for key in keys}
        if any(of_key.empty for of_key in rows.values()):
            return None
        turns = pd.concat(rows.values())[["cycle", "steps"]].drop_duplicates().astype(int)
        size = lcm(*(cycle // gcd(cycle, steps) for cycle, steps in turns.itertuples(index=False)))
        rounds = pd.concat(
            [self._by_round(of_key) for of_key in rows.values()], axis=1, join="inner", keys=range(len(rows))
        )
        blocks = by_block(rounds, size)
        if len(blocks) < 3 or not self.is_quiet:
            return None
        return dict(zip(rows, blocks.T, strict=True))


def by_block(rounds: pd.DataFrame, size: int) -> np.ndarray:
    """The mean time of a step in each ``size`` successive rounds of which none is missing, ``[blocks, columns]``."""
    whole = rounds.groupby(rounds.index // size).filter(lambda block: len(block) == size)
    return whole.groupby(whole.index // size).mean().to_numpy(float)


def keys_of(runs: pd.DataFrame) -> list[Key]:
    """What times one label's steps: itself, and its base after a switch."""
    first = runs.iloc[0]
    given, where = first["hyperparameters"], (first["experiment"], first["workload"])
    period = given.get("inverse_update_period") or given.get("update_period") or 0.0
    base: list[Key] = [(*where, given["base"], 0.0)] if np.isfinite(runs["switch"]).any() else []
    return [(*where, first["optimizer"], float(period)), *base]


class Compared(NamedTuple):
    """A ratio of two labels: ``found`` is None if no pair of runs reached the target."""

    found: Found | None
    unreached: float = nan
    """The share of the pairs in which one of the two did not."""


def compared(table: pd.DataFrame, above: str, below: str, level: float, clock: Clock | None) -> Compared | None:
    """Compare two labels' steps or, with a clock, seconds, to a target; None if their steps cannot be timed."""
    sides = [table[table["optimizer"] == label].set_index("seed") for label in (above, below)]
    keys = [keys_of(side) for side in sides]
    timed = list(dict.fromkeys(key for of_side in keys for key in of_side))
    ms = clock.blocks(timed) if clock else {key: np.ones(1) for key in timed}
    if ms is None:
        return None
    seeds = sides[0].index.intersection(sides[1].index).sort_values()
    a, b = (side.loc[seeds] for side in sides)

    def cost(side: pd.DataFrame, steps: pd.Series, of_side: list[Key]) -> np.ndarray:
        together = np.minimum(steps, side["switch"]).to_numpy()[:, None]
        return together * ms[of_side[0]] + (steps.to_numpy()[:, None] - together) * ms[of_side[-1]]

    budgets = [cost(side, side["steps"].astype(float), of_side) for side, of_side in zip((a, b), keys, strict=True)]
    reached = [np.isfinite(side["reach"]).to_numpy() for side in (a, b)]
    took = []
    for side, of_side, did, budget in zip((a, b), keys, reached, budgets, strict=True):
        seconds = np.where(did[:, None], cost(side, side["reach"].where(did, 1.0), of_side), budget)
        diverged = (side["status"] == "diverged").to_numpy()[:, None]
        took.append(np.where(diverged, np.fmax(*budgets), seconds))
    counts = (reached[0] | reached[1]) & (a["reach"] > 0).to_numpy() & (b["reach"] > 0).to_numpy()
    if not counts.any():
        return Compared(None)
    logs = np.log(took[0][counts] / took[1][counts])
    # One that missed the target would have taken longer: its ratio is a bound, and no bound beyond 1 is known.
    logs = np.where(reached[0][counts][:, None], logs, logs.clip(min=0))
    logs = np.where(reached[1][counts][:, None], logs, logs.clip(max=0))
    unreached = (reached[0] != reached[1])[counts].mean()
    studies = b["study"].astype(float).fillna(a["study"].astype(float))[counts]
    units = pd.DataFrame(logs, index=studies.to_numpy())
    if studies.nunique() > 1:
        units = units.groupby(level=0).mean()
    if units.shape[1] == 1:
        return Compared(Found(*np.exp(mean(units[0].to_numpy(), level))), unreached)
    return Compared(crossed(units.to_numpy(), level), unreached)


def is_inert(experiment: Experiment, label: str) -> bool:
    """Whether the median cosine of a label's updates and gradients, over its finished runs, is .999 or more."""
    runs = experiment.runs[(experiment.runs["optimizer"] == label) & (experiment.runs["status"] == "finished")]
    rows = experiment.evaluations
    cosines = rows[(rows["split"] == "preconditioner") & (rows["metric"] == "cosine") & rows["run"].isin(runs["run"])]
    return bool(cosines["value"].astype(float).median() >= 0.999)
