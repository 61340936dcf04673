"""Jobs that would keep more rows than a GPU's memory holds are recorded, and not submitted."""

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
from tests.support.hyperparameters import variations
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.probes._state_bytes import META, rows_by_layer
from workflow.bench.workloads.image_classifier import ImageClassifier
from workflow.cluster import refuse
from workflow.cluster.row_memory import keeps_rows, refused
from workflow.cluster.settings import Cluster

PREDICTIONS = 80
FLOAT32_BYTES = 4


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
    return FLOAT32_BYTES * sum(rows * (shape.d_in + shape.d_out) for shape, rows in layers) / 1e6


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
