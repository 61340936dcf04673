"""Claims about a hyperparameter that the paper varies: the inverse update period (C09), the learning rate (C18)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from workflow.bench.analysis.curves import fall_of
from workflow.bench.analysis.estimates import Estimate, median_minimum, paired_difference
from workflow.bench.analysis.lr_outcomes import converging_rates, mean_best, outcomes
from workflow.bench.analysis.wording import capital, integer_ranges, named_seeds
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
PUBLISHED_RATES: Final = (0.01, 0.1, 1.0, 10.0)
"""The learning rates of the paper's table (``lr_sensitivity_resnet50_cifar10.csv``)."""


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
    """Yield an optimizer's parts: every period against the next shorter one, and the longest against the shortest."""
    by_period = {float(str(period)): _mean_losses(at) for period, at in rows.groupby("inverse_update_period")}
    fall = fall_of(rows)
    periods = sorted(by_period)
    # Neighbours: the claim is that every update more helps. And the ends: two steps within the margin may add up.
    ends = [(periods[0], periods[-1])] if len(periods) > 2 else []
    for shorter, longer in [*pairwise(periods), *ends]:
        difference = paired_difference(by_period[longer], by_period[shorter])
        if difference is not None:
            yield Part.judged(f"{label}, period {longer:g} minus period {shorter:g}", difference, condition, fall)


def remembers_equally(runs: pd.DataFrame) -> bool:
    """Return whether a label's factors fade equally fast at all of its periods, to 1 % of the steps remembered.

    A factor keeps the weight ``factor_decay`` at each update, so ``factor_decay^(1 / period)`` at each step, and
    remembers about ``1 / -log`` of that many steps. With one decay for all, a longer period remembers more steps.

    runs: rows of ``<experiment>.runs.csv``.
    """
    memory = [
        period / -math.log(given["factor_decay"])
        for given in runs["hyperparameters"]
        if (period := given.get("inverse_update_period")) and given.get("factor_decay")
    ]
    # A decay that is not given is the method's default, one for all periods.
    return len(memory) == len(runs) > 0 and max(memory) <= 1.01 * min(memory)


def decide_period_loss(trained: Trained, conditions: Sequence[Condition]) -> Decision:
    """Decide C09: the mean validation loss over training at a period minus that at a shorter one.

    The paper shows the autoencoder, ``autoencoder_inversion``. The claim needs every optimizer and every pair of
    neighbouring periods, and of the longest and the shortest. Labels that remember equally many steps at all periods
    decide it (`remembers_equally`); in the others a longer memory would be taken for the effect of the period, and they
    stand in the details.
    """
    losses = trained.validation_losses()
    losses = losses[losses["status"].isin(ENDED)]
    # The base optimizer has no period: the limit in which factors are never updated is no part of the claim.
    periodic = losses[losses["inverse_update_period"].notna()]
    equal: list[Part] = []
    other: list[Part] = []
    for label, of_label in periodic.groupby("optimizer"):
        found = list(_period_parts(str(label), of_label, conditions[0]))
        (equal if remembers_equally(trained.of_labels(str(label))) else other).extend(found)
    stated = "; ".join(f"{part.name} {part.measured} {part.interval}" for part in other)
    beside = f"With one decay for each update, so that longer periods remember more steps: {stated}." if other else ""
    if not equal:
        unequal = "No optimizer remembers equally many steps at all periods."
        return not_tested(unequal if other else f"No finished pair of periods in {trained.name}.", beside)
    return Decision(
        tuple(equal),
        f"Mean validation loss over training at a period minus that at a shorter one: {part_verdicts(equal)}.",
        sentences(
            f"{capital(statistics_used(equal))}.",
            "Factors fade equally fast in steps at all periods.",
            beside,
        ),
        seeds=named_seeds(losses["seed"]),
        data=from_runs(f"{trained.name}.csv", losses),
    )


