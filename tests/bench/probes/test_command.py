"""The probes' common parts: their command line, their models by tier, their optimizers, and fresh processes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from torch.multiprocessing.spawn import ProcessRaisedException

from baselines import available as available_methods
from baselines import limits, method_class
from mkor_core.ranks import comm
from tests.support import experiments
from tests.support.small_models import autoencoder
from workflow.bench.plan.artefacts import available, describe, files_of, planned_probes
from workflow.bench.probes import _command, _links, _models, _ranks
from workflow.bench.probes._models import TimedOptimizer
from workflow.bench.support.config import ROOT


class Row(NamedTuple):
    number: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A configuration of one experiment."""
    made = experiments.make_folder(tmp_path_factory.mktemp("probes") / "config")
    experiments.write(made, "autoencoder_inversion", experiments.block(experiments.optimizer("mkor")))
    return made


def test_rows_are_written_with_their_provenance(folder, tmp_path):
    arguments = ["--out", str(tmp_path / "x.csv"), *experiments.options(folder)]
    assert _command.run("sizes", lambda plan: [Row(plan.tier.threads)], arguments) == 0
    table = pd.read_csv(tmp_path / "x.csv")
    assert list(table.columns) == ["number", "code_fingerprint", "git_commit"]
    assert table["number"].to_list() == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize(("given", "says"), [(["--tier", "embeded"], "embeded"), (["--tier", "single_gpu"], "GPU")])
def test_bad_input_is_one_line(folder, tmp_path, capsys, monkeypatch, given, says):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["--out", str(tmp_path / "x.csv"), *experiments.options(folder), *given]
    assert _command.run("sizes", lambda plan: [Row(0)], arguments) == 1
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x.csv").exists()


def test_a_folder_to_write_to_is_refused_before_the_measurement(folder, tmp_path, capsys):
    arguments = ["--out", str(tmp_path), *experiments.options(folder)]
    assert _command.run("sizes", lambda plan: pytest.fail("it measured"), arguments) == 1
    assert capsys.readouterr().err == f'--out = "{tmp_path}": is a folder; give the name of a file\n'


