"""Scores of fine-tuning runs, by seed: what tables show and claims compare.

In the experiments of fine-tuning the method is the same for all; a label is the optimizer of the pre-training whose
checkpoint a run starts from.  Pure functions on the tidy tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from workflow.bench.analysis.common_steps import by_seed
from workflow.bench.results.columns import ENDED


def last_values(metrics: pd.DataFrame, metric: str) -> pd.Series:
    """Each run's last validation value of a metric, by run id, from rows of ``<experiment>.csv``.

    A run that broke down, or whose value is not defined, counts as minus infinity, so that no mean is the survivors'.
    Runs that have not come to an end are left out.
    """
    ended = metrics[metrics["status"].isin(ENDED)]
    wanted = ended[(ended["split"] == "validation") & (ended["metric"] == metric)].sort_values("step", kind="stable")
    last = wanted.drop_duplicates("run", keep="last").set_index("run")["value"].astype(float)
    broken = ended.loc[ended["status"] != "finished", "run"].unique()
    return last.drop(broken, errors="ignore").reindex(ended["run"].unique()).fillna(-math.inf)


def scores(runs: pd.DataFrame, last: pd.Series) -> Mapping[int, float]:
    """``{seed: value}`` of one label's runs that have a last value (`last_values`)."""
    found = runs[runs["run"].isin(last.index)]
    return by_seed(found.assign(value=found["run"].map(last)))


def averages(by_task: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over tasks by seed, of the seeds that every task has."""
    seeds = set(by_task[0]).intersection(*by_task[1:]) if by_task else set()
    return {seed: sum(task[seed] for task in by_task) / len(by_task) for seed in sorted(seeds)}
