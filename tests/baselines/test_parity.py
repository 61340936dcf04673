"""The ledger of docs/parity.md. Truth: rivals' released code, of which that on the package index is run again here.

Truth of the rest: its columns, its causes, and that no method is missing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from baselines import available, build
from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

# isort: split
import pytorch_optimizer
import timm.optim
from singd.optim.optimizer import SINGD
from timm.optim.kron import Kron

from baselines.parts.groups import decay_matrices_only

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "results" / "reference" / "parity.csv"
PAGE = ROOT / "docs" / "parity.md"
COLUMNS = ["method", "upstream", "commit_or_version", "workload", "steps", "dtype", "relative_error", "cause"]
STEPS, EXAMPLES = 20, 20
ROUNDING = 1e-12
"""Errors below are equal: the order of a sum decides them."""

Make = Callable[[nn.Module], Callable[[], object]]
"""Returns the step of an optimizer of a model, which uses the gradients that the parameters have."""


@dataclass(frozen=True)
class Case:
    """A rival and its truth: our hyperparameters, and the other code with the same ones."""

    method: str
    upstream: str
    hyperparameters: Mapping[str, Any]
    theirs: Make
    workloads: tuple[str, ...] = ("linear", "conv2d")


class _Draws:
    """The numbers that our PSGD-Kron draws in a step, for timm's: noise and whether norms are balanced."""

    step = 0

    def random(self) -> float:
        chance = random.Random(self.step)
        chance.random()  # whether factors are updated, for which both have a probability of 1 here
        return chance.random()

    def randint(self, *_: int) -> int:
        return self.step


def _of(make: Callable[[nn.Module], Optimizer]) -> Make:
    return lambda model: make(model).step


def _decayed(model: nn.Module, rate: float = 0.1) -> list[dict[str, Any]]:
    return decay_matrices_only(model.parameters(), rate)


def _with_adamw(make: Callable[[list[nn.Parameter]], Optimizer]) -> Make:
    """Return what steps matrices by an optimizer and vectors by AdamW, as our Muons do."""

    def made(model: nn.Module) -> Callable[[], None]:
        optimizers = [
            make([parameter for parameter in model.parameters() if parameter.dim() > 1]),
            AdamW(
                [parameter for parameter in model.parameters() if parameter.dim() == 1],
                lr=0.02,
                betas=(0.9, 0.95),
                eps=1e-10,
                weight_decay=0.0,
            ),
        ]

        def step() -> None:
            for optimizer in optimizers:
                optimizer.step()

        return step

    return made


def _torchs_muon(adjust: str, *, nesterov: bool = True) -> Make:
    return _with_adamw(
        lambda matrices: Muon(matrices, lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn=adjust)
    )


def _normuon(scale: str) -> Make:
    def make(matrices: list[nn.Parameter]) -> Optimizer:
        group = {"params": matrices, "use_muon": True, "weight_decay": 0.1}
        return pytorch_optimizer.NorMuon([group], lr=0.02, update_scale=scale)

    return _with_adamw(make)


def _kron(model: nn.Module) -> Callable[[], None]:
    optimizer = Kron(
        _decayed(model),
        lr=0.01,
        preconditioner_update_probability=1.0,
        decoupled_decay=True,
        deterministic=True,
        flatten=True,
        flatten_start_dim=1,
    )
    optimizer.rng = draws = _Draws()

    def step() -> None:
        draws.step += 1
        optimizer.step()

    return step


def _shampoo(model: nn.Module) -> Optimizer:
    return pytorch_optimizer.ScalableShampoo(
        _decayed(model, 0.0),
        lr=0.01,
        betas=(0.9, 0.95),
        decoupled_weight_decay=True,
        start_preconditioning_step=1,
        preconditioning_compute_steps=3,
        shape_interpretation=False,
    )


