"""The claim about the share of factor work in a step: C10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import paired_ratio
from workflow.bench.analysis.wording import capital, integer_ranges, number
from workflow.bench.claims.decision import Decision, Part, decided, not_tested, part_verdicts, statistics_used
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.sources import from_rows

NARROWEST: Final = 512
"""The least width of a layer for which the claim is tested: in narrower ones calls cost more than their work."""
PERIODS: Final[Mapping[str, int]] = {"mkor": 10, "kaisa": 50}
"""Steps between two updates of the factors in the paper's comparisons."""


def _shares(times: pd.DataFrame, optimizer: str) -> dict[int, float]:
    """Return the share of factor work in the work on one layer by repeat; what was timed once counts in every repeat.

    times: rows of ``cost_scaling.csv`` at one width.
    """
    parts = times[times["optimizer"] == optimizer].pivot_table(index="repeat", columns="part", values="ms")
    table = parts.reindex(columns=["factor", "precondition"]).ffill().bfill().dropna()
    factor = table["factor"] / PERIODS[optimizer]
    return {int(str(repeat)): float(value) for repeat, value in (factor / (factor + table["precondition"])).items()}


def _paired(mkor: Mapping[int, float], kaisa: Mapping[int, float]) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return the shares by repeat; one that was measured once is paired with every repeat of the other."""
    if len(kaisa) == 1:
        return mkor, dict.fromkeys(mkor, next(iter(kaisa.values())))
    return mkor, kaisa


def decide_factor_share(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C10: the share of a factor's update in the work on a layer, MKOR's over KAISA's, at each width.

    The work is the update of one factor, divided by the paper's period, and the preconditioning of a gradient. The
    claim needs every width from `NARROWEST` on.

    Args:
        times: rows of ``cost_scaling.csv``.
        conditions: the claim's thresholds.
    """
    parts: list[Part] = []
    means: list[str] = []
    for width, rows in times[times["dimension"] >= NARROWEST].groupby("dimension"):
        shares = {name: _shares(rows, name) for name in PERIODS}
        ratio = paired_ratio(*_paired(shares["mkor"], shares["kaisa"]))
        if ratio is not None:
            parts.append(Part.judged(f"d = {width:g}", ratio, conditions[0]))
            means.append(f"d = {width:g}: {', '.join(f'{k} {number(fmean(v.values()))}' for k, v in shares.items())}")
    if not parts:
        return not_tested(
            f"The probe cost_scaling has no width of at least {NARROWEST} with times of both KAISA and MKOR."
        )
    estimates = [part.estimate for part in parts if part.estimate is not None]
    periods = ", ".join(f"{name} {period}" for name, period in PERIODS.items())
    return decided(
        parts,
        f"Share of a factor's update in the work on a layer, MKOR's over KAISA's, at the paper's periods ({periods}): "
        f"{part_verdicts(parts)}.",
        f"{capital(statistics_used(estimates))}. Shares: {'; '.join(means)}. Narrower layers are not tested: there the "
        "calls cost more than their work.",
        seeds=f"{times['repeat'].nunique()} repeats",
        data=from_rows(
            "probes/cost_scaling.csv",
            optimizer="mkor, kaisa",
            part="factor, precondition",
            dimension=integer_ranges(times.loc[times["dimension"] >= NARROWEST, "dimension"]),
        ),
    )
