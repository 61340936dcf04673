"""Scores of fine-tuning runs by seed.

All fine-tuning runs use the same method; a label names the optimizer of the pre-training that a run starts from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from workflow.bench.analysis.curves import by_seed
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import Results

PRETRAININGS: Final = ("bert_pretraining", "bert_pretraining_small")
"""The experiments that fine-tuning may start from; the second stands in for the first at some tiers."""


def last_values(metrics: pd.DataFrame, metric: str) -> pd.Series:
    """Return each run's last validation value of a metric, by run id, from rows of ``<experiment>.csv``.

    A run that broke down, or has no such value, counts as minus infinity, so that no mean is one of the surviving runs
    only. Runs that have not ended are left out.
    """
    ended = metrics[metrics["status"].isin(ENDED)]
    values = ended[(ended["split"] == "validation") & (ended["metric"] == metric)].sort_values("step", kind="stable")
    last = values.drop_duplicates("run", keep="last").set_index("run")["value"].astype(float)
    # Without its broken runs a label would be averaged over the runs that were easy.
    broken = ended.loc[ended["status"] != "finished", "run"].unique()
    return last.drop(broken, errors="ignore").reindex(ended["run"].unique()).fillna(-math.inf)


def scores(runs: pd.DataFrame, last: pd.Series) -> Mapping[int, float]:
    """Return ``{seed: value}`` of one label's runs that have a last value (`last_values`)."""
    scored = runs[runs["run"].isin(last.index)]
    return by_seed(scored.assign(value=scored["run"].map(last)))


def averages(by_task: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean over tasks by seed, for the seeds that every task has."""
    seeds = set(by_task[0]).intersection(*by_task[1:]) if by_task else set()
    return {seed: sum(task[seed] for task in by_task) / len(by_task) for seed in sorted(seeds)}


def pretraining_experiment(results: Results, finetuned: pd.DataFrame) -> str:
    """Return the experiment that fine-tuning runs start from; the first of `PRETRAININGS` if it has no runs."""
    # Small tiers pre-train a smaller model for the fine-tuning: the checkpoints' ids tell which.
    starts = set(finetuned["start_from"].dropna())
    found = (name for name in PRETRAININGS if results.runs(name)["run"].isin(starts).any())
    return next(found, PRETRAININGS[0])
