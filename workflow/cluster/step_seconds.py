"""The seconds of a step that a plan assumes, and where they are from. Imports no torch.

In this order: those that a pilot job measured (`workflow.cluster.pilot`), those of the cluster's file, and those of a
model. The model is that of the base optimizer's step: the larger of its operations over 40 % of the GPU's rate and its
kernels' launches, then the exchange of gradients and the update; it knows nothing of reading data.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, get_type_hints

from workflow.bench.plan import Plan
from workflow.bench.plan.runs import PLAIN_PRECISION, Run
from workflow.bench.plan.step_costs import shape_of, step_costs
from workflow.bench.probes import _links
from workflow.bench.probes._costs import FLOAT, CostedLayer, adamw
from workflow.bench.support.config import ROOT
from workflow.cluster.settings import Cluster

LAUNCH_SECONDS: Final = 10e-6
"""Time in which the host starts one kernel from Python."""
FAR: Final = 2.0
"""The ratio to the model from which a guess is doubtful."""
PILOT: Final = "pilot.csv"
"""The file in a plan's folder of results with the seconds that the pilot measured."""
PUBLISHED: Final = ROOT / "workflow" / "paper" / "squad.csv"


class MeasuredSteps(NamedTuple):
    """The row of one experiment in the pilot's file."""

    experiment: str
    label: str
    workload: str
    """`shape_of` its workload: times of another are not taken."""
    examples: int
    """Of a rank in a step."""
    ranks: int
    steps: int
    step_seconds: float
    date: str
    hardware: str
    processor: str


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of a step of one experiment."""

    seconds: float
    source: str
    kind: str
    """``pilot``, ``file``, ``guess`` or ``model``."""
    model: float | None
    """The model's seconds; None without a model."""

    @property
    def is_doubtful(self) -> bool:
        """Whether it is a guess that differs from the model more than `FAR` times."""
        if self.kind != "guess" or self.model is None:
            return False
        return not self.model / FAR <= self.seconds <= self.model * FAR


def step_seconds(plan: Plan, cluster: Cluster) -> dict[str, StepSeconds]:
    """Return the seconds of a step of every experiment of a plan."""
    measured = read_pilot(plan.results / PILOT)
    return {name: _of_experiment(plan, cluster, name, measured.get(name)) for name in plan.experiments}


def _of_experiment(plan: Plan, cluster: Cluster, name: str, pilot: MeasuredSteps | None) -> StepSeconds:
    runs = [run for job in plan.experiments[name].jobs.values() for run in job.runs]
    need = cluster.training(name)
    model = model_seconds(runs[0], cluster, need.ranks) if runs else None
    workload = runs[0].spec["workload"] if runs else {}
    # A measurement counts for this workload alone, with as many examples for each rank.
    if pilot and runs and (pilot.workload, pilot.examples * need.ranks) == (shape_of(workload), workload["batch_size"]):
        source = f"measured pilot, {pilot.date}, {pilot.ranks} ranks of {pilot.processor}, {pilot.label}"
        return StepSeconds(pilot.step_seconds, source, "pilot", model)
    if need.step_seconds is not None and need.step_source is not None:
        return StepSeconds(need.step_seconds, need.step_source, "file", model)
    if need.step_seconds is not None:
        return StepSeconds(need.step_seconds, "a guess", "guess", model)
    if model is None:
        # An experiment whose workload nobody counted takes the seconds of `default`.
        default = cluster.trainings["default"].step_seconds
        assert default is not None
        return StepSeconds(default, "a guess, of 'default'", "guess", None)
    return StepSeconds(model, "the model", "model", model)


def model_seconds(run: Run, cluster: Cluster, ranks: int) -> float | None:
    """Return the model's seconds of the base optimizer's step; None without a system or a count of the workload."""
    cost = step_costs().get(shape_of(run.spec["workload"]))
    if cost is None or cluster.system is None or not cluster.gpus_per_node:
        return None
    system = system_of(cluster)
    # TF32 for float32: convolutions compute in it.
    rate = system.gpu.tf32 if run.precision == PLAIN_PRECISION else system.gpu.bfloat16
    examples = run.spec["workload"]["batch_size"] / ranks
    launches = cost.kernels * max(1.0, run.accumulation_steps / ranks) * LAUNCH_SECONDS
    compute = examples * cost.operations / (rate * system.assumed.products)
    gradients = _links.all_reduce_seconds(system, ranks, FLOAT * cost.parameters)
    update = adamw(CostedLayer(cost.parameters, 1)).bytes / (system.gpu.bandwidth * system.assumed.memory)
    return max(compute, launches) + gradients + update


def system_of(cluster: Cluster) -> _links.System:
    """Return the system whose speeds a cluster's file names."""
    return next(system for system in _links.systems() if system.name == cluster.system)


def read_pilot(file: Path) -> Mapping[str, MeasuredSteps]:
    """Return the pilot's rows by experiment; none if there is no file, or it is not one that the pilot wrote."""
    try:
        with file.open(newline="", encoding="utf-8") as rows:
            kinds = get_type_hints(MeasuredSteps)
            made = [
                MeasuredSteps(**{key: kind(row[key]) for key, kind in kinds.items()}) for row in csv.DictReader(rows)
            ]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {row.experiment: row for row in made if row.step_seconds > 0}


class Paper(NamedTuple):
    """The paper's step of BERT's second phase, and the model's."""

    seconds: float
    share_of_peak: float
    model: float


PAPER_RANKS: Final = 64
PAPER_BATCH: Final = 32768


def papers_step(plan: Plan, cluster: Cluster) -> Paper | None:
    """Return the step of LAMB by the paper's Table 2 and by the model; None if the plan has not the paper's batch."""
    name = "bert_pretraining"
    runs = [run for job in plan.experiments[name].jobs.values() for run in job.runs] if name in plan.experiments else []
    if not runs or runs[0].spec["workload"]["batch_size"] != PAPER_BATCH or cluster.training(name).ranks != PAPER_RANKS:
        return None
    model = model_seconds(runs[0], cluster, PAPER_RANKS)
    if model is None:
        return None
    with PUBLISHED.open(newline="", encoding="utf-8") as rows:
        (lamb,) = (row for row in csv.DictReader(rows) if row["optimizer"] == "LAMB")
    seconds = 3600 * float(lamb["time_h"]) / int(lamb["iterations"])
    operations = step_costs()[shape_of(runs[0].spec["workload"])].operations * PAPER_BATCH / PAPER_RANKS
    return Paper(seconds, operations / seconds / system_of(cluster).gpu.bfloat16, model)
