"""The claim about the learning rates at which MKOR converges: C18."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import median_minimum, paired_difference
from workflow.bench.analysis.lr_outcomes import converging_rates, mean_best, outcomes
from workflow.bench.analysis.wording import capital, integer_ranges
from workflow.bench.claims.decision import (
    Decision,
    Part,
    decided,
    lacking,
    left_out,
    mkor_of,
    not_tested,
    part_verdicts,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.claims.swept import Trained
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.sources import from_runs

RIVALS: Final = {"kaisa": "KAISA with clip", "kaisa_no_clip": "KAISA without clip", "hylo": "HyLo", "sgd": "SGD"}
"""The rivals' labels and names; KAISA's kl_clip shortens steps more at higher learning rates."""


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
    if lacks := lacking(runs, trained.name, labels):
        return not_tested(lacks)
    ended = outcomes(runs[runs["optimizer"].isin(labels)])
    counts = converging_rates(ended)
    if incomplete := [label for label in labels if label not in counts]:
        return not_tested(f"No seed of {', '.join(incomplete)} has ended at every learning rate.")
    best = mean_best(ended, trained.metrics)
    target = ended["target"].iloc[0]
    parts = []
    for rival, name in RIVALS.items():
        ahead = (best[mkor], best[rival]) if target.direction == "above" else (best[rival], best[mkor])
        difference = paired_difference(*ahead)
        if difference is None:
            return not_tested(f"{mkor} and {rival} share no seed that has ended at every learning rate.")
        parts.append(Part.judged(name, difference, conditions[0]))
    by_seed = (f"{label} {', '.join(str(counts[label][seed]) for seed in sorted(counts[label]))}" for label in labels)
    return decided(
        parts,
        f"Best {target.split} {target.metric}, the mean over {ended['lr'].nunique()} learning rates, MKOR's minus each "
        f"rival's: {part_verdicts(parts)}.",
        sentences(
            f"{capital(statistics_used(part.estimate for part in parts if part.estimate))}; a run that diverged counts "
            "as untrained. The paper counts rates instead, without defining convergence.",
            f"Rates that reach {target.describe()}, by seed: {'; '.join(by_seed)}.",
            f"The count of {mkor} minus a rival's: {'; '.join(_differences(counts, mkor))}.",
            f"By rate: {'; '.join(_by_rate(ended, label) for label in labels)}.",
            left_out(runs),
        ),
        seeds=integer_ranges(counts[mkor]),
        data=from_runs(f"{trained.name}.runs.csv", ended) + from_runs(f"{trained.name}.csv", ended),
    )


def _differences(counts: Mapping[str, Mapping[int, int]], mkor: str) -> Iterable[str]:
    """Yield the difference of the counts of converging rates for every rival, with an interval that suits counts."""
    for rival, name in RIVALS.items():
        shared = sorted(counts[mkor].keys() & counts[rival].keys())
        differences = [counts[mkor][seed] - counts[rival][seed] for seed in shared]
        if len(shared) >= median_minimum():
            median = paired_difference(counts[mkor], counts[rival])
            yield f"{name} {with_interval(median) if median else ''}"
        else:
            yield f"{name} {', '.join(map(str, differences))}"


def _by_rate(ended: pd.DataFrame, label: str) -> str:
    """Return the number of a label's converged runs at each learning rate: ``mkor 2 at 1, 3 at 0.1``."""
    converged = ended[(ended["optimizer"] == label) & (ended["outcome"] == "converged")]
    seeds = converged["lr"].value_counts()
    return f"{label} {', '.join(f'{seeds[lr]} at {lr:g}' for lr in sorted(seeds.index, reverse=True)) or 'none'}"
