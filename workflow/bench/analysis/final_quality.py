"""Ratios of two optimizers' steps or seconds to their base's final quality, over its targets, and break-even overheads.

The paper claims that an optimizer reaches what its base ends at in fewer steps or less time. So that is judged: the
target that the base reaches after 90 % of its steps. The mean over all targets and the last one stand beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import FINAL, SweptRatio, TargetSweep
from workflow.bench.analysis.wording import estimated, number

Outcome = Literal["wins", "loses", "open"]


class Views(NamedTuple):
    """A ratio of two labels' steps or seconds at the base's final quality, over all of its targets, and at the last."""

    final: SweptRatio
    mean: SweptRatio
    last: SweptRatio

    @classmethod
    def of(cls, sweep: TargetSweep, above: str, below: str, times: StepTimes | None = None) -> Views:
        """Return the views of the ratio of two labels' seconds or, without times, steps.

        Raises:
            NoSweepError: the target at the base's final quality was dropped.
        """
        return cls(*(part.ratio(above, below, times) for part in (sweep.at(FINAL), sweep, sweep.last())))


def final_limit(sweep: TargetSweep) -> str:
    """Return the base's final quality in words: ``what lamb reaches after 90 % of its steps, a validation loss of 2``.

    Raises:
        NoSweepError: the target was dropped.
    """
    goal = sweep.at(FINAL).goal
    quality = f"{goal.split} {goal.metric} of {goal.limit:.3g}"
    return f"what {sweep.base} reaches after {100 * FINAL:.0f} % of its steps, a {quality}"


@dataclass(frozen=True)
class BreakEven:
    """What a step of one label may cost, in multiples of another's, and what it costs on a machine that timed both.

    The limit carries over to other machines, as iterations do; milliseconds of a small model do not.
    """

    limit: Estimate
    """The other label's iterations to final quality over the label's own: a step that costs less saves time."""
    measured: float | None = None
    """What the label's step costs, in multiples of the other's; None where the machine could not time them."""
    outcome: Outcome | None = None
    """Whether the label needs less time, in the whole interval of the ratio of times."""

    @property
    def needs(self) -> str:
        """What it may cost in words: ``< 1.67 [1.5, 1.8]``."""
        return f"< {estimated(self.limit)}"

    @property
    def here(self) -> str:
        """What it costs and what follows: ``1.41: wins``; ``not timed`` if that is not known."""
        return "not timed" if self.measured is None else f"{number(self.measured)}: {self.outcome}"

    def __str__(self) -> str:
        return self.needs if self.measured is None else f"{self.needs}, here {self.here}"


def break_even(final: TargetSweep, times: StepTimes, label: str, rival: str) -> BreakEven | None:
    """Return what a step of a label may cost, in multiples of a rival's; None if neither reached the target.

    final: a sweep of the target at the base's final quality.
    """
    limit = final.steps_ratio(rival, label).estimate
    if limit is None:
        return None
    if times.problem(*final.training(rival).labels, *final.training(label).labels):
        return BreakEven(limit)
    time = final.time_ratio(times, rival, label).estimate
    # A ratio of times, not two numbers: where a run missed the target, its iterations are a bound on one side only.
    outcome: Outcome = "open"
    if time is not None and time.has_interval:
        outcome = "wins" if time.low > 1 else "loses" if time.high < 1 else "open"
    return BreakEven(limit, _step_ratio(final, times, label, rival), outcome)


def _step_ratio(final: TargetSweep, times: StepTimes, label: str, rival: str) -> float:
    """Return the time of a label's step over that of a rival's, means on their way to the target of a sweep.

    After a switch (MKOR-H), steps are those of the base optimizer.
    """
    trainings = {one: final.training(one) for one in (label, rival)}
    ms = times.by_label(*(timed for training in trainings.values() for timed in training.labels))
    means = []
    for one, training in trainings.items():
        course = final.courses[one]
        seeds = sorted(course.crossings)
        (taken,) = course.steps(seeds)
        steps = np.where(np.isfinite(taken), taken, course.budgets(seeds))
        means.append(float(training.cost(steps, seeds, ms).mean() / steps.mean()))
    return means[0] / means[1]
