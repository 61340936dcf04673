"""Claims about covariances: their distance from rank 1, and the conditioning of KFAC's factors (C14 to C17).

The sample is a workload's layers. Each layer's side, activations or gradients, gives one value, its median over seeds
and steps; the estimate is over these values. A claim needs the workloads to agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import Estimate, estimate, paired_difference, paired_ratio
from workflow.bench.analysis.wording import integer_ranges, number
from workflow.bench.claims.decision import (
    Decision,
    Part,
    decided,
    interval_of,
    not_tested,
    part_verdicts,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.claims.verdicts import Condition, agreement
from workflow.bench.results.sources import from_rows

_LAYER: Final = ["layer", "side"]
Summary = Callable[[pd.DataFrame], Estimate | None]
"""A function from a workload's rows to the estimate that decides the claim; None without one."""


def _errors(rows: pd.DataFrame, approximation: str) -> pd.Series:
    """Return the errors of one approximation by seed, step, layer and side; moments that are zero have no error."""
    errors = rows[rows["approximation"] == approximation].dropna(subset=["error"])
    return errors.set_index(["seed", "step", *_LAYER])["error"].astype(float)


def _over_layers(values: pd.Series) -> Estimate | None:
    """Return the median over layers and sides of their medians over seeds and steps."""
    by_layer = values.dropna().groupby(level=_LAYER).median()
    return estimate(by_layer.to_numpy(float)) if len(by_layer) else None


def _parts(rows: pd.DataFrame, condition: Condition, summary: Summary) -> Iterator[tuple[Part, Estimate, str]]:
    """Yield each workload's part, its estimate over both sides, and the estimates of each side in words."""
    for workload, of_workload in rows.groupby("workload"):
        both = summary(of_workload)
        if both is None:
            continue
        sides = []
        for side, of_side in of_workload.groupby("side"):
            alone = summary(of_side)
            if alone is not None:
                sides.append(f"{side}s {with_interval(alone)} {condition.judge(alone)}")
        part = Part(str(workload), condition.judge(both), number(both.value), interval_of(both))
        yield part, both, f"{workload} {', '.join(sides)}"


def _decide(rows: pd.DataFrame, condition: Condition, summary: Summary, quantity: str, further: str = "") -> Decision:
    """Decide by a summary of every workload; ``quantity`` is its name, ``further`` a last sentence of details."""
    workloads = list(_parts(rows, condition, summary))
    if not workloads:
        return not_tested("The probe rank1_error has no errors to compare.")
    parts = [part for part, _, _ in workloads]
    layers = rows.groupby("workload")["layer"].nunique()
    listed = ", ".join(f"{count} of {workload}" for workload, count in layers.items())
    return decided(
        parts,
        agreement,
        f"{quantity}, activations and gradients of all layers together: {part_verdicts(parts)}.",
        sentences(
            f"Over layers ({listed}): {statistics_used(both for _, both, _ in workloads)}.",
            f"Each side alone: {'; '.join(sides for _, _, sides in workloads)}.",
            further,
        ),
        seeds=f"seeds {integer_ranges(rows['seed'])}",
        data=from_rows("probes/rank1_error.csv", workload=", ".join(part.name for part in parts)),
    )


