"""Seconds that ranks save by sharing what each of them, or the first one, used to do alone. Imports no torch.

``python -m benchmarks.rank_shares`` measures one rank, two, and the parts of the first and the last of 64. For other
numbers the seconds are a model: a part that every rank needs, and one that the ranks divide.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.data import imagenet
from workflow.bench.plan.plan import REFERENCE, Plan
from workflow.bench.plan.runs import Job
from workflow.bench.support.command_line import aligned
from workflow.bench.support.config import shown_path

_MEASURED: Final = "*/bench/rank_shares.csv"
_WORKS: Final = {"text": "draw", "imagenet": "evaluate"}
"""What ranks share of the work on a data set, as the measurements name it."""
_TITLES: Final = {"draw": "a step: drawing the batch", "evaluate": "an evaluation: reading the images"}
_MOST_READERS: Final = 16
"""The most processes that read images for a rank (`workflow.bench.data.images`)."""


class Allocation(NamedTuple):
    """Where an experiment's runs are trained."""

    ranks: int
    cores: int
    """Of each rank."""


class ExampleSeconds(NamedTuple):
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
    place: Allocation
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


Costs = dict[tuple[str, str, int], ExampleSeconds]
"""Costs by work, workload and size: the tokens of a sequence, or the pixels of a side."""


def measured() -> tuple[Path | None, Costs]:
    """Return the first machine's measurements, and their file; none in a copy without reference results."""
    file = min(REFERENCE.glob(_MEASURED), default=None)
    if file is None:
        return None, {}
    seconds: dict[tuple[str, str, int], dict[int, float]] = {}
    with file.open(newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            # The others are a control, and two ranks, which a test compares with the model.
            if row["contender"] in ("whole", "part"):
                of_work = seconds.setdefault((row["work"], row["workload"], int(row["size"])), {})
                of_work[int(row["ranks"])] = float(row["seconds"]) / int(row["examples"])
    costs = {}
    for key, by_ranks in seconds.items():
        # Two measurements, on one rank and of the part of one of many, determine the two parts of the cost.
        (one, alone), (many, part) = sorted(by_ranks.items())
        divided = (alone - part) / (1 / one - 1 / many)
        costs[key] = ExampleSeconds(alone - divided / one, divided)
    return file, costs


def savings(
    plan: Plan, place_of: Callable[[str], Allocation], costs: Costs, without: Collection[Job] = ()
) -> Iterator[Saving]:
    """Yield what each experiment's runs save, where the work was measured; a run that several share counts once.

    place_of: returns where an experiment is trained.
    without: jobs that do not count.
    """
    # A run that two experiments share is trained in the first of them.
    counted: set[str] = set()
    for name, experiment in plan.experiments.items():
        place = place_of(name)
        found: dict[tuple[str, float, float], tuple[int, int]] = {}
        jobs = [job for job in experiment.jobs.values() if place.ranks > 1 and job not in without]
        for run in (run for job in jobs for run in job.runs):
            workload, all_steps = run.spec["workload"], run.spec["steps"]
            work = _WORKS.get(workload["dataset"], "")
            size = workload.get("sequence_length", workload.get("image_size"))
            cost = costs.get((work, run.workload, size))
            if cost is not None and run.id not in counted:
                examples, at_once, times = workload["batch_size"], 1, all_steps
                if work == "evaluate":
                    # A core of each rank is busy with the training process; the untrained model is evaluated too.
                    examples, at_once = imagenet.VALIDATION_EXAMPLES, max(1, min(place.cores - 1, _MOST_READERS))
                    times = 1 + -(-all_steps // run.spec["evaluate_every"])
                key = work, cost.seconds(examples, 1) / at_once, cost.seconds(examples, place.ranks) / at_once
                number, steps = found.get(key, (0, 0))
                found[key] = number + times, steps + all_steps
            counted.add(run.id)
        for (work, alone, shared), (number, steps) in found.items():
            yield Saving(name, work, place, alone, shared, number, steps)


def lines(plan: Plan, place_of: Callable[[str], Allocation], without: Collection[Job] = ()) -> Iterator[str]:
    """Yield a table of the `savings`, and where its numbers are from; nothing if there are none."""
    file, costs = measured()
    found = list(savings(plan, place_of, costs, without))
    if file is None or not found:
        return
    yield "seconds that ranks save by sharing work that one rank, or each of them, did alone: reckoned for the ranks"
    yield f"and cores below from times of 1 and 2 ranks in {shown_path(file)}"
    rows: list[Sequence[str]] = [
        ("experiment", "of", "ranks", "cores", "alone", "shared", "saved", "times", "hours saved")
    ]
    for each in found:
        seconds = [f"{number:.2f}" for number in (each.alone, each.shared, each.alone - each.shared)]
        where = f"{each.place.ranks}", f"{each.place.cores}"
        rows.append((each.experiment, _TITLES[each.work], *where, *seconds, f"{each.times:,}", f"{each.hours:,.1f}"))
    yield from aligned(rows, names=2)
