"""The contract of every method file, found by name: what any optimizer of the harness must do."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import available, build, method_class

SECOND_ORDER = [name for name in available() if method_class(name) is not None]
FAST: dict[str, dict[str, Any]] = {
    "mkor": {"inverse_update_period": 2},
    "mkor_h": {"inverse_update_period": 2, "warmup_steps": 100},
    "kaisa": {"factor_update_period": 1, "inverse_update_period": 2},
    "hylo": {"update_period": 2},
}
"""Periods short enough that a few steps show the method."""
LEARNING_RATES = {"lamb": 0.02, "adamw": 0.02, "hylo": 0.01}
OTHER_VALUES: dict[str, Any] = {
    "update_rule": "released",
    "factor_decay": 0.5,
    "inverse_update_period": 3,
    "factor_update_period": 3,
    "update_period": 3,
    "stabilizer_threshold": 0.5,
    "stabilizer_blend": 0.3,
    "rescale": False,
    "factor_dtype": "bfloat16",
    "window": 1,
    "rank": 2,
    "damping": 0.7,
    "kl_clip": 1e-7,
    "compute_method": "inverse",
    "variant": "KID",
    "sample_fraction": 0.5,
    "knee_beta": 1e6,
    "warmup_steps": 3,
    "lr": 0.003,
    "momentum": 0.5,
    "weight_decay": 0.2,
    "nesterov": True,
    "beta1": 0.5,
    "beta2": 0.5,
    "eps": 1e-2,
    "max_grad_norm": 1e-3,
}
ONLY_ON_SEVERAL_RANKS = {"grad_worker_fraction", "rows"}
NEEDS = {
    "stabilizer_blend": {"stabilizer_threshold": 0.5},
    "knee_beta": {"warmup_steps": 3},
    "warmup_steps": {"knee_beta": 1e6},
}


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 6), nn.Linear(6, 2)
    ).to(dtype)


def data(number: int = 16, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(number, 1, 6, 6, generator=generator)
    return inputs.to(dtype), inputs.mean((2, 3)).repeat(1, 2).to(dtype)


def options(name: str, **changes: Any) -> dict[str, Any]:
    return {"lr": LEARNING_RATES.get(name, 0.05), **FAST.get(name, {}), **changes}


def train(name: str, chosen: dict[str, Any], steps: int = 12, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    model = network(dtype)
    optimizer, preconditioner = build(name, model, chosen)
    inputs, targets = data(dtype=dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        if preconditioner is not None:
            preconditioner.observe(loss)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def hyperparameters(name: str) -> list[str]:
    cls = method_class(name)
    if cls is None:
        return list(inspect.signature(import_module(f"baselines.{name}").optimizer).parameters)[1:]
    return [field.name for field in fields(cls) if field.default is not MISSING]


CASES = [(name, key) for name in available() for key in hyperparameters(name) if key not in ONLY_ON_SEVERAL_RANKS]


def test_every_file_is_found():
    assert {"adamw", "eva", "hylo", "kaisa", "lamb", "mkor", "mkor_h", "sgd"} <= set(available())


@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_hyperparameter_changes_the_result(name, key):
    chosen = options(name, **NEEDS.get(key, {}))
    assert chosen.get(key) != OTHER_VALUES[key]
    one, other = train(name, chosen), train(name, {**chosen, key: OTHER_VALUES[key]})
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_model_of_any_precision_learns(name, dtype):
    """The loss of a linear teacher falls to less than half in 40 steps, and every weight stays finite."""
    torch.manual_seed(0)
    model, teacher = nn.Linear(6, 4).to(dtype), nn.Linear(6, 4).to(dtype)
    optimizer, preconditioner = build(name, model, options(name))
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    targets = teacher(inputs).detach()
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        losses.append(float(loss.detach()))
        if preconditioner is not None:
            preconditioner.observe(loss)
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.isfinite().all() and parameter.dtype == dtype for parameter in model.parameters())


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_parameters_outside_any_layer_get_the_base_optimizers_step(name):
    """One step from the same start: BatchNorm's weights move as under plain SGD."""
    plain, chosen = network(), network()
    for model, method in ((plain, "sgd"), (chosen, name)):
        optimizer, _ = build(method, model, {"lr": 0.05} if method == "sgd" else options(name, lr=0.05))
        inputs, targets = data()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    assert_close([*chosen[1].parameters()], [*plain[1].parameters()], rtol=0, atol=0)
    assert not torch.equal(chosen[0].weight, plain[0].weight)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_micro_batches_train_like_the_full_batch(name):
    """Four quarters with their mean losses divided by four, in float64; BatchNorm, which sees a quarter, left out."""
    results = []
    for parts in (1, 4):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 2)).double()
        optimizer, preconditioner = build(name, model, options(name), accumulation_steps=parts)
        inputs, targets = data(dtype=torch.float64)
        for _ in range(5):
            optimizer.zero_grad()
            for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
                loss = (model(x) - y).square().mean() / parts
                loss.backward()
                assert preconditioner is not None
                preconditioner.observe(loss)
            optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_state_does_not_grow(name):
    model = network()
    optimizer, preconditioner = build(name, model, options(name))
    assert preconditioner is not None
    inputs, targets = data()
    sizes = set()
    for step in range(60):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        preconditioner.observe(1.0 - 0.001 * step)
        optimizer.step()
        if step > 2:
            sizes.add(preconditioner.memory_bytes())
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("adams", {"lr": 0.1}, "There is no optimizer 'adams'; there are adamw, "),
        ("sgd", {"lr": 0.1, "momentun": 0.9}, "sgd has no hyperparameter 'momentun'; it has lr, momentum"),
        ("mkor", {"lr": 0.1, "rang": 2}, "mkor with base sgd has no hyperparameter 'rang'; it has update_rule, "),
        ("mkor", {"lr": 0.1, "base": "kaisa"}, "base='kaisa' is no first-order optimizer"),
        ("mkor", {}, "missing 1 required keyword-only argument: 'lr'"),
        ("kaisa", {"lr": 0.1, "damping": -1.0}, "damping=-1.0 must be a finite number above 0"),
    ],
)
def test_a_wrong_request_is_refused_in_words(name, chosen, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(name, network(), chosen)