def decide_rank1_error(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C14: the relative error of the best rank-1 approximation, median over layers and their sides."""
    highest = _errors(rows, "best")
    further = f"The largest error is {number(float(highest.max()))}." if len(highest) else ""
    return _decide(
        rows,
        conditions[0],
        lambda of_workload: _over_layers(_errors(of_workload, "best")),
        "Relative error of the best rank-1 approximation",
        further,
    )


def decide_mean_vector(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C15: the mean vector's error over the best rank-1 error, median over layers, activations and gradients."""
    return _decide(
        rows,
        conditions[0],
        lambda of_workload: _over_layers(_errors(of_workload, "mean") / _errors(of_workload, "best")),
        "Error of the mean vector's outer product over that of the best rank-1 approximation",
    )


def _late_minus_early(rows: pd.DataFrame) -> Estimate | None:
    """Return the change of the best rank-1 error from the first step to the last, paired by layer and side."""
    errors = _errors(rows, "best").groupby(level=["step", *_LAYER]).mean().unstack("step")
    if errors.shape[1] < 2:
        return None
    early, late = (dict(enumerate(errors[step].astype(float))) for step in (errors.columns.min(), errors.columns.max()))
    return paired_difference(late, early)


def decide_decay(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C16: the best rank-1 error at the last step minus that at the first, mean over seeds, paired by layer."""
    steps = integer_ranges(rows["step"])
    return _decide(
        rows,
        conditions[0],
        _late_minus_early,
        f"Best rank-1 error at the last step minus that at the first, of steps {steps}",
    )


def _growth(rows: pd.DataFrame, first: float, last: float) -> tuple[Estimate | None, int, int]:
    """Return the ratio of condition numbers at the last and first step, the layers singular at both, and all layers.

    The ratio is paired by layer, each the median over seeds. A factor with a smallest eigenvalue below ``resolution``,
    the size of rounding, is singular and has an infinite condition number; the growth of one that is singular at both
    steps is unknown.
    """
    condition = rows["condition_number"].astype(float).where(rows["smallest"] > rows["resolution"], np.inf)
    table = rows.assign(condition_number=condition).pivot_table(
        index="layer", columns="step", values="condition_number", aggfunc="median"
    )
    ends = table.reindex(columns=[first, last]).dropna()
    both = int(np.isinf(ends).all(axis=1).sum())
    early, late = (dict(enumerate(ends[step])) for step in (first, last))
    return paired_ratio(late, early), both, len(ends)


def _batch_part(workload: str, ratio: Estimate | None, singular: int, layers: int, condition: Condition) -> Part:
    """Return the part of a workload's batch factors; ``singular`` of the ``layers`` are singular at both steps."""
    already = f"{singular} of {layers} layers singular at both ends"
    if ratio is None:
        return Part(workload, "inconclusive", already)
    growth = "infinite" if math.isinf(ratio.value) else number(ratio.value)
    measured = f"{growth} over {ratio.n} layers{f' ({already})' if singular else ''}"
    return Part(workload, condition.judge(ratio), measured, interval_of(ratio))


def _running_growth(workload: str, running: pd.DataFrame, first: float, last: float) -> str:
    """Return the growth of a workload's running averages in words; empty without any."""
    growth, _, _ = _growth(running, first, last)
    if growth is None:
        return ""
    weight = float(running.loc[running["step"] == last, "start_weight"].max())
    return f"{workload} {with_interval(growth)} (identity's weight {number(weight)})"


def decide_singular_factors(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C17: condition numbers of KFAC's right factors at the last step over those at the first, by layer.

    The factor of each batch decides. The eigenvalues of the running average are at least the weight of the identity
    that it starts from, so the decay of that weight alone makes its condition number grow; that growth is only
    reported.
    """
    parts, estimates, running_growth = [], [], []
    for workload, of_workload in rows.groupby("workload"):
        first, last = of_workload["step"].min(), of_workload["step"].max()
        if first == last:
            continue
        ratio, singular, layers = _growth(of_workload[of_workload["factor"] == "batch"], first, last)
        parts.append(_batch_part(str(workload), ratio, singular, layers, conditions[0]))
        estimates += [] if ratio is None else [ratio]
        running = of_workload[of_workload["factor"] == "running"]
        running_growth.append(_running_growth(str(workload), running, first, last))
    if not parts:
        return not_tested("The probe spectra has fewer than two steps to compare.")
    growth = "; ".join(filter(None, running_growth))
    return decided(
        parts,
        agreement,
        f"Condition number of each batch's right factor at the last step over that at the first, of steps "
        f"{integer_ranges(rows['step'])}: {part_verdicts(parts)}.",
        sentences(
            f"Over layers: {statistics_used(estimates)}." if estimates else "",
            "A factor is singular if its smallest eigenvalue is within rounding in float32; if it is so at both ends, "
            "its growth is unknown.",
            f"The running averages start at the identity, so theirs must grow: {growth}." if growth else "",
        ),
        seeds=f"seeds {integer_ranges(rows['seed'])}",
        data=from_rows("probes/spectra.csv", factor="batch, running"),
    )
