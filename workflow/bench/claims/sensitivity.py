"""The claim about the learning rates at which MKOR converges: C18."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import paired_difference
from workflow.bench.analysis.lr_outcomes import converging_rates, outcomes
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
)
from workflow.bench.claims.time_to_target import target_of
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.sources import from_runs

CLIPS: Final = {"kaisa": "KAISA with clip", "kaisa_no_clip": "KAISA without clip"}
"""KAISA with its kl_clip, which shortens steps more at higher learning rates, and without it."""

_OTHERS: Final = ("hylo", "sgd")
_ABOVE_ZERO: Final = Condition("", ">", 0)


def decide_sensitivity(runs: pd.DataFrame) -> Decision:
    """Decide C18: the learning rates at which MKOR converges minus those of its best rival, paired by seed.

    The claim sets no number: MKOR's count is the largest if that difference is above 0. The claim is judged against
    KAISA with its clip and against KAISA without it, and needs both to agree. `analysis.lr_outcomes` defines what
    counts as converged; a seed counts if its runs at every rate have ended.
    """
    mkor = mkor_of(runs)
    labels = (mkor, *CLIPS, *_OTHERS)
    if lacks := lacking(runs, "resnet_cifar10_lr", labels):
        return not_tested(lacks)
    ended = outcomes(runs)
    counts = converging_rates(ended)
    if incomplete := [label for label in labels if label not in counts]:
        return not_tested(f"No seed of {', '.join(incomplete)} has ended at every learning rate.")
    parts, estimates, larger = [], [], []
    for clip, name in CLIPS.items():
        best = _best([counts[label] for label in (clip, *_OTHERS)])
        difference = paired_difference(counts[mkor], best)
        if difference is None:
            return not_tested(f"{mkor} and its rivals share no seed that has ended at every learning rate.")
        estimates.append(difference)
        parts.append(Part.judged(name, difference, _ABOVE_ZERO))
        shared = counts[mkor].keys() & best.keys()
        larger.append(f"{sum(counts[mkor][seed] > best[seed] for seed in shared)} of {len(shared)} seeds")
    by_seed = (
        f"{label} {', '.join(str(of_label[seed]) for seed in sorted(of_label))}" for label, of_label in counts.items()
    )
    return decided(
        parts,
        f"Of {ended['lr'].nunique()} learning rates, the number at which MKOR converges minus the best rival's: "
        f"{part_verdicts(parts)}.",
        sentences(
            f"{capital(statistics_used(estimates))}; MKOR's count is the larger in {' and '.join(larger)}.",
            f"Rates that reach {target_of(ended)}, by seed: {'; '.join(by_seed)}.",
            f"By rate: {'; '.join(_by_rate(ended, label) for label in counts)}.",
            left_out(runs),
        ),
        seeds=integer_ranges(counts[mkor]),
        data=from_runs("resnet_cifar10_lr.runs.csv", ended),
    )


def _best(rivals: list[dict[int, int]]) -> Mapping[int, int]:
    """Return the largest count of any rival, by seed, of the seeds that all rivals have."""
    return {seed: max(rival[seed] for rival in rivals) for seed in set.intersection(*map(set, rivals))}


def _by_rate(ended: pd.DataFrame, label: str) -> str:
    """Return the number of a label's converged runs at each learning rate: ``mkor 2 at 1, 3 at 0.1``."""
    converged = ended[(ended["optimizer"] == label) & (ended["outcome"] == "converged")]
    seeds = converged["lr"].value_counts()
    return f"{label} {', '.join(f'{seeds[lr]} at {lr:g}' for lr in sorted(seeds.index, reverse=True)) or 'none'}"
