"""Jobs whose optimizer would keep more than a GPU's memory: refused before a queue is asked for nodes. No torch."""

from __future__ import annotations

from typing import Final

from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Job, Run
from workflow.bench.support.config import shown_path
from workflow.cluster.settings import Cluster, Training

KEEPS_ROWS: Final = ("b_kfac", "cgfac", "hylo", "newton_muon", "rs_kfac")
HAS_RANK: Final = ("mkor", "mkor_h")
"""Methods that keep rows with the hyperparameter ``rank`` above 1."""


def refused(plan: Plan, cluster: Cluster) -> dict[Job, str]:
    """Return why jobs cannot run on a cluster; those that can are left out.

    Only what `keeps_rows` is checked, and only if the cluster's file states a GPU's memory and the rows' size.
    """
    found = {}
    for job in plan.jobs:
        reasons = [_problem(run, cluster, cluster.training(job.experiment)) for run in job.runs]
        if reasons and all(reasons):
            found[job] = f"{job.experiment}/{job.label}: {reasons[0]}"
    return found


def keeps_rows(run: Run) -> bool:
    """Return whether a run's optimizer keeps all rows of a batch, of all layers, until its update."""
    return run.method in KEEPS_ROWS or (run.method in HAS_RANK and run.hyperparameters.get("rank", 1) > 1)


def _problem(run: Run, cluster: Cluster, need: Training) -> str | None:
    limit = cluster.gpu_gigabytes
    if limit is None or not cluster.gpus_per_node or not keeps_rows(run):
        return None
    gigabytes = run.spec["workload"]["batch_size"] / need.ranks * need.row_megabytes / 1000
    if gigabytes <= limit:
        return None
    return (
        f"{run.method} keeps the rows of all layers, {gigabytes:,.0f} GB on each of {need.ranks} GPUs, which have "
        f"{limit:g} GB ({shown_path(cluster.file)}: gpu_gigabytes)"
    )
