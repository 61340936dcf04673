"""Claims about the scores after fine-tuning: C04 and C05.

All fine-tuning runs use the same method; a label names the optimizer of the pre-training that they start from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import Estimate, estimate, seeds_needed, studies_of, units_over_studies
from workflow.bench.analysis.finetuning_scores import averages, last_values, scores
from workflow.bench.analysis.wording import integer_ranges, number
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    Trained,
    left_out,
    mkor_of,
    not_tested,
    position,
    sentences,
    statistics_used,
)
from workflow.bench.results.sources import from_runs


def _tasks(runs: pd.DataFrame) -> list[str]:
    """Return the tasks of fine-tuning runs; a run that was not begun does not state its own."""
    return sorted(runs["dataset"].dropna().unique())


def averages_of(trained: Trained, label: str) -> dict[int, float]:
    """Return a label's average score over the tasks of an experiment, by seed; minus infinity if a run broke down.

    Of the seeds that ended every task.
    """
    of_label, last = trained.of_labels(label), last_values(trained.metrics, "score")
    # Tasks first, then seeds: the interval is about other seeds, not about other tasks.
    return averages([scores(of_label[of_label["dataset"] == task], last) for task in _tasks(trained.runs)])


def average_difference(
    glue: Trained, condition: Condition, contender: str, reference: str, published: float | None = None
) -> Decision:
    """Decide by the contender's average over the fine-tuning tasks minus the reference's, paired by seed.

    Seeds whose pre-training has the values of one tuning study are not independent: its rate shifts all their scores.
    A run that broke down counts as the worst.

    Args:
        glue: the fine-tuning.
        condition: the claim's threshold.
        contender: the label of the first optimizer of pre-training.
        reference: that of the second.
        published: the published difference; the reason of a verdict that stays open says that the interval excludes it,
            or how many studies or seeds would show it.
    """
    if lacks := glue.lacking(contender, reference):
        return not_tested(lacks)
    by_label = {label: averages_of(glue, label) for label in (contender, reference)}
    seeds, tasks = sorted(by_label[contender].keys() & by_label[reference].keys()), _tasks(glue.runs)
    differences = {seed: by_label[contender][seed] - by_label[reference][seed] for seed in seeds}
    studies = studies_of(*map(glue.of_labels, (contender, reference)))
    units = units_over_studies(differences, studies)
    if not len(units):
        return not_tested(f"No seed finished all of {', '.join(tasks)} from both {contender} and {reference}.")
    difference = estimate(units)
    part, why = Part.judged("", difference, condition), position(difference, condition)
    used = glue.of_labels(contender, reference)
    broken = int(np.isinf(last_values(glue.metrics, "score").reindex(used["run"])).sum())
    if part.verdict == "inconclusive" and published:
        of_what = "studies" if len({studies.get(seed) for seed in seeds}) > 1 else "seeds"
        why += _beside(published, difference, units, of_what)
    listed = "; ".join(
        f"{label} {', '.join(_score(of_label[seed]) for seed in seeds)}" for label, of_label in by_label.items()
    )
    return Decision(
        (part,),
        f"The average score over {len(tasks)} tasks after fine-tuning, {contender}'s minus {reference}'s, {why}.",
        sentences(
            f"{broken} runs broke down, and count as the worst." if broken else "",
            f"Tasks: {', '.join(tasks)}; by the optimizer of pre-training ({statistics_used([difference])}): {listed}.",
            left_out(used),
        ),
        integer_ranges(seeds),
        data=from_runs(f"{glue.name}.runs.csv", used),
    )


def _beside(published: float, difference: Estimate, units: NDArray[np.float64], of_what: str) -> str:
    """Return the end of a sentence on an interval that holds no difference: whether it holds the published one, too."""
    if difference.has_interval and not difference.contains(published):
        return f" and the published {number(published)} outside"
    if np.isfinite(units).sum() < 2:
        return ""
    needed = f"{seeds_needed(units, abs(published))} {of_what}, of {len(units)}"
    return f"; to see the published {number(published)} in 80 % of cases takes about {needed}"


def _score(average: float) -> str:
    return "broke down" if math.isinf(average) else number(average, 4)


def decide_glue_average(
    glue: Trained, conditions: Sequence[Condition], contender: str, published: float | None = None
) -> Decision:
    """Decide C04 (contender ``mkor``) or C05 (``kaisa``): the average over the tasks of ``bert_glue`` minus LAMB's.

    published: the published difference.
    """
    # KAISA has one rule; of MKOR's three, the paper's tier is about the one that made its numbers.
    label = mkor_of(glue.runs) if contender == "mkor" else contender
    return average_difference(glue, conditions[0], label, "lamb", published=published)