DECAYED = {"lr": 0.01, "weight_decay": 0.1}
OF_MUON = {"lr": 0.02, "weight_decay": 0.1}
CASES = [
    Case("sgd", "torch", {"lr": 0.05}, _of(lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9))),
    Case("adamw", "torch", DECAYED, _of(lambda model: AdamW(_decayed(model), lr=0.01))),
    Case("nadamw", "timm", DECAYED, _of(lambda model: timm.optim.NAdamW(_decayed(model), lr=0.01))),
    Case(
        "lamb",
        "timm",
        DECAYED,
        _of(lambda model: timm.optim.Lamb(_decayed(model), lr=0.01, bias_correction=False, max_grad_norm=1.0)),
    ),
    Case(
        "lamb",
        "pytorch_optimizer",
        DECAYED,
        _of(lambda model: pytorch_optimizer.Lamb(_decayed(model), lr=0.01, eps=1e-6)),
    ),
    Case("muon", "torch", OF_MUON, _torchs_muon("match_rms_adamw"), ("linear",)),
    Case("muon", "torch, original", {**OF_MUON, "match_adamw_rms": False}, _torchs_muon("original"), ("linear",)),
    Case(
        "muon",
        "torch, no Nesterov",
        {**OF_MUON, "nesterov": False},
        _torchs_muon("match_rms_adamw", nesterov=False),
        ("linear",),
    ),
    Case("normuon", "pytorch_optimizer", OF_MUON, _normuon("preserve_norm"), ("linear",)),
    Case(
        "normuon",
        "pytorch_optimizer, match_rms",
        {**OF_MUON, "length": "match_rms"},
        _normuon("match_rms"),
        ("linear",),
    ),
    Case("shampoo", "pytorch_optimizer", {"lr": 0.01, "inverse_update_period": 3}, _of(_shampoo)),
    Case(
        "soap",
        "pytorch_optimizer",
        {**DECAYED, "update_period": 3},
        _of(lambda model: pytorch_optimizer.SOAP(_decayed(model), lr=0.01, precondition_frequency=3)),
    ),
    Case("psgd_kron", "timm", {**DECAYED, "update_probability": 1.0}, _kron),
    Case(
        "singd",
        "singd",
        {"lr": 0.01, "update_period": 2},
        _of(lambda model: SINGD(model, lr=0.01, momentum=0.9, T=2, normalize_lr_cov=True)),
    ),
]


def network(workload: str) -> nn.Sequential:
    """Return a small model whose matrices are tall, wide and nearly square."""
    # Sides that differ by at most one leave the basis of a singular factor no choice but a sign.
    torch.manual_seed(0)
    if workload == "linear":
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5)).double()
    return nn.Sequential(nn.Conv2d(1, 5, 2), nn.Tanh(), nn.Conv2d(5, 19, 2, stride=2)).double()


def trained(workload: str, make: Make) -> list[tuple[Tensor, Tensor]]:
    """Return every parameter before and after the ledger's steps."""
    model = network(workload)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    step = make(model)
    shapes = {"linear": ((5,), (5,)), "conv2d": ((1, 7, 7), (19, 3, 3))}[workload]
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(number)
        inputs, targets = (torch.randn(EXAMPLES, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
        model.zero_grad()
        (model(inputs + 0.5) - targets).square().mean().backward()
        step()
    return [(old, parameter.detach()) for old, parameter in zip(start, model.parameters(), strict=True)]


def relative_error(workload: str, case: Case) -> float:
    """Return the ledger's error: over parameters, the largest distance of both results by the way of theirs."""
    ours = trained(workload, _of(lambda model: build(case.method, model, case.hyperparameters)[0]))
    theirs = trained(workload, case.theirs)
    return max(
        float((one - other).norm() / (other - start).norm())
        for (_, one), (start, other) in zip(ours, theirs, strict=True)
    )


@pytest.fixture(scope="module")
def ledger() -> pd.DataFrame:
    return pd.read_csv(LEDGER, keep_default_na=False)


@pytest.mark.parametrize(
    ("case", "workload"),
    [
        pytest.param(case, workload, id=f"{case.method}-{case.upstream}-{workload}")
        for case in CASES
        for workload in case.workloads
    ],
)
def test_a_package_s_row_is_what_it_was(ledger, case, workload):
    rows = ledger[(ledger.method == case.method) & (ledger.upstream == case.upstream) & (ledger.workload == workload)]
    assert len(rows) == 1
    recorded, found = float(rows.relative_error.iloc[0]), relative_error(workload, case)
    assert max(found, ROUNDING) < 10 * max(recorded, ROUNDING)
    assert max(recorded, ROUNDING) < 10 * max(found, ROUNDING)


def test_the_ledger_has_its_columns_and_a_cause_for_every_difference(ledger):
    assert [*ledger.columns] == COLUMNS
    assert ledger.method.nunique() >= 22
    assert (ledger.steps == STEPS).all()
    assert not ledger.duplicated(["method", "upstream", "workload", "dtype"]).any()
    without = ledger[(ledger.relative_error > 1e-6) & (ledger.cause == "")]
    assert without.empty, without


def test_every_optimizer_is_in_the_ledger_or_has_a_reason(ledger):
    _, rest = PAGE.read_text(encoding="utf-8").split("## Without a row\n")
    reasons = re.findall(r"^- `(\w+)`: \S", rest, flags=re.MULTILINE)
    assert sorted([*{*ledger.method}, *reasons]) == [*available()]
