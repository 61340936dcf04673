"""The specification against dense inverses and explicit rows; every engine against the specification. In float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.testing import assert_close

from mkor_core import MKOR, Preconditioner
from mkor_core.reference import RULES, ReferenceMKOR, rescaled, rows, stabilized
from tests.support import reference
from tests.support.matrices import random, spd

STEPS = 30


def published_by_entry(inverse: Tensor, v: Tensor, gamma: float) -> Tensor:
    """Return A2, computed entry by entry."""
    d = len(v)
    jv = [sum(inverse[i, k] * v[k] for k in range(d)) for i in range(d)]
    quadratic = sum(v[i] * jv[i] for i in range(d))
    coefficient = (1 - gamma) / (gamma**2 * (1 + gamma * (1 - gamma) * quadratic))
    return torch.stack(
        [torch.stack([gamma * inverse[i, k] + coefficient * jv[i] * jv[k] for k in range(d)]) for i in range(d)]
    )


def averaged_inverse(inverse: Tensor, v: Tensor, gamma: float) -> Tensor:
    """Return the meaning of A3: the averaged factor, inverted densely."""
    return torch.linalg.inv(gamma * torch.linalg.inv(inverse) + (1 - gamma) * torch.outer(v, v))


def added_inverse(inverse: Tensor, v: Tensor, beta: float) -> Tensor:
    """Return the meaning of A4: the blended inverse's factor plus ``v v^T``, inverted densely."""
    blended = beta * inverse + (1 - beta) * torch.eye(len(v), dtype=inverse.dtype)
    return torch.linalg.inv(torch.linalg.inv(blended) + torch.outer(v, v))


TRUTHS = {"sherman_morrison": averaged_inverse, "published": published_by_entry, "released": added_inverse}


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_what_its_dense_truth_says(rule, decay, scale):
    J, v = spd(7).inverse(), scale * random(7)
    assert_close(RULES[rule](J, v, decay), TRUTHS[rule](J, v, decay), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("share", [0.5, 1.0, 1.5])
def test_the_stabilizer_looks_for_the_largest_entry(share):
    J = spd(6)
    largest = J.abs().max().item()
    expected = 0.8 * J + 0.2 * torch.eye(6, dtype=J.dtype) if share < 1 else J
    assert_close(stabilized(J, share * largest, 0.8), expected)


@pytest.mark.parametrize("value", [1e-150, 1.0, 1e150, 0.0, math.inf, math.nan])
def test_a_rescaled_update_has_the_norm_of_its_gradient_and_is_the_gradient_where_it_has_no_direction(value):
    D, direction = random(4, 5), random(4, 5, seed=1)
    expected = direction * D.norm() / direction.norm() if 0 < value < math.inf else D
    assert_close(rescaled(value * direction, D), expected, rtol=1e-12, atol=0)
    assert not rescaled(direction * 0, D * 0).any()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 3),
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 2), dilation=(2, 1)),
        nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"),
        nn.Conv2d(2, 3, 3, padding="valid"),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [(5,), ()])
def test_rows_multiply_to_the_gradient(layer, batch):
    """Truth: autograd's gradient of the weight."""
    layer = layer.double().requires_grad_()
    x = random(*batch, *((4,) if isinstance(layer, nn.Linear) else (2, 6, 7)))
    y = layer(x)
    dy = random(*y.shape, seed=1)
    X, G = rows(layer, x, dy)
    (dW,) = torch.autograd.grad(y, layer.weight, dy)
    assert_close(G.flatten(0, 1).T @ X.flatten(0, 1), dW.flatten(1), rtol=1e-12, atol=1e-12)
    assert len(X) == len(G) == (batch or (1,))[0]


