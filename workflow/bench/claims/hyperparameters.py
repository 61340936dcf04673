"""Claims about a hyperparameter that the paper varies: the inverse update period (C09), the learning rate (C18)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from workflow.bench.analysis.curves import fall_of
from workflow.bench.analysis.estimates import median_minimum, paired_difference
from workflow.bench.analysis.lr_outcomes import converging_rates, mean_best, outcomes
from workflow.bench.analysis.wording import capital, integer_ranges
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    Trained,
    left_out,
    mkor_of,
    not_tested,
    part_verdicts,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.results.columns import BROKEN_DOWN, ENDED
from workflow.bench.results.sources import from_runs

RIVALS: Final = {"kaisa": "KAISA with clip", "kaisa_no_clip": "KAISA without clip", "hylo": "HyLo", "sgd": "SGD"}
"""The rivals' labels and names; KAISA's kl_clip shortens steps more at higher learning rates."""


def _mean_losses(rows: pd.DataFrame) -> dict[int, float]:
    """Return the mean loss over a training by seed, infinite for a run that broke down.

    It is the area under the loss curve, by the trapezoidal rule, over its length: at equal iterations, and less noisy
    than the last value.
    """
    means: dict[int, float] = {}
    for seed, run in rows.groupby("seed"):
        curve = run.dropna(subset=["value"]).sort_values("step")
        # One evaluation encloses no area.
        if run["status"].isin(BROKEN_DOWN).any() or len(curve) < 2:
            means[int(str(seed))] = np.inf
            continue
        steps, values = curve["step"].to_numpy(float), curve["value"].to_numpy(float)
        means[int(str(seed))] = float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))
    return means


def _period_parts(label: str, rows: pd.DataFrame, condition: Condition) -> Iterator[Part]:
    """Yield an optimizer's parts: every period against the next shorter one, paired by seed."""
    by_period = {float(str(period)): _mean_losses(at) for period, at in rows.groupby("inverse_update_period")}
    fall = fall_of(rows)
    # Neighbours, and not the ends alone: the claim is that every update more helps.
    for shorter, longer in pairwise(sorted(by_period)):
        name = f"{label}, period {longer:g} - {shorter:g}"
        broken = sum(math.isinf(value) for period in (shorter, longer) for value in by_period[period].values())
        difference = paired_difference(by_period[longer], by_period[shorter])
        if broken:  # without those runs, the period at which they broke down would look better than it is
            yield Part(name, "inconclusive", f"{broken} runs broke down")
        elif difference is not None:
            yield Part.judged(name, difference, condition, fall)


def decide_period_loss(trained: Trained, conditions: Sequence[Condition]) -> Decision:
    """Decide C09: the mean validation loss over training at a period minus that at the next shorter one.

    The paper shows the autoencoder, ``autoencoder_inversion``. The claim needs every optimizer and every pair of
    neighbouring periods.
    """
    losses = trained.validation_losses()
    losses = losses[losses["status"].isin(ENDED)]
    # The base optimizer has no period: the limit in which factors are never updated is no part of the claim.
    periodic = losses[losses["inverse_update_period"].notna()]
    parts = [
        part for label, of in periodic.groupby("optimizer") for part in _period_parts(str(label), of, conditions[0])
    ]
    if not parts:
        return not_tested(f"No finished pair of periods in {trained.name}.")
    used = statistics_used(parts)
    return Decision(
        tuple(parts),
        f"Mean validation loss over training at a period minus that at the next shorter one: {part_verdicts(parts)}.",
        f"{capital(used)}." if used else "",
        seeds=f"seeds {integer_ranges(losses['seed'])}",
        data=from_runs(f"{trained.name}.csv", losses),
    )


def decide_sensitivity(trained: Trained, conditions: Sequence[Condition]) -> Decision:
    """Decide C18: MKOR's best accuracy, the mean over learning rates, minus each rival's, paired by seed.

    MKOR is the least sensitive if it is ahead of every rival. The paper counts rates that converge, without defining
    convergence. Counts are small whole numbers with many ties, which a t interval does not suit, and fewer than six
    seeds give their median no interval; so they are details. `analysis.lr_outcomes` defines what counts as converged; a
    seed counts if its runs at every rate have ended.

    Args:
        trained: the results of ``resnet_cifar10_lr``.
        conditions: the claim's threshold.
    """
    runs = trained.runs
    mkor = mkor_of(runs)
    labels = (mkor, *RIVALS)
    if lacks := trained.lacking(*labels):
        return not_tested(lacks)
    ended = outcomes(trained.of_labels(*labels))
    counts = converging_rates(ended)
    if incomplete := [label for label in labels if label not in counts]:
        # A mean over fewer rates would be over easier ones.
        return not_tested(f"No seed of {', '.join(incomplete)} has ended at every learning rate.")
    best = mean_best(ended, trained.metrics)
    target = ended["target"].iloc[0]
    parts = []
    for rival, name in RIVALS.items():
        # Above 0 must favor MKOR, whether the metric rises or falls.
        ahead = (best[mkor], best[rival]) if target.direction == "above" else (best[rival], best[mkor])
        difference = paired_difference(*ahead)
        if difference is None:
            return not_tested(f"{mkor} and {rival} share no seed that has ended at every learning rate.")
        parts.append(Part.judged(name, difference, conditions[0]))
    # The paper's own measure stands beside ours, so that a reader can compare the two.
    by_seed = (f"{label} {', '.join(str(counts[label][seed]) for seed in sorted(counts[label]))}" for label in labels)
    return Decision(
        tuple(parts),
        f"Best {target.split} {target.metric}, the mean over {ended['lr'].nunique()} learning rates, MKOR's minus each "
        f"rival's: {part_verdicts(parts)}.",
        sentences(
            f"{capital(statistics_used(parts))}; a run that diverged counts as untrained. The paper counts rates "
            "instead, without defining convergence.",
            f"Rates that reach {target.describe()}, by seed: {'; '.join(by_seed)}.",
            f"The count of {mkor} minus a rival's: {'; '.join(_differences(counts, mkor))}.",
            f"By rate: {'; '.join(_by_rate(ended, label) for label in labels)}.",
            left_out(runs),
        ),
        seeds=integer_ranges(counts[mkor]),
        data=from_runs(f"{trained.name}.runs.csv", ended) + from_runs(f"{trained.name}.csv", ended),
    )


def _differences(counts: Mapping[str, Mapping[int, int]], mkor: str) -> Iterator[str]:
    """Yield the difference of the counts of converging rates for every rival, with an interval that suits counts."""
    for rival, name in RIVALS.items():
        shared = sorted(counts[mkor].keys() & counts[rival].keys())
        median = paired_difference(counts[mkor], counts[rival])
        if median and len(shared) >= median_minimum():
            yield f"{name} {with_interval(median)}"
        else:
            yield f"{name} {', '.join(str(counts[mkor][seed] - counts[rival][seed]) for seed in shared)}"


def _by_rate(ended: pd.DataFrame, label: str) -> str:
    """Return the number of a label's converged runs at each learning rate: ``mkor 2 at 1, 3 at 0.1``."""
    converged = ended[(ended["optimizer"] == label) & (ended["outcome"] == "converged")]
    seeds = converged["lr"].value_counts()
    return f"{label} {', '.join(f'{seeds[lr]} at {lr:g}' for lr in sorted(seeds.index, reverse=True)) or 'none'}"
