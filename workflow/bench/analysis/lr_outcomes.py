"""How a run at one learning rate ended, in the words of the paper's table of learning rates.

The paper counts epochs to convergence, and marks runs that diverged (D) or ended in a local minimum (*), without saying
what it calls either.  Here:

- **diverged**: the run's status is ``diverged``, its loss was not finite any more, whether or not it had reached its
  target before;
- **converged**: it finished and reached its experiment's target at some evaluation;
- **local-minimum**: it finished with finite values and never reached the target, so also where it stays at chance;
- **out-of-memory**: it could not be trained on this machine.

A run that is skipped, interrupted, failed or missing has no outcome, and neither has one without a target.
"""

from __future__ import annotations

from typing import Final, Literal

import pandas as pd

Outcome = Literal["converged", "local-minimum", "diverged", "out-of-memory"]

_ENDED_BADLY: Final[dict[str, Outcome]] = {"diverged": "diverged", "out_of_memory": "out-of-memory"}


def outcome_of(status: str, steps_to_target: float | None) -> Outcome | None:
    """How a run with a target ended, by its status and the iterations to its target (None or NaN: never reached)."""
    if status in _ENDED_BADLY:
        return _ENDED_BADLY[status]
    if status != "finished":
        return None
    return "local-minimum" if pd.isna(steps_to_target) else "converged"


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that have an outcome, from rows of ``<experiment>.runs.csv``, with the columns ``lr`` and ``outcome``.

    Runs without a target, a learning rate or an outcome are left out; captions name them.
    """
    aimed = runs.dropna(subset=["target"])
    rates = [given.get("lr") for given in aimed["hyperparameters"]]
    ended = [
        outcome_of(str(status), steps) for status, steps in zip(aimed["status"], aimed["steps_to_target"], strict=True)
    ]
    found = aimed.assign(lr=pd.Series(rates, aimed.index, float), outcome=pd.Series(ended, aimed.index, object))
    return found.dropna(subset=["lr", "outcome"])


def converging_rates(ended: pd.DataFrame) -> dict[str, dict[int, int]]:
    """How many learning rates converge, ``{label: {seed: count}}``, from what `outcomes` gives.

    A seed counts only where the label ended at every rate that any label was run at: a rate whose run is not there
    must not look like one that failed.
    """
    every = set(ended["lr"])
    counts: dict[str, dict[int, int]] = {}
    for (label, seed), rows in ended.groupby(["optimizer", "seed"], sort=False):
        if set(rows["lr"]) == every:
            counts.setdefault(str(label), {})[int(str(seed))] = int((rows["outcome"] == "converged").sum())
    return counts
