"""What the profiles state of each experiment's runs: disk space, and rows that a GPU's memory may not hold."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from baselines import available, build
from mkor_core.capture.discovery import find_layers
from mkor_core.capture.statistics import LayerShape
from tests.support.hyperparameters import variations
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.probes._counting import META
from workflow.bench.probes._state_bytes import LayerRows, first_order_bytes, preconditioner_bytes, rows_by_layer
from workflow.bench.workloads.image_classifier import ImageClassifier
from workflow.cluster import refuse
from workflow.cluster.settings import Cluster, keeps_rows, refused

COPIES = 3
"""Checkpoints of a run on the disk while it writes one: the last, the one before, and the new."""
ROWS = 64
PREDICTIONS = 80


def largest_checkpoint(runs: list[Run]) -> int:
    """Return the bytes of the largest checkpoint of runs: KAISA's if there is one, else that of the first run.

    They are those of the weights, and of what the optimizer keeps after a step, from shapes alone.
    """
    run = next((run for run in runs if run.method == "kaisa"), runs[0])
    kind = workloads._class(run.spec["workload"]["name"])
    with META:
        network = kind.architecture(run.spec["workload"])
    optimizer, preconditioner = build(run.method, network, dict(run.hyperparameters), exclude=kind.exclude)
    kept: dict[str, int] = {}
    if preconditioner is not None:
        layers = find_layers(network, kind.exclude).values()
        rows = [LayerRows(LayerShape(layer.d_out, layer.d_in), ROWS) for layer in layers]
        kept = preconditioner_bytes(preconditioner.method, rows)
        preconditioner.remove()
    for parameter in network.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    weights = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    return weights + sum(kept.values()) + sum(first_order_bytes(optimizer).values())


def test_the_disk_space_of_a_run_holds_three_of_its_checkpoints_and_little_more():
    """Truth: the tensors of a run's weights and optimizer on the meta device. Models are the same at both tiers."""
    plan, other = Plan.load(tier="paper"), Plan.load(tier="single_gpu")
    polaris, slurm = Cluster.load("polaris", plan), Cluster.load("slurm", other)
    for name, experiment in plan.experiments.items():
        needed = COPIES * largest_checkpoint([run for job in experiment.jobs.values() for run in job.runs]) / 1e9
        for cluster in (polaris, slurm):
            assert needed <= cluster.training(name).gigabytes <= needed + 3, name


def forward(run: Run, network: nn.Module) -> Callable[[], object]:
    """Return a function that passes one example through a run's model, on the default device."""
    kind, parameters = workloads._class(run.workload), run.spec["workload"]
    if issubclass(kind, ImageClassifier):
        size = kind.image_size(parameters)
        return lambda: network(torch.empty(1, 3, size, size))
    tokens = torch.zeros(1, parameters["sequence_length"], dtype=torch.long)
    if run.workload != "bert_pretraining":
        return lambda: network(input_ids=tokens)
    predicted = torch.zeros(PREDICTIONS, dtype=torch.long)
    return lambda: network(tokens, tokens, predicted, predicted, tokens[:, 0])


def counted_megabytes(run: Run) -> float:
    """Return the bytes of one example's rows, from the shapes of the run's model on the meta device."""
    kind = workloads._class(run.workload)
    with META:
        network = kind.architecture(run.spec["workload"]).eval()
        layers = rows_by_layer(network, kind.exclude, forward(run, network))
    return 4 * sum(rows * (shape.d_in + shape.d_out) for shape, rows in layers) / 1e6


@pytest.mark.parametrize(("profile", "tier"), [("polaris", "paper"), ("slurm", "single_gpu")])
def test_the_profiles_state_the_rows_of_every_model_that_needs_it(profile: str, tier: str):
    plan = Plan.load(tier=tier, hardware="test")
    cluster = Cluster.load(profile, plan)
    counted = 0
    for job in plan.jobs:
        for run in job.runs[:1]:
            if keeps_rows(run):
                assert cluster.training(job.experiment).row_megabytes == pytest.approx(counted_megabytes(run), abs=1)
                counted += 1
    assert counted >= 6


@pytest.mark.parametrize("name", available())
def test_a_run_is_known_to_keep_rows_where_its_method_does(name: str):
    for hyperparameters in variations(name).values():
        run = Run({"optimizer": {"name": name, "hyperparameters": hyperparameters}})
        _, preconditioner = build(name, nn.Linear(4, 3), hyperparameters)
        keeps = preconditioner is not None and preconditioner.method.statistic.kind == "rows"
        assert keeps_rows(run) == keeps, hyperparameters


def test_hylo_at_bert_large_is_refused_on_polaris_alone():
    """By hand: the tokens of a rank, and inputs and outputs of the six linear modules in each of 24 layers."""
    rows = 32768 // 64 * 512
    numbers = 24 * (4 * (1025 + 1024) + (1025 + 4096) + (4097 + 1024))
    assert f"{4 * rows * numbers / 1e9:,.0f}" == "464"
    plan = Plan.load(tier="paper", hardware="test")
    cluster = Cluster.load("polaris", plan)
    assert list(refused(plan, cluster).values()) == [
        "bert_pretraining/hylo: hylo keeps the rows of all layers, 464 GB on each of 64 GPUs, which have 40 GB "
        "(profiles/polaris/cluster.yaml: gpu_gigabytes)"
    ]
    assert refused(plan, replace(cluster, gpu_gigabytes=465)) == {}
    assert refused(plan, replace(cluster, gpu_gigabytes=None)) == {}
    assert refused(plan, replace(cluster, gpus_per_node=0)) == {}


def test_refused_runs_are_recorded_as_skipped_and_their_rows_published(tmp_path: Path):
    assert refuse.main(["polaris", "--tier=paper", f"--results={tmp_path}", "--hardware=test"]) == 0
    results = tmp_path / "test" / "paper"
    (row,) = csv.DictReader((results / "bert_pretraining" / "hylo.csv").open())
    assert (row["optimizer"], row["status"]) == ("hylo", "skipped")
    record = json.loads((results / "runs" / row["run"] / "run.json").read_text())
    assert "464 GB on each of 64 GPUs" in record["reason"]
    assert [file.name for file in results.rglob("*.csv")] == ["hylo.csv"]