def network(kind: str, bias: bool) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Return a model and the shape of its inputs; two of the layers have the same shape, and are one stack."""
    torch.manual_seed(0)
    if kind == "linear":
        layers = [nn.Linear(6, 5, bias), nn.ReLU(inplace=True), nn.Linear(5, 5, bias), nn.Tanh(), nn.Linear(5, 5, bias)]
        return nn.Sequential(*layers).double(), (4, 3, 6)
    convolutions = [
        nn.Conv2d(2, 3, 3, 2, 1, bias=bias),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 3, 2, bias=bias),
        nn.Tanh(),
    ]
    more = [nn.Conv2d(3, 3, 2, bias=bias), nn.Flatten(), nn.Linear(12, 3, bias)]
    return nn.Sequential(*convolutions, *more).double(), (4, 2, 8, 8)


def backward(model: nn.Sequential, shape: tuple[int, ...], step: int) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """Return each module with its input and its output; gradients are those of a batch of this step."""
    model.zero_grad()
    calls, x = [], random(*shape, seed=step) + 0.5
    for module in model:
        y = module(x)
        y.retain_grad()
        calls.append((module, x.detach().clone(), y))
        x = y
    (x - random(*x.shape, seed=1000 + step)).square().mean().backward()
    return calls


@pytest.mark.parametrize(
    ("kind", "bias", "rescale"), [("linear", True, False), ("convolution", False, True), ("convolution", True, True)]
)
@pytest.mark.parametrize("rule", RULES)
def test_the_reference_follows_the_recurrence(rule, kind, bias, rescale):
    """Truth: dense inverses of rows from explicit loops, over seven steps with an update every second one."""
    model, shape = network(kind, bias)
    decay = 0.95 if rule == "released" else 0.9
    model[1] = nn.Tanh()  # a ReLU(inplace=True) would change the output of the layer before
    mkor = ReferenceMKOR(
        model, MKOR(update_rule=rule, inverse_update_period=2, rescale=rescale, stabilizer_threshold=1.05)
    )
    factors: dict[nn.Module, list[Tensor]] = {}
    for step in range(7):
        calls = [call for call in backward(model, shape, step) if isinstance(call[0], nn.Linear | nn.Conv2d)]
        truths = []
        for layer, x, y in calls:
            X, G = reference.rows_of(layer, x, y.grad)
            D = G.T @ X
            left, right = factors.setdefault(layer, [torch.eye(d, dtype=D.dtype) for d in D.shape])
            examples = len(X) if isinstance(layer, nn.Linear) else len(x)
            if step % 2 == 0 and not (rule == "released" and step == 0):  # whose first update only sets J = I
                left, right = (stabilized(factor, 1.05, 0.8) for factor in (left, right))
                left, right = TRUTHS[rule](left, examples * G.mean(0), decay), TRUTHS[rule](right, X.mean(0), decay)
            factors[layer] = [left, right]
            truth = reference.kron_precondition(left, D, right)
            truths.append(truth * D.norm() / truth.norm() if rescale else truth)
        mkor.step()
        for (layer, *_), truth in zip(calls, truths, strict=True):
            assert_close(reference.joined(layer), truth, rtol=1e-9, atol=1e-12)


def trained(make: Callable[[nn.Module, MKOR, Optimizer], Any], method: MKOR, kind: str, bias: bool) -> Tensor:
    """Return the weights after 30 steps of SGD with momentum on noise; make: makes MKOR act before each."""
    model, shape = network(kind, bias)
    # Without A5 the printed rule's updates grow, and with them the difference that rounding makes.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if method.rescale else 0.005, momentum=0.9)
    make(model, method, optimizer)
    for step in range(STEPS):
        backward(model, shape, step)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def attach_reference(model: nn.Module, method: MKOR, optimizer: Optimizer) -> None:
    mkor = ReferenceMKOR(model, method)
    optimizer.register_step_pre_hook(lambda *_: mkor.step())


truth_of = cache(partial(trained, attach_reference))


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("layer by layer", {}),
        ("layer by layer", {"window": STEPS}),
        ("layer by layer", {"inverse_update_period": 3}),
        ("layer by layer", {"rescale": False}),
        ("gathered", {}),
        ("gathered", {"window": STEPS}),
        ("gathered", {"window": STEPS // 3, "inverse_update_period": 3}),
        ("gathered", {"sides": "input"}),
        ("owners", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize(("kind", "bias"), [("linear", False), ("convolution", True)])
@pytest.mark.parametrize("rule", RULES)
def test_every_engine_trains_as_the_reference(rule, kind, bias, engine, options, monkeypatch):
    """A window is as wide as the number of updates, so that it forgets nothing."""
    monkeypatch.setattr("mkor_core.engines.engine.goes_alone", lambda device: engine != "gathered")
    method = MKOR(**{"update_rule": rule, "inverse_update_period": 1, **options})
    owners = True if engine == "owners" else None
    weights = trained(
        lambda model, method, sgd: Preconditioner(model, method, owners=owners).attach(sgd), method, kind, bias
    )
    truth = truth_of(replace(method, window=None), kind, bias)
    error = (weights - truth).abs().max() / truth.abs().max()
    assert error <= 1e-12, error


class Odd(nn.Module):
    """A layer that is called twice, one that even steps leave out, a frozen one, one in evaluation, one of groups."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.grouped, self.image = nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")
        self.twice, self.sometimes = nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
        self.frozen, self.head = nn.Linear(12, 12).requires_grad_(False), nn.Linear(12, 1)
        self.still = nn.Linear(12, 12).eval()

    def forward(self, images: Tensor, step: int) -> Tensor:
        hidden = torch.tanh(self.image(self.grouped(images))).flatten(1)
        hidden = torch.tanh(self.twice(torch.relu_(self.twice(hidden))))
        hidden = self.sometimes(hidden) if step % 2 else hidden
        output: Tensor = self.head(self.still(self.frozen(hidden)))
        return output


