"""Claims about covariances: their distance from rank 1, and the conditioning of KFAC's factors (C14 to C17).

The claims hold for both sides of a layer, activations and gradients, and on all models, so that every workload and side
is a part, and each must hold. What is claimed of every layer (C14) is judged by the worst one; a typical layer (C15,
C16) is the median of a net's layers, and the interval is over nets trained with different seeds, since the layers of
one net are no independent nets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import Estimate, estimate, extreme, paired_ratio
from workflow.bench.analysis.wording import integer_ranges, named_seeds, number
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    interval_of,
    not_tested,
    part_verdicts,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.results.sources import from_rows

_LAYER: Final = ["layer", "side"]
_OVER_NETS: Final = " over nets of different seeds"
Summary = Callable[[pd.DataFrame], Estimate | None]
"""A function from the rows of one side of a workload to the estimate that decides the claim; None without one."""


def _errors(rows: pd.DataFrame, approximation: str) -> pd.Series:
    """Return the errors of one approximation by seed, step, layer and side; moments that are zero have no error."""
    # Relative to a moment of zero, that of units which are all silent, an error is undefined.
    errors = rows[rows["approximation"] == approximation].dropna(subset=["error"])
    return errors.set_index(["seed", "step", *_LAYER])["error"].astype(float)


def _by_layer(values: pd.Series) -> list[float]:
    """Return the medians over seeds and steps of each layer."""
    return [float(value) for value in values.dropna().groupby(level=_LAYER).median()]


def _by_net(values: pd.Series) -> list[float]:
    """Return the median over layers of each net, that of one seed; of a layer the median over steps."""
    of_layer = values.dropna().groupby(level=["seed", *_LAYER]).median()
    return [float(value) for value in of_layer.groupby(level="seed").median()]


def _decide(
    rows: pd.DataFrame, condition: Condition, summary: Summary, quantity: str, further: str = "", over: str = _OVER_NETS
) -> Decision:
    """Decide by a summary of each side of every workload.

    quantity: its name; further: more details; over: what its interval is over.
    """
    parts: list[Part] = []
    for (workload, side), of_side in rows.groupby(["workload", "side"]):
        if (value := summary(of_side)) is not None:
            parts.append(Part.judged(f"{workload} {side}s", value, condition))
    if not parts:
        return not_tested("The probe rank1_error has no errors to compare.")
    layers = rows.groupby("workload")["layer"].nunique()
    listed = ", ".join(f"{count} of {workload}" for workload, count in layers.items())
    return Decision(
        tuple(parts),
        f"{quantity}: {part_verdicts(parts)}.",
        sentences(f"Layers: {listed}; {statistics_used(parts)}{over}.", further),
        seeds=named_seeds(rows["seed"]),
        data=from_rows("probes/rank1_error.csv", workload=", ".join(str(workload) for workload in layers.index)),
    )


def decide_rank1_error(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C14: the largest relative error of the best rank-1 approximation of any layer, side by side."""

    def worst(of_side: pd.DataFrame) -> Estimate | None:
        # The claim says low in every layer: the worst one decides, and its neighbours cannot make up for it.
        values = _by_layer(_errors(of_side, "best"))
        return extreme(values, "maximum") if values else None

    medians = "; ".join(
        f"{workload} {side}s {number(float(np.median(values)))}"
        for (workload, side), of_side in rows.groupby(["workload", "side"])
        if (values := _by_layer(_errors(of_side, "best")))
    )
    return _decide(
        rows,
        conditions[0],
        worst,
        "The largest relative error of any layer's best rank-1 approximation",
        f"Medians over layers: {medians}.",
        over=" layers",
    )


