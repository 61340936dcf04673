"""The Muon family but Muon itself. Truth: dense inverses, the polar factor, the limits in which one is another."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import build
from baselines.muon._polar import newton_schulz, polar_factor
from baselines.muon.mkor_muon import MKORMuon
from baselines.muon.newton_muon import NewtonMuon
from baselines.parts.matrices import adam_direction
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.ranks.comm import Triangles
from tests.support.matrices import change, random, updates
from tests.support.reference import backward, joined

# isort: split


def step(x: Tensor, *, has_bias: bool, **chosen: Any) -> tuple[Tensor, Tensor, Preconditioner]:
    """Take a step of a layer ``[2, d]``; return D, V and the preconditioner."""
    torch.manual_seed(0)
    layer = nn.Linear(x.shape[1], 2, bias=has_bias).double()
    preconditioner = Preconditioner(layer, NewtonMuon(**{"update_period": 1, **chosen}))
    backward(layer, x)
    grad = joined(layer)
    preconditioner.step()
    return grad, joined(layer), preconditioner


def captured(moment: Tensor) -> Captured:
    """Return the statistic of rows with a second moment, and without a bias."""
    return Captured(torch.cat([Triangles().pack(moment), moment.new_ones(1)]), moment.new_zeros(1), torch.tensor(1.0))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("bias", ["apart", "joint"])
@pytest.mark.parametrize("correction", ["none", "debias", "rescale"])
def test_an_update_is_the_gradient_over_the_dense_moment(has_bias, bias, correction):
    rows = random(9, 4) + 1
    grad, update, _ = step(rows, has_bias=has_bias, bias=bias, correction=correction, factor_decay=0.8, damping=0.3)
    x = torch.cat([rows, torch.ones(9, 1).double()], 1) if has_bias and bias == "joint" else rows
    n = x.shape[1]
    moment = 0.8 * 1e-3 * torch.eye(n).double() + 0.2 * x.T @ x / len(x)
    moment = moment / 0.2 if correction == "debias" else moment
    damped = moment + 0.3 * moment.trace() / n * torch.eye(n).double()
    truth = grad[:, :n] @ torch.linalg.inv(damped)
    truth = truth * grad[:, :n].norm() / truth.norm() if correction == "rescale" else truth
    assert_close(update[:, :n], truth)
    assert_close(update[:, n:], grad[:, n:], rtol=0, atol=0)  # a bias that stands apart


@pytest.mark.parametrize("period", [1, 2])
def test_the_moment_is_first_updated_at_the_end_of_a_period(period):
    """So a period of two leaves the first gradient as it is, as the released code does."""
    grad, update, _ = step(random(9, 4) + 1, has_bias=False, update_period=period)
    assert torch.equal(grad, update) == (period == 2)


def test_a_convolution_has_one_row_for_each_location():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 2).double()
    preconditioner = Preconditioner(layer, NewtonMuon(factor_decay=0.0, update_period=1))
    images = random(5, 2, 4, 4)
    layer(images).square().mean().backward()
    preconditioner.step()
    rows = nn.functional.unfold(images, 2).transpose(1, 2).flatten(0, 1)
    assert_close(preconditioner.state_dict()["layers"][""]["right"][:-1, :-1], rows.T @ rows / len(rows))


def test_a_joint_bias_centers_the_inputs():
    """Truth: the weight's part is ``(D_W - d_b a^T) Cov(x)^-1``, a the mean input."""
    x = random(9, 4) + 2
    grad, update, _ = step(x, has_bias=True, bias="joint", factor_decay=0.0, damping=1e-12)
    mean = x.mean(0)
    covariance = (x - mean).T @ (x - mean) / len(x)
    truth = (grad[:, :4] - torch.outer(grad[:, 4], mean)) @ torch.linalg.inv(covariance)
    assert_close(update[:, :4], truth, rtol=1e-6, atol=1e-8)


def test_a_failed_decomposition_gives_the_identity():
    method = NewtonMuon(bias="joint", factor_decay=0.0)
    state = method.initial_state(LayerShape(2, 3), torch.float64, torch.device("cpu"))
    method.accumulate(state, captured(-torch.eye(3).double()), 0)
    assert_close(state["right_inverse"], torch.eye(3).double(), rtol=0, atol=0)


