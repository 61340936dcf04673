"""The resources that jobs request of a cluster, checked: ``profiles/<cluster>/cluster.yaml``. Imports no torch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workflow.bench.downloads.needs import folders, needs
from workflow.bench.plan import Plan
from workflow.bench.plan.rank_shares import Allocation
from workflow.bench.plan.runs import Job, Run
from workflow.bench.probes import _links
from workflow.bench.support.config import (
    ROOT,
    ConfigError,
    check,
    did_you_mean,
    error,
    read_mapping,
    refuse_folder,
    schema,
    shown_path,
    with_defaults,
)
from workflow.bench.support.names import portable_rule

PROFILES: Final = ROOT / "profiles"
_FILE: Final = "cluster.yaml"
_DEFAULT: Final = "default"
PILOT_MARGIN_MINUTES: Final = 2.0
"""Minutes before its time limit at which the pilot begins no further workload."""
KEEPS_ROWS: Final = ("b_kfac", "cgfac", "hylo", "newton_muon", "rs_kfac", "smac")
HAS_RANK: Final = ("mkor", "mkor_h")
"""Methods that keep rows with the hyperparameter ``rank`` above 1."""


@dataclass(frozen=True)
class JobNeed:
    """The resources that one job requests."""

    nodes: int
    minutes: int
    queue: str


@dataclass(frozen=True)
class TrainingResources(JobNeed):
    """The resources that an experiment's training jobs request, and their estimated cost."""

    ranks_per_node: int
    step_seconds: float | None
    """Estimated seconds per step; None takes the model's."""
    gigabytes: float
    """Disk space that a run needs."""
    row_megabytes: float
    """What an optimizer keeps of one example that keeps all layers' rows, in float32; 0 if nobody counted it."""
    stage: bool
    """Whether to copy the data that its runs read to the disk of each node first."""
    step_source: str | None = None
    """Where ``step_seconds`` are from; None: they are a guess."""
    staged: tuple[str, ...] = ()
    """The folders of the data folder to copy."""

    @property
    def ranks(self) -> int:
        """Number of processes that train together."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Cluster:
    """The content of a cluster's file, for one plan."""

    file: Path
    scheduler: str
    """``pbs``, through the profile's own scripts, or ``slurm``, through Snakemake's plugin."""
    gpus_per_node: int
    """0 at a tier that trains on CPUs."""
    cores_per_node: int
    margin_minutes: float
    trainings: Mapping[str, TrainingResources]
    """By experiment; ``default`` for those without an entry."""
    probes: Mapping[str, JobNeed]
    """By probe; ``default`` for those without an entry."""
    gpu_gigabytes: float | None = None
    """Memory of a GPU; None if the file does not state it."""
    system: str | None = None
    """Its name in workflow/systems.yaml, whose speeds model the seconds of a step; None if there is none."""
    pilot: JobNeed | None = None
    """The resources of the pilot job; None if the file states none."""

    @classmethod
    def load(cls, name: str, plan: Plan) -> Cluster:
        """Return a cluster by the name of its folder in profiles/, or by a path (with a slash) to its folder.

        Raises:
            ConfigError: the file is invalid, no queue takes a job, a batch of the plan cannot be divided equally among
                the ranks, or a scheduler cannot pass on the folder of the results.
        """
        refuse_folder("cluster", name, portable_rule)
        refuse_folder("results", plan.results.parents[1], portable_rule)
        folder = Path(name) if "/" in name else PROFILES / name
        file = folder / _FILE
        if not file.is_file():
            known = did_you_mean(name, (path.parent.name for path in PROFILES.glob(f"*/{_FILE}")))
            raise ConfigError(f"cluster = '{name}': {file} does not exist; {known}")
        content = read_mapping(file)
        check(content, schema("cluster"), file)
        kinds = schema("cluster")["properties"]
        systems = [system.name for system in _links.systems()]
        if content.get("system", systems[0]) not in systems:
            raise error(file, ("system",), content["system"], f"unknown; {did_you_mean(content['system'], systems)}")
        trainings = {}
        for experiment, given in content["training"].items():
            _check_need(file, ("training", experiment), given, content)
            if "step_seconds" not in given and (content.get("system") is None or experiment == _DEFAULT):
                must = "must be given: without 'system', or of 'default', there is no model of a step's seconds"
                raise error(file, ("training", experiment, "step_seconds"), None, must)
            filled = {
                "step_seconds": None,
                "ranks_per_node": content["gpus_per_node"],
                **with_defaults(given, kinds["training"]["additionalProperties"]),
            }
            ranks = filled["ranks_per_node"]
            if ranks > content["cores_per_node"]:
                must = f"must be at most cores_per_node, {content['cores_per_node']}: each rank needs a core"
                raise error(file, ("training", experiment, "ranks_per_node"), ranks, must)
            staged = folders(needs(plan, [experiment])) if filled["stage"] else ()
            trainings[experiment] = TrainingResources(**filled, staged=staged)
        for probe, given in content["probes"].items():
            _check_need(file, ("probes", probe), given, content)
        if pilot := content.get("pilot"):
            _check_need(file, ("pilot",), pilot, content)
        probes = {probe: JobNeed(**given) for probe, given in content["probes"].items()}
        cluster = cls(
            file,
            content.get("scheduler", kinds["scheduler"]["default"]),
            content["gpus_per_node"] if plan.tier.device == "cuda" else 0,
            content["cores_per_node"],
            float(content["margin_minutes"]),
            trainings,
            probes,
            content.get("gpu_gigabytes"),
            content.get("system"),
            JobNeed(**pilot) if pilot else None,
        )
        cluster.check_plan(plan)
        return cluster

    def training(self, experiment: str) -> TrainingResources:
        """Return the resources that an experiment's training jobs request."""
        return self.trainings.get(experiment, self.trainings[_DEFAULT])

    def place(self, experiment: str) -> Allocation:
        """Return the ranks of an experiment's training jobs, and the cores of each."""
        need = self.training(experiment)
        return Allocation(need.ranks, self.cores_per_node // need.ranks_per_node)

    def check_plan(self, plan: Plan) -> None:
        """Raise `ConfigError` if a run's batch cannot be divided equally among the ranks."""
        for job in plan.jobs:
            need = self.training(job.experiment)
            for run in job.runs:
                if why := run.split_problem(need.ranks):
                    key = ("training", job.experiment if job.experiment in self.trainings else _DEFAULT, "nodes")
                    ranks = f"nodes times ranks_per_node, {need.ranks_per_node}, are {need.ranks} ranks"
                    raise error(self.file, key, need.nodes, f"{ranks}: {job.experiment}/{job.label}: {why}")

    def launch(self, need: TrainingResources, margin_minutes: float) -> str:
        """Return the prefix that starts a command on all ranks of a job: the profile's launch script and options."""
        options = {
            "--nodes": need.nodes,
            "--ranks": need.ranks,
            "--cores": self.cores_per_node,
            "--minutes": need.minutes,
            "--margin": margin_minutes,
        }
        words = [str(self.file.parent.absolute() / "launch"), *(str(word) for pair in options.items() for word in pair)]
        return shlex.join([*words, *(word for name in need.staged for word in ("--stage", name))])

    def resources(self, need: JobNeed) -> dict[str, Any]:
        """Return a job's resources as Snakemake's, with the names that the scheduler's plugin or profile expects."""
        ranks = need.ranks if isinstance(need, TrainingResources) else 1
        if self.scheduler == "pbs":
            return {"nodes": need.nodes, "minutes": need.minutes, "queue": need.queue}
        return {
            "nodes": need.nodes,
            "tasks": ranks,
            "cpus_per_task": max(1, self.cores_per_node * need.nodes // ranks),
            # Any value, even an empty one, makes the plugin start the command as it is; its launch script starts the
            # ranks.
            "mpi": "srun" if ranks > 1 else "",
            "runtime": need.minutes,
            "slurm_partition": need.queue,
            # The plugin's own options for GPUs would also set a number of tasks per GPU.
            "slurm_extra": f"--gpus-per-node={self.gpus_per_node}" if self.gpus_per_node else "",
        }


def training_resources(cluster: Cluster | None, experiment: str) -> dict[str, Any]:
    """Return the resources of the rules that train an experiment; without a cluster, no launch."""
    if cluster is None:
        return {"launch": ""}
    need = cluster.training(experiment)
    return {**cluster.resources(need), "launch": cluster.launch(need, cluster.margin_minutes)}


def probe_resources(cluster: Cluster | None, probe: str) -> dict[str, Any]:
    """Return the resources of a probe's rule; none without a cluster."""
    return {} if cluster is None else cluster.resources(cluster.probes.get(probe, cluster.probes[_DEFAULT]))


def pilot_resources(cluster: Cluster | None) -> dict[str, Any]:
    """Return the resources of the rule of the pilot, on all GPUs of its nodes; without a cluster, no launch."""
    if cluster is None or (pilot := cluster.pilot) is None:
        return {"launch": ""}
    each = max(1, cluster.gpus_per_node)
    need = TrainingResources(pilot.nodes, pilot.minutes, pilot.queue, each, None, 0.0, 0.0, stage=False)
    return {**cluster.resources(need), "launch": cluster.launch(need, PILOT_MARGIN_MINUTES)}


def refused(plan: Plan, cluster: Cluster) -> dict[Job, str]:
    """Return why jobs cannot run on a cluster, as their optimizer would keep more than a GPU's memory; without others.

    Only what `keeps_rows` is checked, and only if the cluster's file states a GPU's memory and the rows' size.
    """
    limit, found = cluster.gpu_gigabytes, {}
    if limit is None or not cluster.gpus_per_node:
        return {}
    for job in plan.jobs:
        need = cluster.training(job.experiment)
        each = need.row_megabytes / need.ranks / 1000
        sizes = [run.spec["workload"]["batch_size"] * each if keeps_rows(run) else 0.0 for run in job.runs]
        # A job is refused as a whole: if one of its runs fits, the others are found out by training.
        if sizes and min(sizes) > limit:
            found[job] = (
                f"{job.experiment}/{job.label}: {job.runs[0].method} keeps the rows of all layers, {sizes[0]:,.0f} GB "
                f"on each of {need.ranks} GPUs, which have {limit:g} GB ({shown_path(cluster.file)}: gpu_gigabytes)"
            )
    return found


def keeps_rows(run: Run) -> bool:
    """Return whether a run's optimizer keeps all rows of a batch, of all layers, until its update."""
    return run.method in KEEPS_ROWS or (run.method in HAS_RANK and run.hyperparameters.get("rank", 1) > 1)


def _check_need(file: Path, key: tuple[str, ...], given: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if no queue takes a job: some schedulers drop such a job silently."""
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