def decide_mean_vector(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C15: the share of the best rank-1 approximation's energy that the mean's outer product captures.

    The best approximation of C captures ``1 - error^2`` of ``|C|^2``, and so does the mean's outer product with the
    factor that suits it best. A ratio of errors says little, since both saturate at 1.
    """

    def share(of_side: pd.DataFrame) -> Estimate | None:
        # MKOR rescales the preconditioned gradient, so that of the mean's outer product the direction alone counts.
        captured = {name: 1 - _errors(of_side, name) ** 2 for name in ("scaled_mean", "best")}
        values = _by_net(captured["scaled_mean"] / captured["best"].where(captured["best"] > 0))
        # The mean's outer product is itself of rank 1, and captures no more than the best.
        return estimate(values).within(0, 1) if values else None

    return _decide(
        rows,
        conditions[0],
        share,
        "Share of the best rank-1 approximation's energy that the mean vector's captures, median over layers",
        "The paper implies this claim, and does not state it.",
    )


def _late_minus_early(rows: pd.DataFrame) -> Estimate | None:
    """Return the change of the best rank-1 error from the first step to the last: the median over a net's layers."""
    errors = _errors(rows, "best").unstack("step")
    if errors.shape[1] < 2:
        return None
    changes = _by_net(errors[errors.columns.max()] - errors[errors.columns.min()])
    return estimate(changes) if changes else None


def decide_decay(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C16: the best rank-1 error at the last step minus that at the first, the median over a net's layers.

    The paper shows ResNet alone; other workloads stand in the details.
    """
    # The paper's figure is of ResNet: another model that behaves otherwise does not refute it.
    is_resnet = rows["workload"].astype(str).str.startswith("resnet")
    if not is_resnet.any():
        return not_tested("The probe rank1_error has no ResNet.")
    others = "; ".join(
        f"{workload} {side}s {with_interval(change)}"
        for (workload, side), of_side in rows[~is_resnet].groupby(["workload", "side"])
        if (change := _late_minus_early(of_side)) is not None
    )
    return _decide(
        rows[is_resnet],
        conditions[0],
        _late_minus_early,
        f"Best rank-1 error at the last step minus that at the first, of steps {integer_ranges(rows['step'])}",
        f"Not in the paper: {others}." if others else "",
    )


def _growth(rows: pd.DataFrame, first: float, last: float) -> tuple[Estimate | None, int, int]:
    """Return the ratio of condition numbers at the last and first step, the layers singular at both, and all layers.

    The ratio is paired by layer, each the median over seeds. A factor with a smallest eigenvalue below ``resolution``,
    the size of rounding, is singular and has an infinite condition number; the growth of one that is singular at both
    steps is unknown.
    """
    # Below float32's resolution the eigenvalue is rounding: its size, and even its sign, carry nothing.
    condition = rows["condition_number"].astype(float).where(rows["smallest"] > rows["resolution"], np.inf)
    table = rows.assign(condition_number=condition).pivot_table(
        index="layer", columns="step", values="condition_number", aggfunc="median"
    )
    ends = table.reindex(columns=[first, last]).dropna()
    both = int(np.isinf(ends).all(axis=1).sum())
    early, late = (dict(enumerate(ends[step])) for step in (first, last))
    return paired_ratio(late, early), both, len(ends)


def _running_part(workload: str, running: pd.DataFrame, first: float, last: float, condition: Condition) -> Part:
    """Return the part of a workload's running averages of its factors."""
    ratio, _, layers = _growth(running, first, last)
    at_end = running[running["step"] == last]
    singular = at_end.loc[at_end["smallest"] <= at_end["resolution"], "layer"].nunique()
    weight = number(float(at_end["start_weight"].max()))
    about = f"{singular} of {layers} layers singular at the end, identity's weight {weight}"
    if ratio is None:
        return Part(workload, "inconclusive", about)
    growth = "infinite" if math.isinf(ratio.value) else number(ratio.value)
    return Part(workload, condition.judge(ratio), f"{growth} ({about})", interval_of(ratio), ratio, condition)


def decide_singular_factors(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C17: condition numbers of KFAC's running right factors at the last step over those at the first, by layer.

    The running average is what KFAC inverts. It starts from the identity, whose weight bounds its eigenvalues from
    below: the claim is about what is left once that weight has faded. The factor of each batch stands in the details.
    """
    parts, of_batches = [], []
    for workload, of_workload in rows.groupby("workload"):
        first, last = of_workload["step"].min(), of_workload["step"].max()
        # One step shows no change, whatever its factors are.
        if first == last:
            continue
        # KFAC inverts the running average: a batch of fewer rows than the width is singular by counting alone.
        running, batch = (of_workload[of_workload["factor"] == kind] for kind in ("running", "batch"))
        parts.append(_running_part(str(workload), running, first, last, conditions[0]))
        growth, both, layers = _growth(batch, first, last)
        if growth is not None:
            of_batches.append(f"{workload} {with_interval(growth)}, {both} of {layers} layers singular at both ends")
    if not parts:
        return not_tested("The probe spectra has fewer than two steps to compare.")
    used = statistics_used(parts)
    return Decision(
        tuple(parts),
        f"Condition number of the running right factor at the last step over that at the first, of steps "
        f"{integer_ranges(rows['step'])}: {part_verdicts(parts)}.",
        sentences(
            f"Over layers: {used}." if used else "",
            "A factor is singular if its smallest eigenvalue is within rounding in float32.",
            f"The factors of single batches: {'; '.join(of_batches)}." if of_batches else "",
        ),
        seeds=named_seeds(rows["seed"]),
        data=from_rows("probes/spectra.csv", factor="batch, running"),
    )
