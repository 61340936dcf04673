"""What the bench trains: a run and its id, and how jobs, experiments and tuning group runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from workflow.bench.plan.targets import Target

Spec = dict[str, Any]

#: The precision that a spec leaves out.
PLAIN_PRECISION: Final = "float32"


def run_id(spec: Spec) -> str:
    """Return the id of a run: the hash of its resolved spec."""
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """One training run: all that its numbers depend on but code and hardware.

    ``spec`` holds tier, workload (with all its parameters), data_version, steps, evaluate_every, seed, schedule,
    start_from (a run's id, or None) and optimizer (name and hyperparameters, with their defaults); precision and
    micro_batch_size where they are not float32 and the whole batch.
    """

    spec: Spec = field(compare=False)
    upstream: Run | None = field(default=None, compare=False)
    """The run whose final weights it starts from, `start_from`."""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", run_id(self.spec))

    @property
    def workload(self) -> str:
        """The workload's name."""
        return self.spec["workload"]["name"]

    @property
    def method(self) -> str:
        """The optimizer's file name."""
        return self.spec["optimizer"]["name"]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The optimizer's hyperparameters, defaults included."""
        return self.spec["optimizer"]["hyperparameters"]

    @property
    def seed(self) -> int:
        """The seed of data order and initial weights."""
        return self.spec["seed"]

    @property
    def start_from(self) -> str | None:
        """The id of the run whose final weights it starts from."""
        return self.spec["start_from"]

    @property
    def lineage(self) -> tuple[Spec, ...]:
        """The specs that its numbers depend on: its own, and those of the runs that it starts from."""
        return (self.spec, *(self.upstream.lineage if self.upstream else ()))

    @property
    def precision(self) -> str:
        """What forward passes compute in: float32, bfloat16 or float16."""
        return self.spec.get("precision", PLAIN_PRECISION)

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches in a step."""
        size: int | None = self.spec.get("micro_batch_size")
        return self.spec["workload"]["batch_size"] // size if size else 1

    def why_not_on(self, ranks: int) -> str | None:
        """Say why so many ranks cannot have equal parts of the run's batches; None where they can.

        A rank has whole micro-batches, or micro-batches have whole numbers of ranks.
        """
        batch, parts = self.spec["workload"]["batch_size"], self.accumulation_steps
        fits = [n for n in range(1, batch + 1) if batch % n == 0 and (parts % n == 0 or n % parts == 0)]
        if ranks in fits:
            return None
        whole = f"a batch of {batch}"
        if parts > 1:
            whole = f"{parts} micro-batches of {batch // parts} in {whole}"
        near = [max(n for n in fits if n < ranks), *sorted(n for n in fits if n > ranks)[:1]]
        return f"{ranks} ranks cannot have equal parts of {whole}; {' or '.join(map(str, near))} can"

    def describe(self) -> str:
        """Return the run in a few words, for messages."""
        shown = [f"{name}={self.hyperparameters[name]}" for name in _TELLING if name in self.hyperparameters]
        return " ".join([self.workload, self.method, *shown, f"seed={self.seed}"])


_TELLING = ("update_rule", "inverse_update_period", "lr")


@dataclass(frozen=True)
class Planned:
    """A run as an experiment uses it: its target, and whether tuning chose one of its hyperparameters.

    Experiments may share a run and differ in the target, since a target does not change what is trained.
    """

    run: Run
    target: Target | None
    tuned: bool


@dataclass(frozen=True)
class Job:
    """What one Snakemake job trains: all runs of one label in one experiment."""

    experiment: str
    label: str
    planned: tuple[Planned, ...]
    upstream: tuple[tuple[str, str], ...]
    """The jobs (experiment, label) of the runs whose weights this one's runs start from."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """The job's runs, in the order in which they are trained."""
        return tuple(planned.run for planned in self.planned)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of `runs`."""
        return tuple(run.id for run in self.runs)


@dataclass(frozen=True)
class Trial:
    """A tuning run, and the values that it tries."""

    run: Run
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    """An optimizer of a block with the trials of its tuning; every contender of a block has as many."""

    label: str
    workload: Mapping[str, Any]
    metric: Mapping[str, str]
    """What a trial is judged by after its last step: split, metric, and ``best``, lowest or highest."""
    trials: tuple[Trial, ...]
    given: tuple[str, ...]
    """The tuned hyperparameters for which the experiment file gives a value of its own all the same."""


@dataclass(frozen=True)
class Experiment:
    """An experiment file at one tier."""

    name: str
    title: str
    paper: str
    jobs: Mapping[str, Job]
    contenders: tuple[Contender, ...]
