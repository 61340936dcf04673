"""The plan: what is to be trained at a tier on a machine, under which id, and what waits for what.

Imports no torch, since Snakemake reads it at every start.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan.experiments import Experiments
from workflow.bench.plan.runs import Experiment, Job, Run
from workflow.bench.support.config import (
    CONFIG,
    ROOT,
    ConfigError,
    check,
    did_you_mean,
    error,
    read_mapping,
    schema,
    with_defaults,
)
from workflow.bench.support.provenance import NO_GPU, hardware_slug

#: Other machines' small results, kept in the repository: ``<hardware>/<tier>``.
REFERENCE: Final = ROOT / "results" / "reference"
#: As in the schema of a tier: what a machine may have, and torch may take.
MOST_THREADS: Final = 1024


@dataclass(frozen=True)
class Tier:
    """A tier's file: what captions say of it, and how its runs compute."""

    name: str
    title: str
    device: str
    threads: int
    checkpoint_minutes: float
    precision: str
    """What forward passes compute in where an experiment's block says nothing."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, whatever the time; None: by `checkpoint_minutes` alone."""


@dataclass(frozen=True)
class Plan:
    """Everything that is to be trained at one tier on one machine."""

    tier: Tier
    hardware: str
    results: Path
    """The folder ``<results>/<hardware>/<tier>``: runs, CSVs, figures and tables."""
    experiments: Mapping[str, Experiment]
    notes: tuple[str, ...]
    """What was left out, or is not quite as it should be; nothing that stops anything."""
    compared: tuple[Path, ...] = ()
    """Other machines' folders ``<hardware>/<tier>`` to compare with: config.yaml's ``compare``, and the reference."""

    @classmethod
    def load(cls, config_dir: Path | str = CONFIG, *, for_tuning: bool = False, **settings: Any) -> Plan:
        """Return the plan of a configuration folder; ``settings`` override its config.yaml, None overrides nothing.

        ``for_tuning`` leaves out what waits for tuned values that are not there yet, instead of refusing it.
        Raises `ConfigError`, in one line, on the first mistake in any file, whatever its tier.  Writes nothing but
        the machine's name, once, after all is checked (`hardware_slug`).  Needs no GPU, whatever the tier.
        """
        folder = Path(config_dir)
        file = folder / "config.yaml"
        chosen = {**read_mapping(file), **{key: value for key, value in settings.items() if value is not None}}
        check(chosen, schema("config"), file)
        tiers = {found.stem: _read_tier(found) for found in sorted((folder / "tiers").glob("*.yaml"))}
        if chosen["tier"] not in tiers:
            must = f"unknown tier; {did_you_mean(chosen['tier'], tiers)}"
            raise error(file, ("tier",), chosen["tier"], must)
        tier = tiers[chosen["tier"]]
        files = Experiments(folder, tier.name, list(tiers), precision=tier.precision, for_tuning=for_tuning)
        experiments = files.expand()
        results, hardware = Path(chosen["results"]), chosen["hardware"]
        if hardware == "auto":
            hardware = hardware_slug(results, tier.device)
        notes = list(files.notes)
        if hardware == NO_GPU:
            notes.append(
                f"tier '{tier.name}' trains on a GPU, and nvidia-smi lists none here: this plan cannot be run here"
            )
        compared = _compared(file, chosen.get("compare", []), tier.name)
        return cls(tier, hardware, results / hardware / tier.name, experiments, tuple(notes), compared)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, by experiment, in the order of the files."""
        return tuple(job for experiment in self.experiments.values() for job in experiment.jobs.values())

    @cached_property
    def runs(self) -> dict[str, Run]:
        """All runs by id, once each: experiments may share one."""
        return {run.id: run for job in self.jobs for run in job.runs}

    @cached_property
    def started_from(self) -> frozenset[str]:
        """The ids of the runs whose final weights others start from."""
        trials = (
            trial.run
            for experiment in self.experiments.values()
            for contender in experiment.contenders
            for trial in contender.trials
        )
        return frozenset(run.start_from for run in (*self.runs.values(), *trials) if run.start_from)

    def experiment(self, name: str) -> Experiment:
        """Return an experiment by its file's name.  Raises `ConfigError`."""
        if name not in self.experiments:
            known = did_you_mean(name, self.experiments)
            raise ConfigError(f"experiment = '{name}': unknown at tier '{self.tier.name}'; {known}")
        return self.experiments[name]

    def job(self, experiment: str, label: str) -> Job:
        """Return a job by experiment and label.  Raises `ConfigError`."""
        jobs = self.experiment(experiment).jobs
        if label not in jobs:
            known = did_you_mean(label, jobs)
            raise ConfigError(f"label = '{label}': unknown in experiment '{experiment}'; {known}")
        return jobs[label]

    @property
    def partial(self) -> Path:
        """Return the folder of what is drawn while runs are missing."""
        return self.results.parents[1] / "partial" / self.hardware / self.tier.name

    def csv_of(self, job: Job) -> Path:
        """Return the file in which a job publishes its runs' metrics."""
        return self.results / job.experiment / f"{job.label}.csv"


def _read_tier(file: Path) -> Tier:
    content = read_mapping(file)
    check(content, schema("tier"), file)
    return Tier(name=file.stem, **with_defaults(content, schema("tier")))


def _compared(file: Path, given: Sequence[str], tier: str) -> tuple[Path, ...]:
    """Return the folders given, and the reference's at a tier.  Raises `ConfigError` where one is no such folder."""
    for index, folder in enumerate(given):
        if not Path(folder).is_dir() or Path(folder).resolve().name != tier:
            must = f"must be a folder results/<hardware>/{tier}, of the tier that is compared"
            raise error(file, ("compare", index), folder, must)
    return (*map(Path, given), *sorted(path for path in REFERENCE.glob(f"*/{tier}") if path.is_dir()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command of the bench takes to choose its plan."""
    parser.add_argument("--tier", help="a file of <config>/tiers (default: config.yaml's)")
    parser.add_argument("--results", help="the folder of all results (default: config.yaml's)")
    parser.add_argument("--hardware", help="this machine's name in results, or auto (default: config.yaml's)")
    parser.add_argument("--config-dir", type=Path, default=CONFIG, help="the configuration folder")


def load_from(arguments: argparse.Namespace, *, for_tuning: bool = False, compare: Sequence[str] = ()) -> Plan:
    """Return the plan that `add_arguments`' options choose, and what to compare with.  Raises `ConfigError`."""
    return Plan.load(
        arguments.config_dir,
        for_tuning=for_tuning,
        tier=arguments.tier,
        results=arguments.results,
        hardware=arguments.hardware,
        compare=list(compare) or None,
    )
