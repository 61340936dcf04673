"""The plan: all jobs and runs of a tier on a machine, with their ids and their order.

Imports no torch, since Snakemake loads the plan at every start.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan.experiments import Experiments
from workflow.bench.plan.rounds import Rounds, read_rounds
from workflow.bench.plan.runs import Experiment, Job, Run
from workflow.bench.plan.tiers import Tier, read_tiers
from workflow.bench.support.config import (
    CONFIG,
    ROOT,
    ConfigError,
    check,
    did_you_mean,
    error,
    read_mapping,
    refuse_folder,
    require_known,
    schema,
    shown_path,
    shown_value,
)
from workflow.bench.support.names import name_rule
from workflow.bench.support.provenance import NO_GPU, gpu_names, machine_name, save_machine_name, usable_cores

REFERENCE: Final = ROOT / "results" / "reference"
"""Small results of other machines that are kept in the repository, in folders ``<hardware>/<tier>``."""
MAX_THREADS: Final = 1024
"""The most CPU threads a run may have, as in the schema of a tier."""


@dataclass(frozen=True)
class Plan:
    """All experiments of one tier on one machine."""

    tier: Tier
    hardware: str
    results: Path
    """The folder ``<results>/<hardware>/<tier>``: runs, CSVs, figures and tables."""
    experiments: Mapping[str, Experiment]
    noted: tuple[tuple[str | None, str], ...]
    """Remarks that do not prevent training, such as on experiments that were left out: each after its experiment, or
    after None if it is on the tier."""
    compared: tuple[Path, ...] = ()
    """Results of other machines to compare with: config.yaml's ``compare``, and the tier's folders of `REFERENCE`."""
    rounds: Rounds = field(default_factory=Rounds)
    """Which look at the results this is, and the rounds of seeds that experiments have."""
    unfinished: Mapping[str, str] = field(default_factory=dict)
    """The experiments that are left out because tuned values are missing, each with the message that says so."""
    trials: tuple[Path, ...] = ()
    """The files ``<config>/tuned/<tier>/<experiment>.trials.csv`` that exist."""

    @classmethod
    def load(cls, config_dir: Path | str = CONFIG, *, for_tuning: bool = False, **settings: Any) -> Plan:
        """Return the plan of a configuration folder.

        Writes only the machine's name, once, after all files are checked. Needs no GPU at any tier.

        Args:
            config_dir: the configuration folder.
            for_tuning: leave out entries whose tuned values are missing, instead of their experiments.
            **settings: replacements for values of config.yaml; None replaces nothing.

        Raises:
            ConfigError: the first mistake in any file, at any tier, in one line.
        """
        # Snakemake reads ``--config config_dir=5`` as a number.
        if not isinstance(config_dir, str | Path):
            raise ConfigError(f"config_dir = {shown_value(config_dir)}: must be text")
        refuse_folder("config_dir", config_dir)
        folder = Path(config_dir)
        file = folder / "config.yaml"
        chosen = {**read_mapping(file), **{key: value for key, value in settings.items() if value is not None}}
        check(chosen, schema("config"), file)
        tiers = read_tiers(folder / "tiers")
        require_known(file, ("tier",), chosen["tier"], "unknown tier", tiers)
        tier = tiers[chosen["tier"]]
        files = Experiments(folder, tier, tiers, for_tuning=for_tuning)
        results, hardware = Path(chosen["results"]), chosen["hardware"]
        if (taken := _not_a_folder(results)) is not None:
            raise error(file, ("results",), chosen["results"], f"must be a folder, but {taken} is none")
        # Not saved yet: a plan that is refused writes nothing.
        if hardware == "auto":
            hardware = machine_name(results, tier.device)
        rounds = read_rounds(results / hardware / tier.name, tier)
        experiments = files.expand(rounds)
        if chosen["hardware"] == "auto":
            save_machine_name(results, tier.device, hardware)  # now that all files have been checked
        noted: list[tuple[str | None, str]] = [*files.noted]
        if hardware == NO_GPU:
            without = "trains on a GPU, but nvidia-smi lists none: this machine cannot run this plan"
            noted.append((None, f"tier '{tier.name}' {without}"))
        tables = [folder / "tuned" / tier.name / f"{name}.trials.csv" for name in experiments]
        return cls(
            tier,
            hardware,
            results / hardware / tier.name,
            experiments,
            tuple(noted),
            _compared(file, chosen.get("compare", []), tier.name),
            rounds,
            files.unfinished,
            tuple(table for table in tables if table.is_file()),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks of `noted`, without their experiments."""
        return tuple(note for _, note in self.noted)

    @property
    def other_machines(self) -> tuple[Path, ...]:
        """The folders `compared` without the reference of this machine's own name, which is an earlier run of it."""
        # Compared with itself it would be drawn twice.
        own = REFERENCE / self.hardware
        return tuple(folder for folder in self.compared if folder.parent != own)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, grouped by experiment, in the order of the files."""
        return tuple(job for experiment in self.experiments.values() for job in experiment.jobs.values())

    def grouped(self, without: Collection[Job] = ()) -> list[tuple[Job, ...]]:
        """Return all jobs but those of ``without``, in groups that one Snakemake job trains.

        A group is of one experiment, and has about `Tier.runs_per_job` runs, but one job at least; those of an
        experiment are as equal as can be.
        """
        groups = []
        for experiment in self.experiments.values():
            jobs = [job for job in experiment.jobs.values() if job not in without]
            number = min(len(jobs), math.ceil(sum(len(job.runs) for job in jobs) / self.tier.runs_per_job))
            # 7 jobs in 3 groups are cut at 0, 2, 4 and 7.
            bounds = [len(jobs) * index // max(number, 1) for index in range(number + 1)]
            groups += [tuple(jobs[first:last]) for first, last in pairwise(bounds)]
        return groups

    @cached_property
    def runs(self) -> dict[str, Run]:
        """All runs by id; experiments may share a run."""
        return {run.id: run for job in self.jobs for run in job.runs}

    @cached_property
    def started_from(self) -> frozenset[str]:
        """The ids of the runs whose final weights other runs or trials start from."""
        tuned = [optimizer for experiment in self.experiments.values() for optimizer in experiment.tuned_optimizers]
        trials = [trial.run for optimizer in tuned for trial in optimizer.trials]
        return frozenset(run.start_from for run in (*self.runs.values(), *trials) if run.start_from)

    def experiment(self, name: str) -> Experiment:
        """Return an experiment by the name of its file.

        Raises:
            ConfigError: the tier has no such experiment, or it is not tuned.
        """
        if name in self.unfinished:
            raise ConfigError(self.unfinished[name])
        if name not in self.experiments:
            known = did_you_mean(name, self.experiments)
            raise ConfigError(f"experiment = '{name}': unknown at tier '{self.tier.name}'; {known}")
        return self.experiments[name]

    def job(self, experiment: str, label: str) -> Job:
        """Return a job by experiment and label.

        Raises:
            ConfigError: the tier has no such experiment, or the experiment no such label.
        """
        jobs = self.experiment(experiment).jobs
        if label not in jobs:
            known = did_you_mean(label, jobs)
            raise ConfigError(f"label = '{label}': unknown in experiment '{experiment}'; {known}")
        return jobs[label]

    @property
    def runs_at_a_time(self) -> int:
        """How many runs this machine trains at a time: one per GPU, or as many as the usable cores allow."""
        # At least one: a plan can be shown where there is no GPU.
        if self.tier.device == "cuda":
            return max(1, len(gpu_names()))
        return max(1, usable_cores() // self.tier.threads)

    @property
    def partial(self) -> Path:
        """The folder of figures and tables that are made while runs are missing."""
        return self.results.parents[1] / "partial" / self.hardware / self.tier.name

    def csv_of(self, job: Job) -> Path:
        """Return the file to which a job writes the metrics of its runs."""
        return self.results / job.experiment / f"{job.label}.csv"


def _not_a_folder(path: Path) -> Path | None:
    """Return what exists and is no folder, of a path and those around it, such as ``/dev/null``."""
    with suppress(OSError):  # where the user may not look, writing will say why
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        return None if nearest.is_dir() else nearest
    return None


def _compared(file: Path, given: Sequence[str], tier: str) -> tuple[Path, ...]:
    """Return the given folders, and those of `REFERENCE` at a tier.

    Raises:
        ConfigError: a given folder does not exist, or is not a folder of this tier; or the name of a folder in
            `REFERENCE` is not one of a machine.
    """
    for index, text in enumerate(given):
        # Numbers of another tier are of other models: a figure would show them side by side as if they were not.
        if not Path(text).is_dir() or Path(text).resolve().name != tier:
            must = f"must be an existing folder results/<hardware>/{tier}, of the plan's tier"
            raise error(file, ("compare", index), text, must)
    kept = sorted(path for path in REFERENCE.glob(f"*/{tier}") if path.is_dir())
    for folder in kept:
        if rule := name_rule("hardware", folder.parent.name):
            raise ConfigError(f"{shown_path(folder.parent)}: its name, that of a machine, {rule}")
    return (*map(Path, given), *kept)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options by which every command of the bench selects its plan."""
    parser.add_argument("--tier", help="a file of <config>/tiers (default: config.yaml's)")
    parser.add_argument("--results", help="the folder of all results (default: config.yaml's)")
    parser.add_argument("--hardware", help="this machine's name in results, or auto (default: config.yaml's)")
    parser.add_argument("--config-dir", type=Path, default=CONFIG, help="the configuration folder")


def load_from(arguments: argparse.Namespace, *, for_tuning: bool = False) -> Plan:
    """Return the plan that the options of `add_arguments` select.

    Raises:
        ConfigError: as `Plan.load`.
    """
    return Plan.load(
        arguments.config_dir,
        for_tuning=for_tuning,
        tier=arguments.tier,
        results=arguments.results,
        hardware=arguments.hardware,
    )