def test_the_polar_factor_has_singular_values_1_or_0():
    matrix = random(5, 2) @ random(2, 4, seed=1)
    values = torch.linalg.svdvals(polar_factor(matrix, "exact"))
    assert_close(values, torch.tensor([1.0, 1.0, 0.0, 0.0]).double())
    u, _, vt = torch.linalg.svd(random(3, 5), full_matrices=False)
    assert_close(polar_factor(random(3, 5), "exact"), u @ vt)


def test_five_newton_schulz_steps_take_small_singular_values_to_those_of_the_polynomial():
    """The value below 1e-3 are far from 1."""
    start = torch.tensor([1e-2, 3e-3, 1e-3, 3e-4, 1e-4], dtype=torch.float64)
    u, v = torch.linalg.qr(random(6, 6))[0], torch.linalg.qr(random(6, 6, seed=1))[0]
    rest = (1 - start.square().sum()).sqrt()
    matrix = u @ torch.diag(torch.cat([rest[None], start])) @ v.T
    found = (u.T @ newton_schulz(7 * matrix) @ v).diagonal()
    assert_close(found[1:], torch.tensor([0.70, 1.11, 0.47, 0.15, 0.05]).double(), atol=0.01, rtol=0)
    assert_close(newton_schulz(matrix[:4]).T, newton_schulz(matrix[:4].T.contiguous()))


@pytest.mark.parametrize(("shape", "equal"), [((3, 5), True), ((5, 5), True), ((6, 2), False)])
def test_with_the_exact_polar_factor_and_no_tall_matrix_it_is_muon(shape, equal):
    grads = [random(*shape, seed=t) for t in range(4)]
    rows, plain = (updates("normuon", grads, polar="exact", row_decay=decay) for decay in (0.95, None))
    assert all(torch.allclose(one, other) for one, other in zip(rows, plain, strict=True)) == equal


def test_without_row_means_its_steps_are_muons():
    """Truth: baselines/muon/muon.py, which computes in bfloat16."""
    grads = [random(6, 4, seed=t) for t in range(3)]
    truth = updates("muon", grads, weight_decay=0.0, match_adamw_rms=False)
    for one, other in zip(updates("normuon", grads, row_decay=None), truth, strict=True):
        assert (one - other).norm() < 0.05 * other.norm()


def test_entries_of_an_update_match_adamws():
    for polar in ("ns5", "exact"):
        (update,) = updates("normuon", [random(6, 4)], length="match_rms", polar=polar)
        assert_close(update.square().mean().sqrt(), torch.tensor(0.2).double())


def test_soap_muon_without_a_second_moment_is_muon():
    """With any polar factor; with a second moment it is not, but for its first step."""
    grads = [random(6, 4, seed=t) for t in range(4)]
    for polar in ("ns5", "exact"):
        muon = updates("normuon", grads, polar=polar, row_decay=None)
        assert_close(updates("soap_muon", grads, polar=polar, second_moment="none"), muon, rtol=1e-12, atol=1e-14)
        divided = updates("soap_muon", grads, polar=polar)
        assert_close(divided[0], muon[0], rtol=1e-12, atol=1e-14)
        assert all((one - other).norm() > 0.1 * other.norm() for one, other in zip(divided[1:], muon[1:], strict=True))


