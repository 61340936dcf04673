"""Seconds that ranks save by sharing what each of them, or the first one, used to do alone. Imports no torch.

``python -m benchmarks.rank_shares`` measures one rank, two, and the parts of the first and the last of 64. For other
numbers the seconds are a model: a part that every rank needs, and one that the ranks divide.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.data import imagenet
from workflow.bench.plan.plan import REFERENCE, Plan
from workflow.bench.plan.runs import Job, Run
from workflow.bench.support.columns import aligned
from workflow.bench.support.config import shown_path

_MEASURED: Final = "*/bench/rank_shares.csv"
_WORKS: Final = {"text": "draw", "imagenet": "evaluate"}
"""What ranks share of the work on a data set, as the measurements name it."""
_TITLES: Final = {"draw": "a step: drawing the batch", "evaluate": "an evaluation: reading the images"}
_MOST_READERS: Final = 16
"""The most processes that read images for a rank (`workflow.bench.data.images`)."""


class Place(NamedTuple):
    """Where an experiment's runs are trained."""

    ranks: int
    cores: int
    """Of each rank."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one example on one core: those that every rank needs, and those that the ranks divide."""

    fixed: float
    divided: float

    def seconds(self, examples: int, ranks: int) -> float:
        """Return the seconds of so many examples in all, shared by ``ranks``."""
        return examples * (self.fixed + self.divided / ranks)


@dataclass(frozen=True)
class Saving:
    """What one experiment's runs save in one work."""

    experiment: str
    work: str
    place: Place
    alone: float
    """Seconds of the work if ranks do not share it."""
    shared: float
    times: int
    """How often all runs together do the work."""
    steps: int
    """Steps of all runs together."""

    @property
    def step_seconds(self) -> float:
        """Seconds of the shared work for each step of training."""
        return self.shared * self.times / self.steps

    @property
    def hours(self) -> float:
        """Hours that all runs save, one after the other."""
        return (self.alone - self.shared) * self.times / 3600


Costs = dict[tuple[str, str, int], Cost]
"""Costs by work, workload and size: the tokens of a sequence, or the pixels of a side."""


def measured() -> tuple[Path | None, Costs]:
    """Return the first machine's measurements, and their file; none in a copy without reference results."""
    file = min(REFERENCE.glob(_MEASURED), default=None)
    if file is None:
        return None, {}
    seconds: dict[tuple[str, str, int], dict[int, float]] = {}
    with file.open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if row["contender"] in ("whole", "part"):
                of_work = seconds.setdefault((row["work"], row["workload"], int(row["size"])), {})
                of_work[int(row["ranks"])] = float(row["seconds"]) / int(row["examples"])
    return file, {key: _fitted(of_work) for key, of_work in seconds.items()}


def _fitted(seconds: dict[int, float]) -> Cost:
    """Return the cost with the seconds of an example that were measured on one rank, and for the part of another."""
    (one, alone), (many, part) = sorted(seconds.items())
    divided = (alone - part) / (1 / one - 1 / many)
    return Cost(alone - divided / one, divided)


def savings(
    plan: Plan, place_of: Callable[[str], Place], costs: Costs, without: Collection[Job] = ()
) -> Iterator[Saving]:
    """Yield what each experiment's runs save, where the work was measured; a run that several share counts once.

    place_of: returns where an experiment is trained.
    without: jobs that do not count.
    """
    counted: set[str] = set()
    for name, experiment in plan.experiments.items():
        place = place_of(name)
        times: dict[tuple[str, float, float], tuple[int, int]] = {}
        jobs = [job for job in experiment.jobs.values() if place.ranks > 1 and job not in without]
        for run in (run for job in jobs for run in job.runs):
            if run.id not in counted and (found := _seconds(run, place, costs)) is not None:
                number, steps = times.get(found[:3], (0, 0))
                times[found[:3]] = number + found[3], steps + run.spec["steps"]
            counted.add(run.id)
        for (work, alone, shared), (number, steps) in times.items():
            yield Saving(name, work, place, alone, shared, number, steps)


def _seconds(run: Run, place: Place, costs: Costs) -> tuple[str, float, float, int] | None:
    """Return a run's work, its seconds alone and shared, and how often the run does it; None if it was not measured."""
    workload = run.spec["workload"]
    work = _WORKS.get(workload["dataset"], "")
    size = workload.get("sequence_length", workload.get("image_size"))
    cost = costs.get((work, run.workload, size))
    if cost is None:
        return None
    steps, every = run.spec["steps"], run.spec["evaluate_every"]
    if work == "draw":
        examples, at_once, times = workload["batch_size"], 1, steps
    else:
        # One core of a rank is busy with the training process; the untrained model is evaluated too.
        examples, at_once = imagenet.VALIDATION_EXAMPLES, max(1, min(place.cores - 1, _MOST_READERS))
        times = 1 + -(-steps // every)
    return work, cost.seconds(examples, 1) / at_once, cost.seconds(examples, place.ranks) / at_once, times


def lines(plan: Plan, place_of: Callable[[str], Place], without: Collection[Job] = ()) -> Iterator[str]:
    """Yield a table of the `savings`, and where its numbers are from; nothing if there are none."""
    file, costs = measured()
    found = list(savings(plan, place_of, costs, without))
    if file is None or not found:
        return
    yield "seconds that ranks save by sharing work that one rank, or each of them, did alone: reckoned for the ranks"
    yield f"and cores below from times of 1 and 2 ranks in {shown_path(file)}"
    heads = ("experiment", "of", "ranks", "cores", "alone", "shared", "saved", "times", "hours saved")
    cells = [
        (
            each.experiment,
            _TITLES[each.work],
            f"{each.place.ranks}",
            f"{each.place.cores}",
            f"{each.alone:.2f}",
            f"{each.shared:.2f}",
            f"{each.alone - each.shared:.2f}",
            f"{each.times:,}",
            f"{each.hours:,.1f}",
        )
        for each in found
    ]
    yield from aligned([heads, *cells], names=2)
