"""The A/A test of iterations: how often two halves of one label's runs seem to differ in their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from workflow.bench.analysis.estimates import looks
from workflow.bench.analysis.study_ratios import units_of
from workflow.bench.analysis.target_sweep import FINAL, Course, TargetSweep

DRAWS: Final = 200
"""Random divisions of a label's runs in two halves."""


class StepsAATest(NamedTuple):
    """Intervals of the ratio of steps of two halves of one label's runs, which is 1."""

    intervals: int
    excluding_1: int


def steps_aa_test(sweep: TargetSweep, label: str) -> StepsAATest:
    """Divide a label's runs at random in halves that are paired and compared as two labels are, many times over.

    Runs of one tuning study stay together, as they do where labels are compared. It takes four studies,
    or four runs of one study, to give an interval. The random numbers are the same in every call.
    """
    final = sweep.at(FINAL)
    course = final.courses[label]
    random, units = np.random.default_rng(0), [sorted(seeds) for seeds in units_of(course.runs).values()]
    # Two pairs at least: the seeds of a single pair of studies would count as independent.
    if len(units) < 4:
        return StepsAATest(0, 0)
    found = []
    for _ in range(DRAWS):
        order = random.permutation(len(units))
        pairs = [
            (first, second, float(number))
            for number, (one, other) in enumerate(zip(order[0::2], order[1::2], strict=False))
            for first, second in zip(units[one], units[other], strict=False)
        ]
        firsts, seconds, numbers = zip(*pairs, strict=True)
        halves = {"first": _half(course, firsts, numbers), "second": _half(course, seconds, numbers)}
        # The runs are tested once, however often the claims are looked at: always 95 %.
        with looks(1):
            ratio = replace(final, courses=halves).steps_ratio("first", "second").estimate
        if ratio is not None and ratio.has_interval:
            found.append(not ratio.contains(1))
    return StepsAATest(len(found), sum(found))


def _half(course: Course, seeds: Sequence[int], studies: Sequence[float]) -> Course:
    """Return the runs of some seeds as if their places were their seeds, with other numbers of studies."""
    runs = course.runs.set_index("seed").loc[[*seeds]].reset_index(drop=True)
    crossings = {place: course.crossings[seed] for place, seed in enumerate(seeds)}
    return Course(runs.assign(seed=range(len(seeds)), study=[*studies]), crossings)