@pytest.mark.parametrize("second_moment", ["momentum", "gradient"])
@pytest.mark.parametrize("period", [1, 3])
def test_soap_muon_divides_in_the_eigenbases_of_the_factors(second_moment, period):
    """Truth: the formula with dense products; SOAP's bases follow the factors of the gradients before."""
    grads, decay, beta2, momentum = [random(5, 4, seed=t) for t in range(6)], 0.7, 0.6, 0.8
    chosen = {"momentum": momentum, "beta2": beta2, "factor_decay": decay, "eps": 1e-6, "polar": "exact"}
    ours = updates("soap_muon", grads, update_period=period, second_moment=second_moment, **chosen)
    mean, v = torch.zeros(5, 4).double(), torch.zeros(5, 4).double()
    left, right = torch.zeros(5, 5).double(), torch.zeros(4, 4).double()
    q_left, q_right = left, right
    for t, (grad, update) in enumerate(zip(grads, ours, strict=True)):
        mean = momentum * mean + (1 - momentum) * grad
        moved = momentum * mean + (1 - momentum) * grad
        if t > 0:
            v = beta2 * v + (1 - beta2) * (q_left.T @ (moved if second_moment == "momentum" else grad) @ q_right) ** 2
            moved = q_left @ (q_left.T @ moved @ q_right / (v.sqrt() + 1e-6)) @ q_right.T
        u, _, vt = torch.linalg.svd(moved, full_matrices=False)
        assert_close(update, u @ vt * math.sqrt(5 / 4), rtol=1e-9, atol=1e-11)
        left, right = decay * left + (1 - decay) * grad @ grad.T, decay * right + (1 - decay) * grad.T @ grad
        if t == 0:
            q_left, q_right = (torch.linalg.eigh(factor)[1].flip(1) for factor in (left, right))
        elif t % period == 0:
            rows, columns = (
                (q.T @ factor @ q).diagonal().argsort(descending=True)
                for q, factor in ((q_left, left), (q_right, right))
            )
            q_left, q_right = (
                torch.linalg.qr(left @ q_left[:, rows])[0],
                torch.linalg.qr(right @ q_right[:, columns])[0],
            )
            v = v[rows][:, columns]


def test_soap_muon_in_the_basis_of_the_entries_is_the_polar_factor_of_adams_direction():
    """Truth: Adam's V with Nesterov's mean, whose second moment starts a step late, as SOAP-Muon's does."""
    grads = [random(5, 4, seed=t) for t in range(4)]
    layer = nn.Linear(4, 5, bias=False).double()
    chosen = {"momentum": 0.8, "beta2": 0.6, "eps": 1e-30, "second_moment": "gradient", "polar": "exact"}
    optimizer, _ = build("soap_muon", layer, {"lr": 1.0, "update_period": 100, **chosen})
    change(optimizer, layer.weight, grads[0])
    state = optimizer.state[layer.weight]["tensors"]
    state |= {"left_vectors": torch.eye(5).double(), "right_vectors": torch.eye(4).double()}
    adam = {"mean": 0.2 * grads[0], "square": torch.zeros(5, 4).double()}
    for t, grad in enumerate(grads[1:], start=1):
        truth = polar_factor(adam_direction(grad, adam, (0.8, 0.6), 1e-30, t, nesterov=True), "exact")
        assert_close(change(optimizer, layer.weight, grad), truth * math.sqrt(5 / 4))


def test_parameters_outside_the_layers_are_under_adamw():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimizer, _ = build("normuon", model, {"lr": 0.5, "adamw_lr": 0.1})
    rates = {group["lr"]: [parameter.dim() for parameter in group["params"]] for group in optimizer.param_groups}
    assert rates == {0.5: [2], 0.1: [1, 1, 1]}


def gradients(method: Method, batches: list[Tensor], *, has_bias: bool = True) -> list[tuple[Tensor, Tensor]]:
    """Return D and V of a layer ``[2, d]`` in every step."""
    torch.manual_seed(0)
    layer = nn.Linear(batches[0].shape[1], 2, bias=has_bias).double()
    preconditioner = Preconditioner(layer, method)
    found = []
    for x in batches:
        backward(layer, x)
        grad = joined(layer)
        preconditioner.step()
        found.append((grad, joined(layer)))
    return found


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("bias", ["apart", "joint"])
def test_an_update_is_the_gradient_over_the_dense_mean_moment(has_bias, bias):
    """Truth: ``K <- gamma K + (1 - gamma) a a^T`` from K = I, without the stabilizer, inverted."""
    batches = [random(6, 4, seed=seed) + 1 for seed in range(4)]
    method = MKORMuon(factor_decay=0.8, inverse_update_period=1, stabilizer_threshold=math.inf, bias=bias)
    grad, update = gradients(method, batches, has_bias=has_bias)[-1]
    is_joint = has_bias and bias == "joint"
    n = 5 if is_joint else 4
    moment = torch.eye(n).double()
    for x in batches:
        mean = torch.cat([x, torch.ones(6, 1).double()], 1).mean(0)[:n]
        moment = 0.8 * moment + 0.2 * torch.outer(mean, mean)
    truth = grad[:, :n] @ torch.linalg.inv(moment)
    assert_close(update[:, :n], truth * grad[:, :n].norm() / truth.norm())
    assert_close(update[:, n:], grad[:, n:], rtol=0, atol=0)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("bias", ["apart", "joint"])