def decide_sensitivity(trained: Trained, conditions: Sequence[Condition]) -> Decision:
    """Decide C18: MKOR's best accuracy, the mean over learning rates, minus each rival's, paired by seed.

    MKOR is the least sensitive if it is ahead of every rival; an inert one is not tested (`Trained.inert`). The paper
    counts rates that converge, without defining convergence: `analysis.lr_outcomes` does. Counts of fewer than six
    seeds have no interval that suits them; with one, a part is open where the two measures disagree: accuracy also
    counts how far rates come that are too small for so few steps. A seed counts if its runs at every rate have ended.

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
    ahead = _ahead(ended, trained.metrics, mkor)
    if lacking := [rival for rival in RIVALS if rival not in ahead]:
        return not_tested(f"{mkor} and {lacking[0]} share no seed that has ended at every learning rate.")
    parts = [
        trained.unless_inert(rival, _agreed(Part.judged(name, ahead[rival], conditions[0]), counts, mkor, rival))
        for rival, name in RIVALS.items()
    ]
    target = ended["target"].iloc[0]
    # The paper's own measure stands beside ours, so that a reader can compare the two.
    by_seed = (f"{label} {', '.join(str(counts[label][seed]) for seed in sorted(counts[label]))}" for label in labels)
    published_rates = ended[ended["lr"].isin(PUBLISHED_RATES)]
    is_wider = set(ended["lr"]) > set(PUBLISHED_RATES)
    at_published = _ahead(published_rates, trained.metrics, mkor) if is_wider else {}
    stated = "; ".join(f"{RIVALS[rival]} {with_interval(one)}" for rival, one in at_published.items())
    return Decision(
        tuple(parts),
        f"Best {target.split} {target.metric}, the mean over {ended['lr'].nunique()} learning rates, MKOR's minus each "
        f"rival's: {part_verdicts(parts)}.",
        sentences(
            f"{capital(statistics_used(parts))}; a run that diverged counts as the worst. The paper counts rates "
            "instead, without defining convergence.",
            f"The same at {', '.join(f'{rate:g}' for rate in PUBLISHED_RATES)} alone, the paper's rates: {stated}."
            if stated
            else "",
            f"Rates that reach {target.describe()}, by seed: {'; '.join(by_seed)}.",
            f"The count of {mkor} minus a rival's: {'; '.join(_differences(counts, mkor))}.",
            f"By rate: {'; '.join(_by_rate(ended, label) for label in labels)}.",
            left_out(runs),
        ),
        seeds=integer_ranges(counts[mkor]),
        data=from_runs(f"{trained.name}.runs.csv", ended) + from_runs(f"{trained.name}.csv", ended),
    )


def _ahead(ended: pd.DataFrame, metrics: pd.DataFrame, mkor: str) -> dict[str, Estimate]:
    """Return by rival how far MKOR's mean best value is ahead of its; above 0 favors MKOR, however the metric runs."""
    best = mean_best(ended, metrics)
    rises = ended["target"].iloc[0].direction == "above"
    found = {
        rival: paired_difference(*((best[mkor], best[rival]) if rises else (best[rival], best[mkor])))
        for rival in RIVALS
    }
    return {rival: difference for rival, difference in found.items() if difference is not None}


def _agreed(part: Part, counts: Mapping[str, Mapping[int, int]], mkor: str, rival: str) -> Part:
    """Return a part, open where the counts of converging rates have an interval and another verdict."""
    difference = paired_difference(counts[mkor], counts[rival])
    if part.condition is None or difference is None or difference.n < median_minimum():
        return part
    # The margin is one of accuracy.
    by_count = replace(part.condition, margin=None).judge(difference)
    if by_count == part.verdict or (part.verdict == "no difference" and difference.contains(0)):
        return part
    reason = f"{part.verdict} by accuracy, {by_count} by the count of converging rates"
    return replace(part, verdict="inconclusive", reason=reason)


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
