"""Claims about covariances: how near rank 1 they are, and how KFAC's factors become singular (C14 to C17).

A workload's layers are the sample: a layer's side (activations or gradients) is one value, the median over the steps
and seeds that were looked at, and the median over these has its interval.  A claim needs the workloads to agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import Estimate, estimate, paired_difference, paired_ratio
from workflow.bench.analysis.wording import number, spans
from workflow.bench.claims.decision import Decision, Part, decided, how, not_tested, sentences, shown, span, verdicts
from workflow.bench.claims.verdicts import Condition, agreement
from workflow.bench.results.sources import from_rows

_LAYER: Final = ["layer", "side"]
Summary = Callable[[pd.DataFrame], Estimate | None]
"""From a workload's rows to the number that the claim is judged by; None where there is none."""


def _of(rows: pd.DataFrame, approximation: str) -> pd.Series:
    """The errors of one approximation by seed, step, layer and side; moments that are zero have none."""
    own = rows[rows["approximation"] == approximation].dropna(subset=["error"])
    return own.set_index(["seed", "step", *_LAYER])["error"].astype(float)


def _over_layers(values: pd.Series) -> Estimate | None:
    """The median over layers and sides of each one's median over seeds and steps."""
    by_layer = values.dropna().groupby(level=_LAYER).median()
    return estimate(by_layer.to_numpy(float)) if len(by_layer) else None


def _parts(rows: pd.DataFrame, condition: Condition, summary: Summary) -> Iterator[tuple[Part, Estimate, str]]:
    """Each workload with its estimate over both sides, and the sides on their own in words."""
    for workload, own in rows.groupby("workload"):
        both = summary(own)
        if both is None:
            continue
        sides = []
        for side, of_side in own.groupby("side"):
            alone = summary(of_side)
            if alone is not None:
                sides.append(f"{side}s {shown(alone)} {condition.judge(alone)}")
        part = Part(str(workload), condition.judge(both), number(both.value), span(both))
        yield part, both, f"{workload} {', '.join(sides)}"


def _decide(rows: pd.DataFrame, condition: Condition, summary: Summary, quantity: str, further: str = "") -> Decision:
    found = list(_parts(rows, condition, summary))
    if not found:
        return not_tested("The probe rank1_error has no errors to compare.")
    parts = [part for part, _, _ in found]
    layers = rows.groupby("workload")["layer"].nunique()
    listed = ", ".join(f"{count} of {workload}" for workload, count in layers.items())
    return decided(
        parts,
        agreement,
        f"{quantity}, activations and gradients of all layers together: {verdicts(parts)}.",
        sentences(
            f"Over layers ({listed}): {how(both for _, both, _ in found)}.",
            f"Each side alone: {'; '.join(sides for _, _, sides in found)}.",
            further,
        ),
        seeds=f"seeds {spans(rows['seed'])}",
        data=from_rows("probes/rank1_error.csv", workload=", ".join(part.name for part in parts)),
    )


def decide_rank1_error(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C14: the relative error of the best rank-1 approximation, median over layers, activations and gradients."""
    highest = _of(rows, "best")
    further = f"The largest of all is {number(float(highest.max()))}." if len(highest) else ""
    return _decide(
        rows,
        conditions[0],
        lambda own: _over_layers(_of(own, "best")),
        "Relative error of the best rank-1 approximation",
        further,
    )


def decide_mean_vector(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C15: the mean vector's error over the best rank-1 error, median over layers, activations and gradients."""
    return _decide(
        rows,
        conditions[0],
        lambda own: _over_layers(_of(own, "mean") / _of(own, "best")),
        "Error of the mean vector's outer product over that of the best rank-1 approximation",
    )


def _late_minus_early(rows: pd.DataFrame) -> Estimate | None:
    """The change of the best rank-1 error from the first step to the last, paired by layer and side."""
    errors = _of(rows, "best").groupby(level=["step", *_LAYER]).mean().unstack("step")
    if errors.shape[1] < 2:
        return None
    early, late = (dict(enumerate(errors[step].astype(float))) for step in (errors.columns.min(), errors.columns.max()))
    return paired_difference(late, early)


def decide_decay(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C16: the best rank-1 error at the last step minus that at the first, the mean over seeds, paired by layer."""
    steps = spans(rows["step"])
    return _decide(
        rows,
        conditions[0],
        _late_minus_early,
        f"Best rank-1 error at the last step minus that at the first, of steps {steps}",
    )


def _growth(rows: pd.DataFrame, first: float, last: float) -> tuple[Estimate | None, int, int]:
    """Condition numbers at the last step over those at the first, layers singular at both, and all layers.

    A factor whose smallest eigenvalue is rounding (below ``resolution``) is singular, its condition number infinite;
    paired by layer (the median over seeds), one that is singular at both ends says nothing of growth.
    """
    condition = rows["condition_number"].astype(float).where(rows["smallest"] > rows["resolution"], np.inf)
    table = rows.assign(condition_number=condition).pivot_table(
        index="layer", columns="step", values="condition_number", aggfunc="median"
    )
    ends = table.reindex(columns=[first, last]).dropna()
    both = int(np.isinf(ends).all(axis=1).sum())
    early, late = (dict(enumerate(ends[step])) for step in (first, last))
    return paired_ratio(late, early), both, len(ends)


def decide_singular_factors(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C17: condition numbers of KFAC's right factors at the last step over those at the first, paired by layer.

    Judged by each batch's own factor: the running average's eigenvalues cannot lie below the weight that the identity
    it starts from still has, which alone makes its condition number grow; that growth stands beside it.
    """
    parts, estimates, beside = [], [], []
    for workload, own in rows.groupby("workload"):
        first, last = own["step"].min(), own["step"].max()
        if first == last:
            continue
        ratio, both, layers = _growth(own[own["factor"] == "batch"], first, last)
        already = f"{both} of {layers} layers singular at both ends"
        if ratio is None:
            parts.append(Part(str(workload), "inconclusive", already))
        else:
            estimates.append(ratio)
            value = "infinite" if math.isinf(ratio.value) else number(ratio.value)
            text = f"{value} over {ratio.n} layers"
            measured = f"{text} ({already})" if both else text
            parts.append(Part(str(workload), conditions[0].judge(ratio), measured, span(ratio)))
        running = own[own["factor"] == "running"]
        averaged, _, _ = _growth(running, first, last)
        if averaged is not None:
            weight = float(running.loc[running["step"] == last, "start_weight"].max())
            beside.append(f"{workload} {shown(averaged)} (identity's weight {number(weight)})")
    if not parts:
        return not_tested("The probe spectra has fewer than two steps to compare.")
    return decided(
        parts,
        agreement,
        f"Condition number of each batch's right factor at the last step over that at the first, of steps "
        f"{spans(rows['step'])}: {verdicts(parts)}.",
        sentences(
            f"Over layers: {how(estimates)}." if estimates else "",
            "Singular is a factor whose smallest eigenvalue is rounding in float32; one that is so at both ends says "
            "nothing of growth.",
            f"The running averages start at the identity, so that theirs must grow: {'; '.join(beside)}."
            if beside
            else "",
        ),
        seeds=f"seeds {spans(rows['seed'])}",
        data=from_rows("probes/spectra.csv", factor="batch, running"),
    )
