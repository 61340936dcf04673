"""Claims about the scores after fine-tuning: C04 and C05.

All fine-tuning runs use the same method; a label names the optimizer of the pre-training that they start from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, paired_difference
from workflow.bench.analysis.finetuning_scores import averages, last_values, scores
from workflow.bench.analysis.wording import integer_ranges, number
from workflow.bench.claims.decision import (
    Decision,
    decided_alone,
    lacking,
    left_out,
    mkor_of,
    not_tested,
    position,
    sentences,
    statistics_used,
)
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.sources import from_runs


@dataclass(frozen=True)
class Averages:
    """One label's average score over all tasks."""

    by_seed: Mapping[int, float]
    """The seeds that ended every task; minus infinity if a run broke down."""
    broken: int
    """The number of runs that broke down. A comparison without them would favor the label."""


def _tasks(runs: pd.DataFrame) -> list[str]:
    """Return the tasks of fine-tuning runs; a run that was not begun does not state its own."""
    return sorted(runs["dataset"].dropna().unique())


def averages_of(metrics: pd.DataFrame, runs: pd.DataFrame, label: str) -> Averages:
    """Return a label's averages from rows of ``<experiment>.csv`` and ``<experiment>.runs.csv``."""
    of_label = runs[runs["optimizer"] == label]
    last = last_values(metrics, "score")
    by_task = [scores(of_label[of_label["dataset"] == task], last) for task in _tasks(runs)]
    broken = sum(math.isinf(value) for task in by_task for value in task.values())
    return Averages(averages(by_task), broken)


def _listed(by_label: Mapping[str, Averages], seeds: Sequence[int]) -> str:
    """Return every label's averages by seed: ``mkor 0.8, 0.8; lamb 0.7, broke down``."""
    return "; ".join(
        f"{label} {', '.join(_score(of_label.by_seed[seed]) for seed in seeds)}" for label, of_label in by_label.items()
    )


def _score(average: float) -> str:
    return "broke down" if math.isinf(average) else number(average, 4)


def average_difference(
    metrics: pd.DataFrame, runs: pd.DataFrame, condition: Condition, contender: str, reference: str
) -> Decision:
    """Decide by the contender's average over the fine-tuning tasks minus the reference's, paired by seed."""
    if lacks := lacking(runs, "bert_glue", (contender, reference)):
        return not_tested(lacks)
    by_label = {label: averages_of(metrics, runs, label) for label in (contender, reference)}
    difference = paired_difference(by_label[contender].by_seed, by_label[reference].by_seed)
    tasks = _tasks(runs)
    if difference is None:
        return not_tested(f"No seed finished all of {', '.join(tasks)} from both {contender} and {reference}.")
    used = runs[runs["optimizer"].isin((contender, reference))]
    seeds = sorted(by_label[contender].by_seed.keys() & by_label[reference].by_seed.keys())
    broken = sum(of_label.broken for of_label in by_label.values())
    average = f"The average score over {len(tasks)} tasks after fine-tuning, {contender}'s minus {reference}'s,"
    return decided_alone(
        difference,
        condition,
        f"{average} {_reason(difference, condition, broken)}.",
        sentences(
            f"Tasks: {', '.join(tasks)}; by the optimizer of pre-training ({statistics_used([difference])}): "
            f"{_listed(by_label, seeds)}.",
            left_out(used),
        ),
        seeds=integer_ranges(seeds),
        data=from_runs("bert_glue.runs.csv", used),
        # Without the runs that broke down, the label whose runs did would look better than it is.
        verdict="inconclusive" if broken else None,
    )


def _reason(difference: Estimate, condition: Condition, broken: int) -> str:
    return f"lacks {broken} of their runs, which broke down" if broken else position(difference, condition)


def decide_glue_average(
    metrics: pd.DataFrame, runs: pd.DataFrame, conditions: Sequence[Condition], *, contender: str
) -> Decision:
    """Decide C04 (contender ``mkor``) or C05 (``kaisa``): the average over the tasks minus LAMB's.

    Args:
        metrics: rows of ``bert_glue.csv``.
        runs: rows of ``bert_glue.runs.csv``.
        conditions: the claim's thresholds.
        contender: the optimizer that the claim is about.
    """
    label = mkor_of(runs) if contender == "mkor" else contender
    return average_difference(metrics, runs, conditions[0], label, "lamb")
