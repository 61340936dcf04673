"""What jobs ask of a cluster: ``profiles/<cluster>/cluster.yaml``, checked.  Imports no torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan import Plan
from workflow.bench.support.config import (
    ROOT,
    ConfigError,
    check,
    did_you_mean,
    error,
    read_mapping,
    schema,
    with_defaults,
)

PROFILES: Final = ROOT / "profiles"
_FILE: Final = "cluster.yaml"
_DEFAULT: Final = "default"


@dataclass(frozen=True)
class Need:
    """What one job asks for."""

    nodes: int
    minutes: int
    queue: str


@dataclass(frozen=True)
class Training(Need):
    """What the training jobs of an experiment ask for, and what is reckoned to come of it."""

    ranks_per_node: int
    step_seconds: float
    gigabytes: float
    data: tuple[str, ...]
    stage: bool

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Cluster:
    """A cluster's file."""

    file: Path
    scheduler: str
    """``pbs``, by the profile's own scripts, or ``slurm``, by Snakemake's plugin for it."""
    gpus_per_node: int
    """0 at a tier that computes on CPUs."""
    cores_per_node: int
    margin_minutes: float
    trainings: Mapping[str, Training]
    probes: Mapping[str, Need]

    @classmethod
    def load(cls, name: str, plan: Plan) -> Cluster:
        """Return a cluster by the name of its folder in profiles/, or the folder's path.

        Raises `ConfigError` on the first mistake: in the file itself, in what a queue does not take, and where a
        plan's batch cannot be shared out among the ranks.
        """
        folder = Path(name) if "/" in name else PROFILES / name
        file = folder / _FILE
        if not file.is_file():
            known = did_you_mean(name, (found.parent.name for found in PROFILES.glob(f"*/{_FILE}")))
            raise ConfigError(f"cluster = '{name}': there is no {file}; {known}")
        content = read_mapping(file)
        check(content, schema("cluster"), file)
        kinds = schema("cluster")["properties"]
        trainings = {}
        for experiment, given in content["training"].items():
            _check_need(file, ("training", experiment), given, content)
            filled = with_defaults(given, kinds["training"]["additionalProperties"])
            ranks = filled.pop("ranks_per_node", content["gpus_per_node"])
            trainings[experiment] = Training(**{**filled, "ranks_per_node": ranks, "data": tuple(filled["data"])})
        for probe, given in content["probes"].items():
            _check_need(file, ("probes", probe), given, content)
        probes = {probe: Need(**given) for probe, given in content["probes"].items()}
        made = cls(
            file,
            content.get("scheduler", kinds["scheduler"]["default"]),
            content["gpus_per_node"] if plan.tier.device == "cuda" else 0,
            content["cores_per_node"],
            float(content["margin_minutes"]),
            trainings,
            probes,
        )
        made.check_plan(plan)
        return made

    def training(self, experiment: str) -> Training:
        """Return what an experiment's training jobs ask for."""
        return self.trainings.get(experiment, self.trainings[_DEFAULT])

    def check_plan(self, plan: Plan) -> None:
        """Raise `ConfigError` where a run's batch has no whole share for every rank."""
        for job in plan.jobs:
            need = self.training(job.experiment)
            for run in job.runs:
                if why := run.why_not_on(need.ranks):
                    key = ("training", job.experiment if job.experiment in self.trainings else _DEFAULT, "nodes")
                    ranks = f"nodes times ranks_per_node, {need.ranks_per_node}, are {need.ranks} ranks"
                    raise error(self.file, key, need.nodes, f"{ranks}: {job.experiment}/{job.label}: {why}")

    def launch(self, experiment: str) -> str:
        """Return the words that start a training command on all ranks: the profile's launch, and its options."""
        need = self.training(experiment)
        options = {
            "--nodes": need.nodes,
            "--ranks": need.ranks,
            "--cores": self.cores_per_node,
            "--minutes": need.minutes,
            "--margin": self.margin_minutes,
        }
        words = [str(self.file.parent.absolute() / "launch"), *(str(word) for pair in options.items() for word in pair)]
        return shlex.join([*words, *(word for name in need.data if need.stage for word in ("--stage", name))])

    def asks(self, need: Need) -> dict[str, Any]:
        """Return what a job asks for as Snakemake's resources, in its scheduler's words."""
        ranks = need.ranks if isinstance(need, Training) else 1
        if self.scheduler == "pbs":
            return {"nodes": need.nodes, "minutes": need.minutes, "queue": need.queue}
        return {
            "nodes": need.nodes,
            "tasks": ranks,
            "cpus_per_task": max(1, self.cores_per_node * need.nodes // ranks),
            # Even an empty one tells the plugin to start the command as it is, whose launch starts the ranks.
            "mpi": "srun" if ranks > 1 else "",
            "runtime": need.minutes,
            "slurm_partition": need.queue,
            # The plugin's own words for GPUs bring a number of tasks for each of them.
            "slurm_extra": f"--gpus-per-node={self.gpus_per_node}" if self.gpus_per_node else "",
        }


def training_resources(cluster: Cluster | None) -> dict[str, Any]:
    """Return the resources of the rule that trains: on a cluster functions of its wildcards, elsewhere no launch."""
    if cluster is None:
        return {"launch": ""}
    known = cluster

    def of(key: str) -> Callable[[Any], Any]:
        return lambda wildcards: known.asks(known.training(wildcards.experiment))[key]

    return {
        **{key: of(key) for key in known.asks(known.training(_DEFAULT))},
        "launch": lambda wildcards: known.launch(wildcards.experiment),
    }


def probe_resources(cluster: Cluster | None, probe: str) -> dict[str, Any]:
    """Return the resources of a probe's rule: none where there is no cluster."""
    return {} if cluster is None else cluster.asks(cluster.probes.get(probe, cluster.probes[_DEFAULT]))


def _check_need(file: Path, key: tuple[str, str], given: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where no queue takes a job: some schedulers drop such a job without a word."""
    queues = content["queues"]
    if given["queue"] not in queues:
        raise error(file, (*key, "queue"), given["queue"], f"unknown queue; {did_you_mean(given['queue'], queues)}")
    ranges = queues[given["queue"]]
    fitting = [each for each in ranges if each["nodes"][0] <= given["nodes"] <= each["nodes"][1]]
    if not fitting:
        takes = ", ".join(f"{each['nodes'][0]} to {each['nodes'][1]}" for each in ranges)
        raise error(file, (*key, "nodes"), given["nodes"], f"queue '{given['queue']}' takes {takes} nodes")
    longest = max(each["minutes"] for each in fitting)
    if given["minutes"] > longest:
        must = f"queue '{given['queue']}' lets a job of {given['nodes']} nodes run {longest} minutes at most"
        raise error(file, (*key, "minutes"), given["minutes"], must)
    if key[0] == "training" and given["minutes"] <= content["margin_minutes"]:
        must = f"must be more than margin_minutes, {content['margin_minutes']}: nothing would be left to train in"
        raise error(file, (*key, "minutes"), given["minutes"], must)