def test_a_probe_on_the_cpu_needs_no_gpu_at_any_tier(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["--out", str(tmp_path / "x.csv"), *experiments.options(folder), "--tier", "single_gpu"]
    assert _command.run("sizes", lambda plan: [Row(0)], arguments, uses_gpu=False) == 0


def test_a_probe_of_optimizers_measures_its_own_or_those_named(folder, tmp_path, capsys):
    measured = []

    def measure(plan, labels):
        measured.append(list(labels))
        return [Row(0)]

    arguments = ["--out", str(tmp_path / "x.csv"), *experiments.options(folder)]
    assert _command.run("sizes", measure, arguments, optimizers=("base", "mkor")) == 0
    named = [*arguments, "--optimizers", "soap", "mkor_windowed"]
    assert _command.run("sizes", measure, named, optimizers=("base", "mkor")) == 0
    assert measured == [["base", "mkor"], ["soap", "mkor_windowed"]]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["cost", "cost"]
    assert _command.run("sizes", measure, [*arguments, "--optimizers", "mkro"], optimizers=("base",)) == 1
    assert capsys.readouterr().err == "optimizer = 'mkro': unknown; did you mean 'mkor'?\n"


@pytest.mark.parametrize("label", sorted({*_models.VARIANTS, *available_methods()}))
def test_every_method_and_variant_is_an_optimizer_with_one_refresh_in_ten_steps(label):
    """Truth: its file, found by name; a method's own account of the steps that refresh."""
    model = autoencoder()
    (optimizer,) = _models.optimizers(model, 1e-4, [label])
    assert optimizer.hyperparameters["lr"] == 1e-4
    method = _models.method_of(label)
    if method is None:
        assert optimizer.method == label
        assert optimizer.period is None
    else:
        assert isinstance(method, method_class(optimizer.method))
        assert optimizer.hyperparameters["base"] == model.base
        assert optimizer.period == (10 if any(hasattr(method, name) for name in _models.PERIOD_FIELDS) else None)
    assert optimizer.runs_on(1)


def test_an_optimizer_that_cannot_train_in_parallel_runs_on_one_worker_only():
    """Truth: the limits that the files declare."""
    alone = {name for name in available_methods() if not TimedOptimizer(name, name, {}).runs_on(2)}
    assert alone == {name for name in available_methods() if "data_parallel" in limits(name)} != set()


def test_a_tier_on_a_cpu_measures_its_experiments_workloads(folder):
    (model,) = _models.probe_models(experiments.load(folder))
    assert (model.name, model.data.batch_size) == ("autoencoder", 128)
    assert next(model.data.batches(seed=0))["images"].shape == (128, 64)


def test_a_tier_on_a_gpu_measures_the_paper_s_models():
    """Truth: the paper's sizes; torchvision's ResNet-50 has 25,557,032 parameters."""
    with torch.device("meta"):
        assert sum(p.numel() for p in _models.resnet50().parameters()) == 25_557_032
        bert = _models.bert_large(batch_size=1).make()
    assert sum(p.numel() for p in bert.bert.parameters()) == 335_141_888


def test_random_batches_are_a_function_of_seed_and_number():
    data = _models.bert_large(batch_size=2, sequence_length=100)
    third = next(data.batches(seed=1, start=2))
    again = [batch for _, batch in zip(range(3), data.batches(seed=1), strict=False)][2]
    assert all(torch.equal(third[name], again[name]) for name in third)
    assert (third["labels"] >= 0).sum(1).tolist() == [80, 80]
    other = next(data.batches(seed=2, start=2))
    assert not torch.equal(third["input_ids"], other["input_ids"])


def whoami() -> tuple[int, int, int, int]:
    return os.getpid(), comm.rank(), comm.world_size(), torch.get_num_threads()


def fail() -> None:
    raise ValueError("on purpose")


def test_every_rank_answers_from_a_process_of_its_own():
    results = _ranks.run(2, whoami)
    assert [(rank, world, threads) for _, rank, world, threads in results] == [
        (0, 2, torch.get_num_threads()),
        (1, 2, torch.get_num_threads()),
    ]
    assert len({os.getpid(), *(pid for pid, *_ in results)}) == 3
    assert _ranks.run(1, whoami)[0][1:3] == (0, 1)


def test_a_rank_that_fails_is_an_error_here():
    with pytest.raises(ProcessRaisedException, match="on purpose"):
        _ranks.run(2, fail)


def test_probes_of_experiments_need_one_in_the_plan(folder):
    plan = experiments.load(folder)
    # That of the field's steps measures the field's experiments alone.
    of_any = [name for name in available("probes") if name != "field_steps"]
    assert [probe.name for probe in planned_probes(plan)] == of_any
    left = {probe.name for probe in planned_probes(replace(plan, experiments={}))}
    assert left == {name for name in available("probes") if not describe("probes", name).experiments}
    assert {"numerics", "half_precision", "communication", "cost_scaling"} <= left


SYSTEMS = "workflow/systems.yaml"


def test_probes_state_their_needs_as_literals(monkeypatch):
    monkeypatch.chdir(ROOT)
    needs = {name: describe("probes", name) for name in available("probes")}
    on_the_cpu = {"communication", "field_steps", "half_precision", "numerics", "projection", "sharding", "sizes"}
    assert {name for name, probe in needs.items() if not probe.uses_gpu} == on_the_cpu
    alone = {"cost_scaling", "iteration_time", "scaling", "step_breakdown", "step_time"}
    assert {name for name, probe in needs.items() if probe.cores == "all"} == alone
    assert {probe.cores for name, probe in needs.items() if name not in alone} == {1}
    assert {name: probe.files for name, probe in needs.items() if probe.files} == {"projection": (SYSTEMS,)}
    assert files_of(needs["projection"]) == [SYSTEMS]
    assert (ROOT / SYSTEMS).samefile(_links.SYSTEMS)
    assert {name for name, probe in needs.items() if probe.timing} == alone | {"communication", "memory", "sharding"}
