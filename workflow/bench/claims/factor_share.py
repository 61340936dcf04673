"""The claim about the share of factor work in a step: C10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, paired_ratio
from workflow.bench.analysis.wording import capital, number
from workflow.bench.claims.decision import (
    Decision,
    Part,
    decided,
    interval_of,
    not_tested,
    part_verdicts,
    statistics_used,
    with_interval,
)
from workflow.bench.claims.verdicts import Condition, agreement
from workflow.bench.results.sources import from_rows

_REST: Final = ("precondition", "communication", "update")
_TREATMENTS: Final = {"without capture": ("factor",), "with capture": ("factor", "capture")}
"""The phases that count as factor work, in two definitions that must agree on the verdict.

The hooks capture statistics during the backward pass: KAISA's moments, MKOR's mean vectors.
"""


def _shares(rows: pd.DataFrame, work: Sequence[str]) -> dict[int, float]:
    """Return the share of the phases ``work`` in the optimizer's part of a step by repeat.

    The rows are those of one optimizer at one period. A repeat that lacks a phase has no share.
    """
    phases = rows.pivot_table(index="repeat", columns="phase", values="ms", aggfunc="first")
    table = phases.reindex(columns=[*work, *_REST]).dropna()
    factor = table[list(work)].sum(axis=1)
    share = factor / (factor + table[list(_REST)].sum(axis=1))
    return {int(str(repeat)): float(value) for repeat, value in share.items()}


@dataclass
class _Shares:
    """The shares of factor work on all workloads, as `decide_factor_share` collects them."""

    parts: list[Part] = field(default_factory=list)
    ratios: list[Estimate] = field(default_factory=list)
    """MKOR's share over KAISA's, each at its longest period."""
    at_equal_period: list[str] = field(default_factory=list)
    """The same ratios with both at MKOR's period, in words."""
    means: list[str] = field(default_factory=list)
    """Every method's mean share by workload, in words."""

    def add(self, workload: str, rows: pd.DataFrame, condition: Condition) -> None:
        """Add a workload, if KAISA and MKOR were timed with a period."""
        periods = {name: of_name["inverse_update_period"].dropna() for name, of_name in rows.groupby("optimizer")}
        if not {"mkor", "kaisa"} <= {name for name, of_name in periods.items() if len(of_name)}:
            return
        by_name = {name: rows[rows["optimizer"] == name] for name in ("mkor", "kaisa", "hylo") if name in periods}
        longest = {name: _at(of_name, periods[name].max()) for name, of_name in by_name.items()}
        equal = {name: _at(of_name, periods["mkor"].max()) for name, of_name in by_name.items()}
        means = []
        for treatment, work in _TREATMENTS.items():
            shares = {name: _shares(of_name, work) for name, of_name in longest.items()}
            ratio = paired_ratio(shares["mkor"], shares["kaisa"])
            if ratio is None:
                continue
            place = f"{workload} {treatment}"
            self.ratios.append(ratio)
            self.parts.append(Part(place, condition.judge(ratio), number(ratio.value), interval_of(ratio)))
            listed = (f"{name} {number(fmean(by_repeat.values()))}" for name, by_repeat in shares.items() if by_repeat)
            means.append(f"{treatment} {', '.join(listed)}")
            ratio_at_equal = paired_ratio(_shares(equal["mkor"], work), _shares(equal["kaisa"], work))
            if ratio_at_equal is not None:
                self.at_equal_period.append(
                    f"{place} {with_interval(ratio_at_equal)} {condition.judge(ratio_at_equal)}"
                )
        self.means.append(f"{workload}: {'; '.join(means)}")


def _at(rows: pd.DataFrame, period: float) -> pd.DataFrame:
    return rows[rows["inverse_update_period"] == period]


def decide_factor_share(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C10: the share of factor work in the optimizer's part of a step, MKOR's over KAISA's.

    The optimizer's part is factor, precondition, communication and update, on one process. Capture counts once as none
    of it and once as factor work; the claim needs both, and all workloads, to agree. Each method is at the longest
    period at which it was timed, which is the paper's. The details add the ratio at equal periods, and HyLo's shares.

    Args:
        times: rows of ``step_breakdown.csv``.
        conditions: the claim's thresholds.
    """
    alone = times[times["workers"] == 1]
    shares = _Shares()
    for workload, rows in alone.groupby("workload"):
        shares.add(str(workload), rows, conditions[0])
    if not shares.parts:
        return not_tested("The probe step_breakdown has no times of both KAISA and MKOR on one process.")
    longest = alone.groupby("optimizer")["inverse_update_period"].max().dropna()
    periods = ", ".join(f"{name} {longest[name]:g}" for name in ("mkor", "kaisa", "hylo") if name in longest)
    return decided(
        shares.parts,
        agreement,
        "Share of factor work in the optimizer's part of a step, MKOR's over KAISA's, at the paper's periods "
        f"({periods}): {part_verdicts(shares.parts)}.",
        f"{capital(statistics_used(shares.ratios))}. Shares: {'. '.join(shares.means)}. With KAISA at MKOR's period: "
        f"{'; '.join(shares.at_equal_period) or 'not timed'}.",
        seeds=f"{alone['repeat'].nunique()} repeats",
        data=from_rows("probes/step_breakdown.csv", workers=1, optimizer="mkor, kaisa, hylo"),
    )
