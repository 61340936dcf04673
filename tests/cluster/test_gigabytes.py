"""The disk space that the profiles state for each experiment's runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from baselines import build
from mkor_core.capture.discovery import find_layers
from mkor_core.capture.statistics import LayerShape
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.probes._state_bytes import META, LayerRows, first_order_bytes, preconditioner_bytes
from workflow.cluster.settings import Cluster

COPIES = 3
"""Checkpoints of a run on the disk while it writes one: the last, the one before, and the new."""
ROWS = 64


def checkpoint_bytes(network: nn.Module, exclude: tuple[str, ...], method: str, hyperparameters: dict[str, Any]) -> int:
    """Return the bytes of the weights, and of what an optimizer keeps after a step, from shapes alone."""
    optimizer, preconditioner = build(method, network, hyperparameters, exclude=exclude)
    kept: dict[str, int] = {}
    if preconditioner is not None:
        layers = find_layers(network, exclude).values()
        rows = [LayerRows(LayerShape(layer.d_out, layer.d_in), ROWS) for layer in layers]
        kept = preconditioner_bytes(preconditioner.method, rows)
        preconditioner.remove()
    for parameter in network.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    weights = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    return weights + sum(kept.values()) + sum(first_order_bytes(optimizer).values())


def largest_checkpoint(runs: list[Run]) -> int:
    """Return the bytes of the largest checkpoint of runs: KAISA's if there is one, else that of the first run."""
    run = next((run for run in runs if run.method == "kaisa"), runs[0])
    kind = workloads._class(run.spec["workload"]["name"])
    with META:
        network = kind.architecture(run.spec["workload"])
    return checkpoint_bytes(network, kind.exclude, run.method, dict(run.hyperparameters))


def test_the_disk_space_of_a_run_holds_three_of_its_checkpoints_and_little_more():
    """Truth: the tensors of a run's weights and optimizer on the meta device. Models are the same at both tiers."""
    plan, other = Plan.load(tier="paper"), Plan.load(tier="single_gpu")
    polaris, slurm = Cluster.load("polaris", plan), Cluster.load("slurm", other)
    for name, experiment in plan.experiments.items():
        needed = COPIES * largest_checkpoint([run for job in experiment.jobs.values() for run in job.runs]) / 1e9
        for cluster in (polaris, slurm):
            assert needed <= cluster.training(name).gigabytes <= needed + 3, name
