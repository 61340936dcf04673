"""The claim about the loss at long inverse update periods: C09."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workflow.bench.analysis.common_steps import by_seed, last_common_values
from workflow.bench.analysis.estimates import Estimate, paired_difference
from workflow.bench.analysis.wording import capital, integer_ranges, number
from workflow.bench.claims.decision import (
    Decision,
    Part,
    decided,
    interval_of,
    not_tested,
    part_verdicts,
    sentences,
    statistics_used,
)
from workflow.bench.claims.verdicts import Condition, agreement
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, Sources, from_runs
from workflow.bench.results.tables import NoDataError


@dataclass(frozen=True)
class _Contrast:
    """One optimizer's loss at a long update period minus that at a short one, on one workload."""

    part: Part
    workload: str
    difference: Estimate
    seeds: frozenset[int]
    broken: int
    """Runs that broke down."""
    data: Sources


def _contrast(experiment: str, rows: pd.DataFrame, condition: Condition, rare: int, often: int) -> _Contrast | None:
    """Return the contrast of one optimizer's rows, or None if no seed has a value at both periods."""
    try:
        last, step = last_common_values(rows)
    except NoDataError:
        return None
    by_period = {period: by_seed(at_period) for period, at_period in last.groupby("inverse_update_period")}
    if set(by_period) != {rare, often}:
        return None
    difference = paired_difference(by_period[rare], by_period[often])
    if difference is None:
        return None
    workload = str(last["workload"].iloc[0])
    broken = int(np.isinf(last["value"].astype(float)).sum())
    # Without the runs that broke down, the period at which they did would look better than it is.
    verdict = "inconclusive" if broken else condition.judge(difference)
    name = f"{workload} {last['optimizer'].iloc[0]} after {step:g}"
    return _Contrast(
        part=Part(name, verdict, number(difference.value), interval_of(difference)),
        workload=workload,
        difference=difference,
        seeds=frozenset(by_period[rare].keys() & by_period[often].keys()),
        broken=broken,
        data=from_runs(f"{experiment}.csv", last),
    )


def _contrasts(metrics: Mapping[str, pd.DataFrame], condition: Condition, rare: int, often: int) -> list[_Contrast]:
    """Return the contrast of every optimizer in every experiment that has one."""
    contrasts = []
    for experiment, rows in metrics.items():
        is_test_loss = (rows["split"] == "validation") & (rows["metric"] == "loss")
        # A run that broke down before its first evaluation has one row without a metric; it must count as broken.
        losses = rows[
            (is_test_loss | rows["split"].isna())
            & rows["inverse_update_period"].isin((rare, often))
            & rows["status"].isin(ENDED)
        ]
        for _, of_label in losses.groupby("optimizer"):
            contrast = _contrast(experiment, of_label, condition, rare, often)
            contrasts += [] if contrast is None else [contrast]
    return contrasts


def decide_period_loss(
    metrics: Mapping[str, pd.DataFrame], conditions: Sequence[Condition], *, rare: int = 100, often: int = 10
) -> Decision:
    """Decide C09: the test loss at period ``rare`` minus that at ``often``, at equal iterations, paired by seed.

    The claim needs all contrasts, one for every workload and optimizer, to agree.

    Args:
        metrics: rows of ``<experiment>.csv`` by experiment.
        conditions: the claim's thresholds.
        rare: the longer inverse update period in steps.
        often: the shorter one.
    """
    contrasts = _contrasts(metrics, conditions[0], rare, often)
    if not contrasts:
        return not_tested(
            f"No finished pair of periods {often} and {rare} in {' or '.join(metrics) or 'any experiment'}."
        )
    parts = [contrast.part for contrast in contrasts]
    broken = ", ".join(f"{contrast.broken} of {contrast.part.name}" for contrast in contrasts if contrast.broken)
    seeds: dict[str, frozenset[int]] = {}
    for contrast in contrasts:
        seeds[contrast.workload] = seeds.get(contrast.workload, frozenset()) | contrast.seeds
    return decided(
        parts,
        agreement,
        f"Test loss at period {rare} minus that at {often}, each at its last iteration: {part_verdicts(parts)}.",
        sentences(
            f"{capital(statistics_used(contrast.difference for contrast in contrasts))}.",
            f"Runs that did not finish: {broken}." if broken else "",
        ),
        seeds="; ".join(f"{workload} {integer_ranges(of_workload)}" for workload, of_workload in seeds.items()),
        data=sum((contrast.data for contrast in contrasts), NO_SOURCES),
    )
