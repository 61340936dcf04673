"""Runs and their ids, and the jobs, experiments and tuning trials that group them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Final

from workflow.bench.plan.targets import Target
from workflow.bench.plan.tuning import Ranking, Space

Spec = dict[str, Any]
"""A run's resolved description: JSON values only."""

PLAIN_PRECISION: Final = "float32"
"""The precision that is left out of a spec."""


def run_id(spec: Spec) -> str:
    """Return the id of a run: the hash of its resolved spec."""
    # Without the order of keys and without spaces: what a file spells otherwise is the same run.
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """One training run, identified by everything that its numbers depend on except code and hardware."""

    spec: Spec = field(compare=False)
    """The keys tier, workload (with all its parameters; and ``for_tuning: true`` in trials), data_version, steps,
    evaluate_every, seed, schedule, start_from (a run's id, or None) and optimizer (name and hyperparameters, with
    defaults); precision, micro_batch_size and deterministic only if they differ from float32, the whole batch and
    false."""
    upstream: Run | None = field(default=None, compare=False)
    """The run with the id `start_from`, whose final weights this one starts from."""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        # Hashed once: plans compare and look up runs by the thousand.
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
        """The id of the run whose final weights this one starts from."""
        return self.spec["start_from"]

    @property
    def lineage(self) -> tuple[Spec, ...]:
        """The specs that its numbers depend on: its own, and those of the runs it starts from, directly or not."""
        # A loop, because a chain may be longer than Python recurses.
        specs, run = [self.spec], self.upstream
        while run is not None:
            specs.append(run.spec)
            run = run.upstream
        return tuple(specs)

    @property
    def precision(self) -> str:
        """The dtype of forward passes: float32, bfloat16 or float16."""
        return self.spec.get("precision", PLAIN_PRECISION)

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches per step."""
        size: int | None = self.spec.get("micro_batch_size")
        return self.spec["workload"]["batch_size"] // size if size else 1

    def split_problem(self, ranks: int) -> str | None:
        """Return why a number of ranks cannot share the run's batches equally; None if they can.

        Each rank takes whole micro-batches, or a whole number of ranks shares each micro-batch.
        """
        batch, parts = self.spec["workload"]["batch_size"], self.accumulation_steps

        def fits(number: int) -> bool:
            return batch % number == 0 and (parts % number == 0 or number % parts == 0)

        if fits(ranks):
            return None
        # Divisors come in pairs around the square root: a batch may have millions of examples.
        divisors = {n for k in range(1, isqrt(batch) + 1) if batch % k == 0 for n in (k, batch // k) if fits(n)}
        whole = f"a batch of {batch}"
        if parts > 1:
            whole = f"{parts} micro-batches of {batch // parts} in {whole}"
        # 1 always divides, so a smaller number exists; a larger one need not.
        near = [max(n for n in divisors if n < ranks), *sorted(n for n in divisors if n > ranks)[:1]]
        return f"{ranks} ranks cannot have equal parts of {whole}; {' or '.join(map(str, near))} can"

    def describe(self) -> str:
        """Return a short description for messages: workload, optimizer, main hyperparameters and seed."""
        given = self.hyperparameters
        main = ("update_rule", "inverse_update_period", "lr")
        shown = [f"{name}={given[name]}" for name in main if name in given]
        return " ".join([self.workload, self.method, *shown, f"seed={self.seed}"])


@dataclass(frozen=True)
class PlannedRun:
    """A run as part of an experiment.

    Experiments may share a run and have different targets, since a target does not change the training.
    """

    run: Run
    target: Target | None
    study: int | None
    """The number, from 0, of the tuning study that chose hyperparameters of it or, without such, of the run that it
    starts from; None if none is tuned."""


@dataclass(frozen=True)
class Job:
    """All runs of one label in one experiment, which one Snakemake job trains."""

    experiment: str
    label: str
    planned: tuple[PlannedRun, ...]
    upstream: tuple[tuple[str, str], ...]
    """The jobs (experiment, label) of the runs whose weights this job's runs start from."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """The job's runs, in training order."""
        return tuple(planned.run for planned in self.planned)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of `runs`."""
        return tuple(run.id for run in self.runs)


@dataclass(frozen=True)
class Trial:
    """A tuning run, and the hyperparameter values that it tries."""

    run: Run
    values: Mapping[str, Any]


@dataclass(frozen=True)
class TunedOptimizer:
    """An optimizer of a block with its tuning trials; all optimizers of a block have the same number of them."""

    label: str
    workload: Mapping[str, Any]
    """The block's workload. That of the trials has the key ``for_tuning`` besides: their data has its own split."""
    space: Space
    ranking: Ranking
    studies: tuple[tuple[Trial, ...], ...]
    """The trials of each independent search."""
    given: tuple[str, ...]
    """Hyperparameters in the tuning space for which the experiment file gives a value, which is used instead."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of all studies, one study after the other."""
        return tuple(trial for study in self.studies for trial in study)

    @property
    def trial_ids(self) -> list[list[str]]:
        """The ids of the trials' runs, a list for each study."""
        return [[trial.run.id for trial in study] for study in self.studies]


@dataclass(frozen=True)
class Experiment:
    """An experiment file, expanded for one tier."""

    name: str
    title: str
    paper: str
    jobs: Mapping[str, Job]
    tuned_optimizers: tuple[TunedOptimizer, ...]
    most_rounds: int = 1
    """The most rounds of seeds that one of its blocks may have."""
