"""The claim about the loss at long inverse update periods: C09."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from workflow.bench.analysis.curves import fall_of
from workflow.bench.analysis.estimates import paired_difference
from workflow.bench.analysis.wording import capital, integer_ranges
from workflow.bench.claims.decision import (
    Decision,
    Part,
    decided,
    not_tested,
    part_verdicts,
    statistics_used,
)
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.columns import BROKEN_DOWN, ENDED
from workflow.bench.results.sources import from_runs

EXPERIMENT: Final = "autoencoder_inversion"


def _mean_losses(rows: pd.DataFrame) -> dict[int, float]:
    """Return the mean loss over a training by seed, infinite for a run that broke down.

    It is the area under the loss curve, by the trapezoidal rule, over its length: at equal iterations, and less noisy
    than the last value.
    """
    means: dict[int, float] = {}
    for seed, run in rows.groupby("seed"):
        curve = run.dropna(subset=["value"]).sort_values("step")
        if run["status"].isin(BROKEN_DOWN).any() or len(curve) < 2:
            means[int(str(seed))] = np.inf
            continue
        steps, values = curve["step"].to_numpy(float), curve["value"].to_numpy(float)
        means[int(str(seed))] = float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))
    return means


def _parts(label: str, rows: pd.DataFrame, condition: Condition) -> list[Part]:
    """Return an optimizer's parts: every period against the next shorter one, paired by seed."""
    by_period = {float(str(period)): _mean_losses(at) for period, at in rows.groupby("inverse_update_period")}
    fall, parts = fall_of(rows), []
    for shorter, longer in pairwise(sorted(by_period)):
        name = f"{label}, period {longer:g} - {shorter:g}"
        broken = sum(math.isinf(value) for period in (shorter, longer) for value in by_period[period].values())
        difference = paired_difference(by_period[longer], by_period[shorter])
        if broken:  # without those runs, the period at which they broke down would look better than it is
            parts.append(Part(name, "inconclusive", f"{broken} runs broke down"))
        elif difference is not None:
            parts.append(Part.judged(name, difference, condition, fall))
    return parts


def decide_period_loss(metrics: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C09: the mean validation loss over training at a period minus that at the next shorter one.

    The paper shows the autoencoder. The claim needs every optimizer and every pair of neighbouring periods.

    Args:
        metrics: rows of ``autoencoder_inversion.csv``.
        conditions: the claim's thresholds.
    """
    is_validation_loss = (metrics["split"] == "validation") & (metrics["metric"] == "loss")
    # A run that broke down before its first evaluation has one row without a metric; it must count as broken.
    losses = metrics[(is_validation_loss | metrics["split"].isna()) & metrics["status"].isin(ENDED)]
    parts = [
        part
        for label, rows in losses.groupby("optimizer")
        for part in _parts(str(label), rows[rows["inverse_update_period"].notna()], conditions[0])
    ]
    if not parts:
        return not_tested(f"No finished pair of periods in {EXPERIMENT}.")
    estimates = [part.estimate for part in parts if part.estimate is not None]
    return decided(
        parts,
        f"Mean validation loss over training at a period minus that at the next shorter one: {part_verdicts(parts)}.",
        f"{capital(statistics_used(estimates))}." if estimates else "",
        seeds=f"seeds {integer_ranges(losses['seed'])}",
        data=from_runs(f"{EXPERIMENT}.csv", losses),
    )
