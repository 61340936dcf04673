"""A metric over the steps of training, summarized over seeds."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import BOOTSTRAP_MINIMUM, estimate
from workflow.bench.results.columns import BROKEN_DOWN


def curve(metrics: pd.DataFrame, *, worst: float = math.inf) -> pd.DataFrame:
    """One label's metric over its steps, summarised over seeds.

    ``metrics`` has the columns ``seed, status, step, value, train_seconds``; a diverged run counts as ``worst``
    (infinity, or minus infinity for a metric that is to rise) after its last evaluation, so that the curve never
    becomes the survivors' average.  Returns ``step, train_seconds (mean), value, low, high, n``, for the
    steps at which every seed has a value; with fewer than six seeds the curve ends where the first one diverged.
    """
    values = metrics.pivot_table(index="step", columns="seed", values="value", aggfunc="last", dropna=False)
    seconds = metrics.groupby("step")["train_seconds"].mean()
    broken = metrics.loc[metrics["status"].isin(BROKEN_DOWN), "seed"].unique()
    values[broken] = values[broken].fillna(worst)
    rows = []
    for step, at_step in zip(values.index, values.to_numpy(float), strict=True):
        if np.isnan(at_step).any():
            continue
        if np.isinf(at_step).any() and len(at_step) < BOOTSTRAP_MINIMUM:
            break
        summary = estimate(at_step)
        rows.append((step, seconds[step], summary.value, summary.low, summary.high, summary.n))
    return pd.DataFrame(rows, columns=["step", "train_seconds", "value", "low", "high", "n"], dtype=float)