def test_what_a_method_says_of_its_update_is_what_a_step_applies(bias, window, has_bias):
    """Stacks of two layers, whose last input is 1 in a batch by chance. It has one side, so that V is one-sided."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(4, 2, bias=has_bias) for _ in range(2)).double()
    method = MKORMuon(inverse_update_period=1, bias=bias, window=window)
    preconditioner = Preconditioner(model, method)
    for step in range(4):
        model.zero_grad()
        for layer in model:
            x = random(6, 4, seed=step) + 1
            x[:, -1] = 1 if step == 2 else x[:, -1]
            (layer(x) - 1).square().mean().backward()
        before = [joined(layer) for layer in model]
        preconditioner.step()
        states = preconditioner.state_dict()["layers"].values()
        for grad, layer, state in zip(before, model, states, strict=True):
            assert_close(method.precondition(state, grad), joined(layer))
            assert_close(method.one_sided(state, grad)["right"], joined(layer))


@pytest.mark.parametrize("bias", ["apart", "joint"])
def test_a_window_of_all_updates_is_the_dense_factor(bias):
    batches = [random(6, 4, seed=seed) + 1 for seed in range(4)]
    dense, windowed = (
        gradients(MKORMuon(inverse_update_period=1, window=window, bias=bias), batches)[-1][1] for window in (None, 8)
    )
    assert_close(windowed, dense)


def test_with_a_joint_bias_it_is_mkor_without_its_left_factor():
    batches = [random(6, 4, seed=seed) + 1 for seed in range(4)]
    ours = gradients(MKORMuon(inverse_update_period=1, bias="joint"), batches)
    assert_close(ours, gradients(MKOR(inverse_update_period=1, sides="input"), batches), rtol=0, atol=0)


def trained(name: str, inputs: Tensor, **chosen: Any) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).double()
    optimizer, _ = build(name, model, {"lr": 0.01, "polar": "exact", "row_decay": None, **chosen})
    for _ in range(3):
        optimizer.zero_grad()
        (model(inputs) - random(*inputs.shape[:1], 4, seed=9)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_without_a_mean_input_it_is_muon():
    half = random(6, 4)
    inputs = torch.cat([half, -half])
    ours = trained("mkor_muon", inputs, base="normuon", inverse_update_period=1)
    assert_close(ours, trained("normuon", inputs))
    moved = trained("mkor_muon", inputs + 2, base="normuon", inverse_update_period=1)
    assert not torch.allclose(moved[0], trained("normuon", inputs + 2)[0], rtol=1e-3)


def test_a_moment_that_commutes_with_d_t_d_leaves_the_polar_factor_alone():
    """So msgn(D K^-1) = msgn(D), for K = I above all."""
    u, v = torch.linalg.qr(random(4, 4))[0], torch.linalg.qr(random(4, 4, seed=1))[0]
    scales = torch.tensor([3.0, 1.0, 0.5, 0.2], dtype=torch.float64)
    grad, moment = u @ torch.diag(scales) @ v.T, v @ torch.diag(scales.flip(0)) @ v.T
    method = NewtonMuon(damping=1e-9, bias="joint", factor_decay=0.0)
    state = method.initial_state(LayerShape(4, 4), torch.float64, torch.device("cpu"))
    method.accumulate(state, captured(moment), 0)
    update = method.precondition(state, grad)
    assert (update / update.norm() - grad / grad.norm()).norm() > 0.2
    assert_close(polar_factor(update, "exact"), polar_factor(grad, "exact"))