@pytest.mark.filterwarnings("ignore:A step has more backward passes")
@pytest.mark.parametrize("rule", RULES)
def test_the_reference_trains_odd_models_as_the_engines_do(rule):
    """Two losses with a backward pass each, and gradients that are clipped before the step."""
    method, ends = MKOR(update_rule=rule, inverse_update_period=2), []
    for make in (attach_reference, lambda model, method, optimizer: Preconditioner(model, method).attach(optimizer)):
        model = Odd().double()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
        make(model, method, optimizer)
        for step in range(8):
            optimizer.zero_grad()
            for number, scale in enumerate((1.0, 300.0)):  # whose rows are clamped
                images = scale * random(5, 2, 4, 4, seed=2 * step + number)
                model(images, step).square().mean().div(scale).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert_close(*ends, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_a_batch_that_overflows_changes_no_factor_and_no_gradient(rule, rescale):
    """Whether it is one of its inputs that is not finite, or one of its gradients."""
    model = nn.Sequential(nn.Linear(3, 2)).double()
    mkor = ReferenceMKOR(model, MKOR(update_rule=rule, inverse_update_period=1, rescale=rescale))
    (layer,) = mkor.layers
    for scales, updates in (((math.nan, 1.0), 0), ((1.0, 1.0), 1), ((1.0, math.nan), 1), ((1.0, 1.0), 2)):
        model.zero_grad()
        of_input, of_loss = scales
        outputs = model(torch.tensor([[of_input, 1.0, 2.0]] * 4, dtype=torch.float64))
        (outputs * torch.tensor([of_loss, 3.0])).mean().backward()
        before = [parameter.grad.clone() for parameter in model.parameters()]
        mkor.step()
        assert layer.updates == updates
        assert layer.J_L.isfinite().all()
        assert layer.J_R.isfinite().all()
        assert torch.equal(layer.J_R, torch.eye(4, dtype=torch.float64)) == (updates < (2 if rule == "released" else 1))
        if math.nan in scales:
            assert_close([parameter.grad for parameter in model.parameters()], before, equal_nan=True, rtol=0, atol=0)


def test_a_gradient_of_which_the_update_overflows_in_one_entry_stays_as_it_is():
    """Inputs of 0 make J_R = I / gamma."""
    model = nn.Linear(3, 2, bias=False).double()
    mkor = ReferenceMKOR(model, MKOR(rescale=False, sides="input"))
    model(torch.zeros(4, 3).double()).sum().backward()
    model.weight.grad[0, 1] = 1.7e308
    before = model.weight.grad.clone()
    mkor.step()
    assert torch.equal(model.weight.grad, before)


@pytest.mark.parametrize("options", [{"rank": 2}, {"gradient_norm": 3.0}, {"gradient_scale": 8.0}], ids=str)
def test_what_is_in_none_of_the_equations_is_refused(options):
    with pytest.raises(ValueError, match=rf"{next(iter(options))}=.+the reference has no rank above 1"):
        ReferenceMKOR(nn.Linear(2, 2), MKOR(**options))
