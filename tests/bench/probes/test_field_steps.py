"""The probe of the field tier's steps: operations by formula, and what SGD, KFAC's factors and Adam do to gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mkor_core.capture.discovery import find_layers
from workflow.bench import workloads
from workflow.bench.plan.runs import Run
from workflow.bench.probes import _ranks, field_steps
from workflow.bench.probes._counting import Counting
from workflow.bench.probes.field_steps import TrainedMethod, turns

CPU = torch.device("cpu")
WORKLOAD = {"name": "autoencoder", "dataset": "digits", "batch_size": 16, "hidden": [8]}
WEIGHTS = 64 * 8 + 8 + 8 * 64 + 64


def run_of(name: str, **hyperparameters: Any) -> Run:
    optimizer = {"name": name, "hyperparameters": {"lr": 0.01, **hyperparameters}}
    return Run({"workload": WORKLOAD, "seed": 0, "start_from": None, "optimizer": optimizer})


def turns_of(run: Run) -> list[field_steps.Turn]:
    data = workloads.create(**WORKLOAD)
    trained = TrainedMethod(run, data)
    matrices = {name: layer.module.weight for name, layer in find_layers(trained.model, data.exclude).items()}
    found = turns(trained, matrices, run.hyperparameters.get("momentum", 0.0), steps=3)
    assert len(found) == 2
    return [turn for of_matrix in found.values() for turn in of_matrix]


def operations(code: str, **tensors: torch.Tensor) -> float:
    with Counting(CPU) as counts:
        eval(code, {"torch": torch, **tensors})
    return counts.operations


def test_operations_are_those_of_the_formulas():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    square = torch.eye(6)
    assert operations("a @ b", a=a, b=b) == 2 * 5 * 7 * 3
    assert operations("a + 1", a=a) == 35
    assert operations("a.T", a=a) == 0
    assert operations("torch.linalg.eigh(a)", a=square) == 9 * 6**3
    assert operations("torch.linalg.eigh(a)", a=square.expand(4, 6, 6)) == 4 * 9 * 6**3
    assert operations("torch.linalg.qr(a)", a=a.T) == pytest.approx(4 * 7 * 5**2 - 4 * 5**3 / 3)
    assert operations("torch.linalg.svd(a, full_matrices=False)", a=a) == 14 * 7 * 5**2 + 8 * 5**3


def test_sgd_takes_the_step_of_sgd():
    for turn in turns_of(run_of("sgd", momentum=0.9)):
        assert turn == pytest.approx((1.0, 1.0), abs=1e-4)


def test_a_large_damping_divides_and_turns_nothing():
    """CG-FAC solves (M + damping I) V = D; where the damping is large, V is D / damping."""
    for turn in turns_of(run_of("cgfac", base="sgd", momentum=0.9, damping=1e3, lr=1e3)):
        assert turn == pytest.approx((1.0, 1e-3), rel=1e-2)


def test_adam_turns_the_gradient():
    assert all(turn.cosine < 0.99 and turn.norm > 10 for turn in turns_of(run_of("adamw")))


def test_a_row_has_the_state_and_the_work_beside_forward_and_backward():
    data, run = workloads.create(**WORKLOAD), run_of("sgd", momentum=0.9)
    row = field_steps._row("x", "sgd", run, data, field_steps.plain_counts(run, data), None, "test")
    assert (row.parameter_bytes, row.state_bytes) == (4 * WEIGHTS, 4 * WEIGHTS)  # the velocity
    assert 2 * WEIGHTS <= row.operations <= 6 * WEIGHTS  # velocity and weight, each scaled and added to


def test_a_method_that_refuses_several_ranks_has_no_bytes_sent(monkeypatch: pytest.MonkeyPatch):
    runs = {"singd": run_of("singd"), "mkor": run_of("mkor", base="sgd"), "dp_kfac": run_of("dp_kfac")}
    jobs = {label: SimpleNamespace(runs=[run]) for label, run in runs.items()}
    plan: Any = SimpleNamespace(experiments={"field_autoencoder": SimpleNamespace(jobs=jobs)}, hardware="test")

    def ranks(number: int, function: Any, given: Any) -> list[dict[str, float]]:
        assert number == field_steps.RANKS
        return [{run.id: float(rank) for run in given} for rank in range(number)]

    monkeypatch.setattr(_ranks, "run", ranks)
    sent = {row.optimizer: row.sent_bytes for row in field_steps.measure(plan)}
    assert sent == {"singd": None, "mkor": 1, "dp_kfac": 1}
