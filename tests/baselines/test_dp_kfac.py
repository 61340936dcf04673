"""Truth: KAISA's rule with factors per example, of the rows that the owner of a layer has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from baselines import build
from baselines.kfac import dp_kfac
from baselines.kfac._per_example import PerExampleKFAC
from mkor_core import Preconditioner
from mkor_core.capture.autograd import Precision, matmul_precision, usual_precision
from mkor_core.ranks import comm
from tests.support.rank_processes import results_of

OWNERS = {"0": 0, "2": 1, "4": 0}
"""Layers go to two ranks in turn."""
OPTIONS: dict[str, Any] = {"factor_decay": 0.7, "damping": 0.1, "kl_clip": None}
RATE, EXAMPLES = 0.1, 8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def batch(rank: int, world: int) -> torch.Tensor:
    inputs = torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return inputs.chunk(world)[rank]


def step(rank: int, world: int) -> dict[str, Any]:
    """Return what a rank has after a step: the weights, the factors and the bytes sent."""
    model = network()
    wrapped = DistributedDataParallel(model)
    optimizer, _ = build("dp_kfac", wrapped, {"lr": RATE, "momentum": 0.0, **OPTIONS})
    comm.reset_bytes_sent()
    wrapped(batch(rank, world)).square().mean().backward()
    optimizer.step()
    layers = optimizer.state_dict()["dp_kfac"]["layers"]
    weights = [parameter.detach() for parameter in model.parameters()]
    return {"weights": weights, "layers": layers, "bytes": comm.bytes_sent()}


@pytest.mark.parametrize("chosen", [{}, {"compute_method": "inverse", "kl_clip": None, "factor_decay": 0.5}])
def test_on_one_process_it_is_kaisas_rule_with_factors_per_example(chosen: dict[str, Any]):
    results = []
    shared = {"factor_decay": 0.95, "factor_update_period": 2, "inverse_update_period": 3, **chosen}
    for name in ("sgd", "dp_kfac"):
        model = network()
        own = shared if name == "dp_kfac" else {}
        optimizer, _ = build(name, model, {"lr": 0.05, "momentum": 0.9, **own})
        if name == "sgd":
            Preconditioner(model, PerExampleKFAC(**shared)).attach(optimizer)
        for _ in range(5):
            optimizer.zero_grad()
            model(batch(0, 1)).square().mean().backward()
            optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    assert_close(results[1], results[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("parts", [1, 2])
def test_its_factors_are_those_of_the_loss_of_an_example(parts: int):
    """Truth: ``C = N G^T G`` for the rows of the mean loss over N examples, in any number of micro-batches."""
    torch.manual_seed(0)
    layer, inputs = nn.Linear(4, 3).double(), batch(0, 1)
    options = {"lr": RATE, "factor_decay": 0.5, "kl_clip": None}
    optimizer, _ = build("dp_kfac", layer, options, accumulation_steps=parts)
    output = layer(inputs)
    (grad,) = torch.autograd.grad(output.square().mean(), output)
    for part in inputs.chunk(parts):
        (layer(part).square().mean() / parts).backward()
    optimizer.step()
    state = optimizer.state_dict()["dp_kfac"]["layers"][""]
    rows = torch.cat([inputs, torch.ones(EXAMPLES, 1).double()], 1)
    assert_close(state["left"], 0.5 * torch.eye(3).double() + 0.5 * EXAMPLES * grad.T @ grad)
    assert_close(state["right"], 0.5 * torch.eye(5).double() + 0.5 * rows.T @ rows / EXAMPLES)


def test_products_have_the_precisions_of_a_preconditioners(monkeypatch: pytest.MonkeyPatch):
    """TF32 on gradients on CUDA, as KAISA has it, and float32 for factors, whatever the program has chosen."""
    found, current = [], ["none"]

    @contextmanager
    def at(precision: Precision) -> Iterator[None]:
        current.append(precision)
        with matmul_precision(precision):
            yield
        current.pop()

    monkeypatch.setattr(dp_kfac, "matmul_precision", at)
    monkeypatch.setattr(dp_kfac, "usual_precision", lambda device: "high")
    for name in ("accumulate", "refresh", "precondition"):
        original = getattr(PerExampleKFAC, name)

        def record(*arguments: Any, name: str = name, original: Any = original) -> Any:
            found.append((name, current[-1]))
            return original(*arguments)

        monkeypatch.setattr(PerExampleKFAC, name, record)
    model = network()
    optimizer, _ = build("dp_kfac", model, {"lr": 0.1})
    model(batch(0, 1)).square().mean().backward()
    optimizer.step()
    assert [usual_precision(torch.device(name)) for name in ("cuda", "cpu")] == ["high", "highest"]
    assert {*found} == {("accumulate", "highest"), ("refresh", "highest"), ("precondition", "high")}


@pytest.fixture(scope="module")
def of_ranks() -> list[dict[str, Any]]:
    """What each of two ranks has after a step."""
    return results_of((2, step, ()))[0]


def test_only_its_owner_has_a_layer_s_factors(of_ranks):
    for rank, found in enumerate(of_ranks):
        assert set(found["layers"]) == {name for name, owner in OWNERS.items() if owner == rank}


def test_ranks_take_the_steps_of_kaisa_on_the_owners_shares(of_ranks):
    """Factors from the owner's share of the batch and its own mean loss, gradients from the whole batch."""
    kfac, states = PerExampleKFAC(**OPTIONS), {}
    for rank in range(2):
        model = network()
        alone = Preconditioner(model, kfac)
        model(batch(rank, 2)).square().mean().backward()
        alone.step()
        layers = alone.state_dict()["layers"]
        states |= {name: layers[name] for name, owner in OWNERS.items() if owner == rank}
        for name in of_ranks[rank]["layers"]:
            for side in ("left", "right"):
                assert_close(of_ranks[rank]["layers"][name][side], layers[name][side], rtol=1e-12, atol=1e-15)
    model = network()
    model(batch(0, 1)).square().mean().backward()
    for name, state in states.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        value = kfac.precondition(state, torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1))
        with torch.no_grad():
            layer.weight -= RATE * value[:, :-1]
            layer.bias -= RATE * value[:, -1]
    for found in of_ranks:
        assert_close(found["weights"], [*model.parameters()], rtol=1e-10, atol=1e-13)


def test_no_factor_is_sent_and_each_owner_sends_its_updates(of_ranks):
    for rank, found in enumerate(of_ranks):
        numbers = sum(
            parameter.numel()
            for name, owner in OWNERS.items()
            if owner == rank
            for parameter in network().get_submodule(name).parameters()
        )
        assert found["bytes"] == {"broadcast": 8 * numbers}


def test_a_rank_takes_its_layers_from_a_checkpoint_and_leaves_the_others(monkeypatch):
    saved = build("dp_kfac", network(), {"lr": 0.1})[0]
    model = network()
    optimizer, _ = build("dp_kfac", model, {"lr": 0.1})
    model(batch(0, 1)).square().mean().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert set(state["dp_kfac"]["layers"]) == set(OWNERS)
    monkeypatch.setattr(saved._owners, "owns", lambda name: name == "2")
    saved.load_state_dict(state)
    assert set(saved._states.by_layer()) == {"2"}
