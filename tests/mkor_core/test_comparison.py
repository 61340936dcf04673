"""The comparison of V with D. Truth: dense, from copies taken by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.maths import inverses
from tests.support.reference import joined

METHODS: dict[str, Method] = {
    "dense": MKOR(inverse_update_period=1),
    "window": MKOR(inverse_update_period=1, window=2),
    "input side": MKOR(inverse_update_period=1, sides="input"),
    "kaisa": KAISA(factor_update_period=1, inverse_update_period=1, kl_clip=None),
    "kaisa inverse": KAISA(
        factor_update_period=1, inverse_update_period=1, kl_clip=None, compute_method="inverse", factor_decay=0.5
    ),
    "eva": Eva(kl_clip=None),
    "hylo": HyLo(update_period=1),
}


def step(preconditioner: Preconditioner, model: nn.Module, seed: int) -> tuple[Tensor, Tensor]:
    """Take a step; return the first layer's D and V."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(8, 4, generator=generator, dtype=torch.float64)).square().mean().backward()
    layer: Any = model.get_submodule("0")
    before = joined(layer)
    preconditioner.step()
    return before, joined(layer)


def trained(name: str) -> tuple[Preconditioner, Tensor, Tensor]:
    """Return a preconditioner after three compared steps, and the first layer's D and V in the last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    preconditioner = Preconditioner(model, METHODS[name])
    for seed in range(3):
        preconditioner.compare_next_step()
        before, after = step(preconditioner, model, seed)
    return preconditioner, before, after


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize("name", METHODS)
def test_direction_and_length_are_those_of_the_step(name):
    preconditioner, before, after = trained(name)
    found = preconditioner.comparisons()
    assert list(found) == ["0", "2"]
    assert found["0"].cosine == pytest.approx(cosine(before, after))
    assert found["0"].ratio == pytest.approx(float(after.norm() / before.norm()))


@pytest.mark.parametrize("name", ["dense", "window", "input side", "kaisa", "kaisa inverse"])
def test_sides_are_those_of_the_factors(name):
    """Truth: J_L D and D J_R with the factors of the state as matrices."""
    preconditioner, before, _ = trained(name)
    state = preconditioner.state_dict()["layers"]["0"]
    found = preconditioner.comparisons()["0"]
    sides = ("right",) if name == "input side" else ("left", "right")
    assert set(found.by_side) == set(sides)
    for side in sides:
        if name == "kaisa":
            damped = state[side] + 1e-3 * torch.eye(len(state[side]), dtype=torch.float64)
            inverse = torch.linalg.inv(damped)
        elif name == "kaisa inverse":
            inverse = state[f"{side}_inverse"]
        else:
            inverse = inverses.from_state(state, side).to_matrix()
        value = inverse @ before if side == "left" else before @ inverse
        assert found.by_side[side] == pytest.approx(cosine(before, value))


@pytest.mark.parametrize(("name", "weight"), [("dense", 0.9**3), ("kaisa inverse", 0.5**3), ("eva", None)])
def test_the_identity_keeps_the_decays_power(name, weight):
    preconditioner, _, _ = trained(name)
    found = preconditioner.comparisons()["0"].start_weight
    assert found == (None if weight is None else pytest.approx(weight, rel=1e-6))


def test_a_comparison_is_of_the_step_that_was_asked_for_and_changes_nothing():
    weights = []
    for compares in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        preconditioner = Preconditioner(model, MKOR(inverse_update_period=1)).attach(optimizer)
        found = []
        for seed in range(4):
            if compares and seed == 1:
                preconditioner.compare_next_step()
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(seed)
            model(torch.randn(8, 4, generator=generator, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
            found.append(preconditioner.comparisons())
        weights.append([parameter.detach() for parameter in model.parameters()])
        assert [bool(one) for one in found] == [False, compares, compares, compares]
        assert found[1] == found[3]
    assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_a_gradient_of_zero_has_no_direction():
    model = nn.Sequential(nn.Linear(4, 5)).double()
    preconditioner = Preconditioner(model, MKOR())
    preconditioner.compare_next_step()
    (0 * model(torch.ones(2, 4, dtype=torch.float64)).sum()).backward()
    preconditioner.step()
    assert math.isnan(preconditioner.comparisons()["0"].cosine)
