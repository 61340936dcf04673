"""What the ladder, batch sizes and widths share: ratios of iterations by tuning study, their independent units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from workflow.bench.analysis.estimates import studies_of
from workflow.bench.analysis.target_sweep import Course, TargetSweep
from workflow.bench.results.tables import NoDataError, Results


def log_ratios(sweep: TargetSweep, above: str, below: str) -> dict[int, float]:
    """Return the logarithm of the ratio of two labels' steps (`TargetSweep.steps_ratio`) by tuning study.

    By seed where fewer than two studies tuned them. What `TargetSweep.steps_ratio` estimates from all seeds is their
    mean. A study in which no pair of runs reaches a target is left out.
    """
    ratios = {}
    for unit, seeds in units_of(*(sweep.courses[label].runs for label in (below, above))).items():
        part = _of_seeds(sweep, seeds, above, below)
        if (found := part.steps_ratio(above, below).estimate) is not None:
            ratios[unit] = math.log(found.value)
    return ratios


def units_of(*runs: pd.DataFrame) -> dict[int, set[int]]:
    """Return the seeds of each tuning study, from rows of labels that are paired by seed; fewer than two: of each seed.

    Only seeds that all labels have count.
    """
    shared = set.intersection(*(set(rows["seed"].astype(int)) for rows in runs))
    studies = studies_of(*runs)
    known = {int(studies[seed]) for seed in shared if seed in studies}
    if len(known) < 2:
        return {seed: {seed} for seed in sorted(shared)}
    return {study: {seed for seed in shared if studies.get(seed) == study} for study in sorted(known)}


def without_each_study(sweep: TargetSweep, above: str, below: str) -> list[TargetSweep]:
    """Return the sweep of two labels without the seeds of each tuning study in turn; none of fewer than three."""
    runs = [sweep.courses[label].runs for label in (above, below)]
    units = units_of(*runs) if len(set(studies_of(*runs).values())) > 2 else {}
    rests = (set().union(*(units[one] for one in units if one != left_out)) for left_out in units)
    return [_of_seeds(sweep, rest, above, below) for rest in rests]


def _of_seeds(sweep: TargetSweep, seeds: set[int], *labels: str) -> TargetSweep:
    """Return the sweep of some seeds of some labels."""

    def of_course(course: Course) -> Course:
        kept = {seed: crossings for seed, crossings in course.crossings.items() if seed in seeds}
        return replace(course, runs=course.runs[course.runs["seed"].isin(seeds)], crossings=kept)

    return replace(sweep, courses={label: of_course(sweep.courses[label]) for label in labels})


def nothing_to_compare(results: Results, experiment: str, left_out: Sequence[str]) -> NoDataError:
    """Return the error of an experiment whose runs cannot be compared; left_out: why, a clause for each part of it."""
    because = f": {'; '.join(left_out)}" if left_out else ""
    return NoDataError(f"no runs of {experiment} in {results.root} can be compared{because}.")
