"""The overhead benchmark compares the same training, step by step."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bench_overhead
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.training import checkpoint, one_run
from workflow.bench.training.build import RunSetting
from workflow.bench.training.progress import Progress
from workflow.bench.training.record import RunFolder


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    monkeypatch.setattr(bench_overhead, "STEPS", {"autoencoder": 61, "bert_pretraining": 61})
    plan = Plan.load(tier="embedded", results=str(tmp_path), hardware="test-cpu")
    return next(first for first in bench_overhead.first_runs(plan, "mkor") if first.workload == "autoencoder")


def test_both_loops_train_the_same_weights(run, tmp_path):
    """Truth: each other. The two loops that are timed do the same work, to the last bit."""
    workload = workloads.create(**run.spec["workload"])
    bare = bench_overhead.BareLoop(run, workload)
    interleaved = bench_overhead.Interleaved(workload, bare)
    with (tmp_path / "log").open("w") as log:
        setting = RunSetting(torch.device("cpu"), 1.0, Progress(1, log), lambda: False)
        folder = RunFolder.of(tmp_path, run.id)
        assert one_run.train(run, interleaved, folder, setting, keep_weights=True) == "finished"
    weights = checkpoint.load(folder.weights, run.id)
    for name, weight in bare._model.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=0)
    assert (len(interleaved.bare_seconds), len(interleaved.bench_seconds)) == (61, 60)


def test_a_label_is_compared_on_the_two_workloads_of_the_page_alone(tmp_path):
    """The experiment also trains AlexNet."""
    plan = Plan.load(tier="embedded", results=str(tmp_path), hardware="test-cpu")
    assert "alexnet" in {run.workload for run in plan.experiment(bench_overhead.EXPERIMENT).jobs["mkor"].runs}
    compared = {run.workload: run.spec["steps"] for run in bench_overhead.first_runs(plan, "mkor")}
    assert compared == bench_overhead.STEPS


def test_the_ratio_has_an_interval(run, tmp_path):
    ratio = bench_overhead.overhead(run, workloads.create(**run.spec["workload"]), tmp_path)
    assert ratio.n == bench_overhead.BLOCKS
    assert 0 < ratio.low <= ratio.value <= ratio.high < 100
