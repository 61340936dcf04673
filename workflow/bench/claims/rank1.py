"""Claims about covariances: their distance from rank 1, and the conditioning of KFAC's factors (C14 to C17).

The claims hold for both sides of a layer, activations and gradients, and on all models, so that every workload and side
is a part, and each must hold. What is claimed of every layer (C14) is judged by the worst one; a typical layer (C15,
C16) is the median of a net's layers, and the interval is over nets trained with different seeds, since the layers of
one net are no independent nets.
"""

from __future__ import annotations

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


def _conditions(rows: pd.DataFrame) -> pd.Series:
    """Return the condition number of one factor of each layer, without the identity that a running average starts from.

    The factor is ``start_weight I`` and a rest, whose eigenvalues are as much smaller. One with an eigenvalue below
    ``resolution``, the size of rounding, is singular: its condition number is infinite.
    """
    smallest, largest = (rows[name].astype(float) - rows["start_weight"] for name in ("smallest", "largest"))
    condition = (largest / smallest).where(smallest > rows["resolution"], np.inf)
    return condition.groupby(rows["layer"]).median()


def _growth(early: pd.DataFrame, late: pd.DataFrame) -> tuple[Estimate | None, int, int]:
    """Return the ratio of `_conditions`, paired by layer, the layers that are singular in both, and all layers.

    The growth of a factor that is singular in both is unknown.
    """
    ends = pd.concat([_conditions(early), _conditions(late)], axis=1).dropna()
    both = int(np.isinf(ends).all(axis=1).sum())
    first, last = (dict(enumerate(ends[column])) for column in ends)
    return paired_ratio(last, first), both, len(ends)


def _running_part(workload: str, batch: pd.DataFrame, running: pd.DataFrame, condition: Condition) -> Part:
    """Return the part of a workload: its running averages at the last step over the first step's batch."""
    ratio, both, layers = _growth(batch, running)
    singular = int(np.isinf(_conditions(running)).sum())
    about = f"{singular} of {layers} layers singular at the end"
    if 2 * both >= layers or ratio is None:
        reason = f"singular in the first batch and in the last average in {both} of {layers} layers"
        return Part(workload, "not tested", "", reason=reason)
    growth = number(ratio.value, infinity="infinite")
    return Part(workload, condition.judge(ratio), f"{growth} ({about})", interval_of(ratio), ratio, condition)


def decide_singular_factors(rows: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C17: condition numbers of KFAC's running right factors at the last step over the first batch's, by layer.

    The running average is what KFAC inverts. It starts from the identity, so that its condition number grows as that
    fades, whatever training does: the claim is about the rest, which at the first step is the batch's own factor, by a
    weight. The growth of single batches stands in the details.
    """
    parts, of_batches, averages = [], [], []
    for workload, of_workload in rows.groupby("workload"):
        first, last = of_workload["step"].min(), of_workload["step"].max()
        # One step shows no change, whatever its factors are.
        if first == last:
            continue
        # KFAC inverts the running average: a batch of fewer rows than the width is singular by counting alone.
        running, batch = (of_workload[of_workload["factor"] == kind] for kind in ("running", "batch"))
        of_first, of_last = (batch[batch["step"] == step] for step in (first, last))
        parts.append(_running_part(str(workload), of_first, running[running["step"] == last], conditions[0]))
        counts = [int(np.isinf(_conditions(at)).sum()) for step, at in running.groupby("step") if step > first]
        averages.append(f"{workload} {', '.join(map(str, counts))} of {running['layer'].nunique()}")
        growth, both, layers = _growth(of_first, of_last)
        if growth is not None:
            grown = with_interval(growth) if growth.has_interval else number(growth.value, infinity="infinite")
            of_batches.append(f"{workload} {grown}, {both} of {layers} layers singular at both ends")
    if not parts:
        return not_tested("The probe spectra has fewer than two steps to compare.")
    used = statistics_used(parts)
    return Decision(
        tuple(parts),
        "Condition number of the running right factor, without what is left of the identity, at the last step over "
        f"that of the first step's batch, of steps {integer_ranges(rows['step'])}: {part_verdicts(parts)}.",
        sentences(
            f"Over the layers of one net: {used}." if used else "",
            "A factor is singular if its smallest eigenvalue is within rounding in float32.",
            f"Running factors that are singular after the first step, by step: {'; '.join(averages)}.",
            f"The factors of single batches: {'; '.join(of_batches)}." if of_batches else "",
        ),
        seeds=named_seeds(rows["seed"]),
        data=from_rows("probes/spectra.csv", factor="batch, running"),
    )
