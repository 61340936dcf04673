"""Outcomes of runs at different learning rates, in the terms of the paper's table of learning rates.

The paper counts epochs to convergence and marks runs that diverged (D) or ended in a local minimum (*), without
defining either. This project's definitions:

- **diverged**: the run has the status ``diverged``, because its loss became infinite or NaN, even if it had reached its
  target before;
- **converged**: the run finished and reached its experiment's target at some evaluation;
- **local-minimum**: the run finished with finite values but never reached the target, for example at chance level;
- **out-of-memory**: the run did not fit this machine's memory.

Runs that are skipped, interrupted, failed or missing have no outcome, and neither have runs without a target.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import pandas as pd

Outcome = Literal["converged", "local-minimum", "diverged", "out-of-memory"]

_ENDED_BADLY: Final[dict[str, Outcome]] = {"diverged": "diverged", "out_of_memory": "out-of-memory"}


def outcome_of(status: str, steps_to_target: float | None) -> Outcome | None:
    """Return the outcome of a run with a target; ``steps_to_target`` is None or NaN if it was not reached."""
    # A run that passed its target and then diverged did not converge.
    if status in _ENDED_BADLY:
        return _ENDED_BADLY[status]
    if status != "finished":
        return None
    return "local-minimum" if pd.isna(steps_to_target) else "converged"


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``<experiment>.runs.csv`` that have an outcome, with the columns ``lr`` and ``outcome``.

    Runs without a target, a learning rate or an outcome are left out; captions name them.
    """
    aimed = runs.dropna(subset=["target"])
    rates = [hyperparameters.get("lr") for hyperparameters in aimed["hyperparameters"]]
    ended = [
        outcome_of(str(status), steps) for status, steps in zip(aimed["status"], aimed["steps_to_target"], strict=True)
    ]
    with_outcomes = aimed.assign(lr=pd.Series(rates, aimed.index, float), outcome=pd.Series(ended, aimed.index, object))
    return with_outcomes.dropna(subset=["lr", "outcome"])


def _whole_grids(ended: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield each label and seed whose runs ended at every rate of any label, with its rows of `outcomes`.

    A rate without a run must not look like one that did not converge.
    """
    all_rates = set(ended["lr"])
    for (label, seed), rows in ended.groupby(["optimizer", "seed"], sort=False):
        if set(rows["lr"]) == all_rates:
            yield str(label), int(str(seed)), rows


def converging_rates(ended: pd.DataFrame) -> dict[str, dict[int, int]]:
    """Return the number of learning rates that converge, ``{label: {seed: count}}``, from the rows of `outcomes`.

    A seed counts only if the label's runs ended at every rate of any label.
    """
    counts: dict[str, dict[int, int]] = {}
    for label, seed, rows in _whole_grids(ended):
        counts.setdefault(label, {})[seed] = int((rows["outcome"] == "converged").sum())
    return counts


def mean_best(ended: pd.DataFrame, metrics: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Return the mean over learning rates of the best value of the target's metric, ``{label: {seed: mean}}``.

    A run that broke down counts as the worst first evaluation of all runs, which no other run can be below. Seeds are
    those of `converging_rates`.

    Args:
        ended: rows of `outcomes`, whose runs have one target's metric.
        metrics: rows of ``<experiment>.csv``.
    """
    target = ended["target"].iloc[0]
    chosen = metrics[(metrics["split"] == target.split) & (metrics["metric"] == target.metric)]
    by_run = chosen[chosen["run"].isin(ended["run"])].dropna(subset="value").sort_values("step").groupby("run")["value"]
    best, worst = by_run.max(), by_run.first().min()
    if target.direction != "above":
        best, worst = by_run.min(), by_run.first().max()
    is_broken = ended["outcome"].isin(set(_ENDED_BADLY.values()))
    # Leaving out the runs that broke down would favor the label whose runs did.
    values = ended["run"].map(best).astype(float).mask(is_broken, worst)
    means: dict[str, dict[int, float]] = {}
    for label, seed, rows in _whole_grids(ended):
        means.setdefault(label, {})[seed] = float(values[rows.index].mean())
    return means
