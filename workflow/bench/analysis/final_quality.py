"""Ratios of two optimizers' steps or seconds to their base's final quality, over its targets, and break-even overheads.

The paper claims that an optimizer reaches what its base ends at in fewer steps or less time. So that is judged: the
target that the base reaches after 90 % of its steps. The mean over all targets and the last one stand beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import FINAL, SweptRatio, TargetSweep
from workflow.bench.analysis.wording import number

Outcome = Literal["wins", "loses", "open"]


@dataclass(frozen=True)
class Views:
    """A ratio of two labels' steps or seconds at the base's final quality, over all of its targets, and at the last."""

    final: SweptRatio
    mean: SweptRatio
    last: SweptRatio

    @classmethod
    def of(cls, sweep: TargetSweep, ratio: Callable[[TargetSweep], SweptRatio]) -> Views:
        """Return the views that a function of a sweep gives.

        Raises:
            NoSweepError: the target at the base's final quality was dropped.
        """
        return cls(ratio(sweep.at(FINAL)), ratio(sweep), ratio(sweep.last()))

    @classmethod
    def of_steps(cls, sweep: TargetSweep, above: str, below: str) -> Views:
        """Return the views of the ratio of two labels' steps; see `of`."""
        return cls.of(sweep, lambda part: part.steps_ratio(above, below))

    @classmethod
    def of_time(cls, sweep: TargetSweep, times: StepTimes, above: str, below: str) -> Views:
        """Return the views of the ratio of two labels' seconds; see `of`."""
        return cls.of(sweep, lambda part: part.time_ratio(times, above, below))

    def __iter__(self) -> Iterator[SweptRatio]:
        """Iterate over the ratios: final quality, mean over the targets, last target."""
        return iter((self.final, self.mean, self.last))


def final_limit(sweep: TargetSweep) -> str:
    """Return the base's final quality in words: ``what lamb reaches after 90 % of its steps, a validation loss of 2``.

    Raises:
        NoSweepError: the target was dropped.
    """
    goal = sweep.at(FINAL).goal
    quality = f"{goal.split} {goal.metric} of {goal.limit:.3g}"
    return f"what {sweep.base} reaches after {100 * FINAL:.0f} % of its steps, a {quality}"


def step_ratio(sweep: TargetSweep, times: StepTimes, label: str, rival: str) -> float:
    """Return the time of a label's step over that of a rival's, means on their way to the last target of a sweep.

    After a switch (MKOR-H), steps are those of the base optimizer.
    """
    trainings = {one: sweep.training(one) for one in (label, rival)}
    ms = times.by_label(*(timed for training in trainings.values() for timed in training.labels))
    means = []
    for one, training in trainings.items():
        course = sweep.courses[one]
        seeds = sorted(course.crossings)
        last = course.steps(seeds)[-1]
        steps = np.where(np.isfinite(last), last, course.budgets(seeds))
        means.append(float(training.cost(steps, seeds, ms).mean() / steps.mean()))
    return means[0] / means[1]


def outcome(limit: Estimate, measured: float) -> Outcome:
    """Return whether a label whose step costs ``measured`` times a rival's needs less time than the rival.

    limit: the rival's iterations over the label's.
    """
    if limit.low > measured:
        return "wins"
    # Without an interval all comparisons are false.
    return "loses" if limit.high < measured else "open"


def break_even(limit: Estimate, measured: float | None) -> str:
    """Return a break-even overhead in words: ``< 1.67 [1.5, 1.8], here 1.41: wins``.

    It is the number of times that a step may cost what a rival's costs: the ratio of their iterations.

    measured: what it costs on this machine; None if nobody knows.
    """
    interval = f" [{number(limit.low)}, {number(limit.high)}]" if limit.has_interval else ""
    here = "" if measured is None else f", here {number(measured)}: {outcome(limit, measured)}"
    return f"< {number(limit.value)}{interval}{here}"
