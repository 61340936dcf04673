"""Layers in stacks. Truth: the same training layer by layer, and layers that are alone in their stack."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import Eva
from mkor_core import MKOR, Preconditioner
from mkor_core.engines import engine
from mkor_core.maths import linalg
from mkor_core.method import InPlaceMethod

METHODS: list[InPlaceMethod] = [
    MKOR(inverse_update_period=2),
    MKOR(inverse_update_period=1, window=4),
    MKOR(inverse_update_period=1, window=3, update_rule="released"),
    MKOR(inverse_update_period=2, sides="input", window=2),
    MKOR(inverse_update_period=2, sides="input", rescale=False),
    MKOR(inverse_update_period=2, gradient_norm=3.0),
    MKOR(inverse_update_period=2, gradient_scale=8.0),
    MKOR(inverse_update_period=2, rank=2),
    Eva(),
    Eva(kl_clip=None),
]


class Mixed(nn.Module):
    """Stacks of three, two and one layers, with and without biases, and a layer that only even steps use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 2, 2, stride=2)
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.without_bias = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        hidden = torch.tanh(self.convolution(inputs).flatten(1))
        layers = [*self.linears, *self.without_bias]
        for layer in layers if step % 2 == 0 else layers[1:]:
            hidden = torch.tanh(layer(hidden))
        output: Tensor = self.head(hidden)
        return output


def trained(
    method: InPlaceMethod, steps: int = 7, dtype: torch.dtype = torch.float64, frozen: str = ""
) -> tuple[list[Tensor], Preconditioner]:
    model = Mixed().to(dtype)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or not name.startswith(frozen))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    preconditioner = Preconditioner(model, method, grad_scale=4.0).attach(optimizer)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(6, 1, 4, 4, generator=generator, dtype=torch.float64).to(dtype) + 0.3
        (4 * model(inputs, step).square().mean()).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(4)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], preconditioner


@pytest.mark.parametrize("frozen", ["", "linears.1"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_gathered_stacks_train_as_layer_by_layer(method, frozen, monkeypatch):
    """On a GPU the gradients of a stack are gathered; on a CPU each layer is preconditioned in place."""
    alone, _ = trained(method, frozen=frozen)
    monkeypatch.setattr(engine, "goes_alone", lambda device: False)
    together, _ = trained(method, frozen=frozen)
    assert_close(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_any_precision_and_layout_are_written_back(dtype, together, monkeypatch):
    """A bfloat16 gradient, or one in channels_last, is no view of what is preconditioned."""
    monkeypatch.setattr(engine, "goes_alone", lambda device: not together)
    torch.manual_seed(0)
    model = nn.Conv2d(4, 6, 3).to(dtype).to(memory_format=torch.channels_last)
    truth = nn.Conv2d(4, 6, 3)
    truth.load_state_dict(model.state_dict())
    inputs = torch.randn(5, 4, 6, 6)
    for network, x in ((model, inputs.to(dtype).to(memory_format=torch.channels_last)), (truth, inputs)):
        preconditioner = Preconditioner(network, MKOR(inverse_update_period=1))
        network(x).square().mean().backward()
        preconditioner.step()
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    for given, expected in zip(model.parameters(), truth.parameters(), strict=True):
        assert given.grad.dtype == dtype
        scale = float(expected.grad.abs().max())
        assert_close(given.grad.float(), expected.grad, rtol=tolerance, atol=tolerance * scale)


def test_a_layer_that_starts_later_joins_its_stack():
    """A layer that was frozen, and one that has moved to another precision, keep what is theirs."""
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(2)).double()
    model[1].requires_grad_(False)
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))

    def step() -> dict[str, dict[str, Tensor]]:
        model.zero_grad()
        for layer in model:
            layer(torch.eye(3, dtype=layer.weight.dtype)).square().sum().backward() if layer.weight.requires_grad else 0
        preconditioner.step()
        return preconditioner.state_dict()["layers"]

    assert list(step()) == ["0"]
    first = {key: tensor.clone() for key, tensor in step()["0"].items()}
    model[1].requires_grad_(True)
    after = step()
    assert list(after) == ["0", "1"]
    assert [int(state["updates"]) for state in after.values()] == [3, 1]
    assert first["updates"] == 2
    model[0].float()
    assert [state["left"].dtype for state in step().values()] == [torch.float32, torch.float64]


@pytest.mark.parametrize("window", [2, 4])
def test_what_the_host_computes_ahead_changes_nothing(window, monkeypatch):
    """Gram matrices are requested after an update for the next one; a loaded state computes them when it needs them."""
    method = MKOR(inverse_update_period=1, window=window)
    ahead, _ = trained(method, 9)
    original = MKOR.make_room
    monkeypatch.setattr(
        MKOR, "make_room", lambda self, state, step, accept=None, host=None: original(self, state, step, accept)
    )
    assert_close(trained(method, 9)[0], ahead, rtol=0, atol=0)


def test_a_failed_decomposition_leaves_its_layer_what_it_had_and_the_others_of_the_stack_go_on(monkeypatch, caplog):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    preconditioner = Preconditioner(model, MKOR(rank=2))
    calls = iter(range(4))
    original = linalg.leading_directions

    def fail_once(*arguments: Any) -> Tensor:
        if next(calls) == 0:
            raise torch.linalg.LinAlgError  # type: ignore[attr-defined]
        return original(*arguments)

    monkeypatch.setattr(linalg, "leading_directions", fail_once)
    model(torch.randn(6, 4)).square().mean().backward()
    preconditioner.step()
    states = preconditioner.state_dict()["layers"]
    assert {name: int(state["updates"]) for name, state in states.items()} == {"0": 0, "1": 1}
    assert ["layers '0' keep what they had" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("chosen", [(0, 1), (1, 2), (0, 1, 2)], ids=str)
def test_a_stack_takes_every_layer_of_one_shape(chosen):
    """A Conv2d, of which the bias has the sum over locations; Linears, one with a bias that was frozen since."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 2), nn.Linear(8, 3), nn.Linear(8, 3)]
    shapes = [(5, 2, 3, 4), (5, 8), (5, 8)]
    model = nn.ModuleList([layers[index] for index in chosen]).double()
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    layers[2].bias.requires_grad_(False)
    rows = []
    for layer, shape in zip(model, [shapes[index] for index in chosen], strict=True):
        output = layer(torch.randn(shape, dtype=torch.float64))
        output.retain_grad()
        output.square().sum().backward()
        rows.append(output.grad.flatten(2).mean(2).sum(0) if output.dim() == 4 else output.grad.sum(0))
    preconditioner.step()
    assert len(preconditioner._parts[0].states.stacks) == 1
    states = preconditioner.state_dict()["layers"]
    for name, expected in enumerate(rows):
        assert_close(states[str(name)]["left_vectors"][:, 0], expected)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_are_preconditioned_one_by_one_on_a_cpu_only(device, monkeypatch):
    seen = []
    monkeypatch.setattr(MKOR, "apply", lambda self, state, grad, known: seen.append(tuple(grad.weight.shape)))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device)
    preconditioner = Preconditioner(model, MKOR())
    model(torch.ones(2, 4, device=device)).square().sum().backward()
    preconditioner.step()
    assert seen == ([(4, 4), (4, 4)] if device == "cpu" else [(2, 4, 4)])


def test_what_an_earlier_step_requested_is_used_and_what_the_same_step_requested_is_not(monkeypatch):
    """The optimizer may skip a step, which then comes again. What lies on the host already is not copied."""
    hosts = []
    original = MKOR.make_room

    def make_room(self, state, step, accept=None, host=None):
        hosts.append(host is not None)
        original(self, state, step, accept, host)

    monkeypatch.setattr(MKOR, "make_room", make_room)
    model = nn.Linear(3, 3)
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1, window=2))
    layers = list(preconditioner._layers.values())
    preconditioner._parts[0].states.prepare(layers)
    for step in (3, 3, 4, 4, 5):
        model(torch.ones(4, 3)).square().sum().backward()
        preconditioner._parts[0]._engine.update(layers, preconditioner._parts[0].capture.take(), step, None, None)
    assert hosts == [False, False, True, False, True]
    tensor = torch.ones(1)
    assert engine._requested({"right": tensor})["right"] is tensor
    assert engine._on_host({"right": tensor})["right"] is tensor


def test_a_side_without_a_factor_has_no_state_and_the_other_acts_alone():
    _, both = trained(MKOR(inverse_update_period=1))
    _, one = trained(MKOR(inverse_update_period=1, sides="input"))
    assert {key for key in both.memory_by_tensor() if key.startswith("left")}
    assert not {key for key in one.memory_by_tensor() if key.startswith("left")}
    assert one.memory_by_tensor()["right"] == both.memory_by_tensor()["right"]


def test_a_mean_gradient_that_is_noise_updates_no_factor_and_is_named(caplog):
    """A batch normalization removes the mean gradient of the layer before it, up to rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1, gradient_norm=3.0))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            model.zero_grad()
            (model(torch.randn(32, 6)) - 1).square().mean().backward()
            preconditioner.step()
        layers = preconditioner.state_dict()["layers"]
    assert not layers["0"]["left_vectors"].any()
    off_diagonal = layers["0"]["left"] - torch.diag(layers["0"]["left"].diagonal())
    assert not off_diagonal.any()
    assert_close(torch.linalg.vector_norm(layers["3"]["left_vectors"]), torch.tensor(3.0))
    (message,) = [record.getMessage() for record in caplog.records if "rounding noise" in record.getMessage()]
    assert "layers '0' have" in message


def test_a_mean_gradient_is_no_noise_because_the_gradients_are_still_scaled():
    """A fused optimizer unscales gradients in its step, after the preconditioner has seen them."""
    vectors = []
    for scale in (1.0, 2.0**30):
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        preconditioner = Preconditioner(model, MKOR(gradient_norm=3.0), grad_scale=scale).attach(optimizer)
        optimizer.grad_scale = torch.tensor(scale)
        (scale * (model(torch.randn(8, 6)) - 1).square().mean()).backward()
        preconditioner.step()
        vectors.append(preconditioner.state_dict()["layers"][""]["left_vectors"])
    assert vectors[0].any()
    assert_close(vectors[1], vectors[0])


@pytest.mark.parametrize("fails_on", ["left", "right"])
def test_a_window_that_cannot_be_cut_leaves_its_stack_what_it_had(fails_on, monkeypatch, caplog):
    """Also the other factor's window. The step goes on: V is that of the windows as they were."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    preconditioner = Preconditioner(model, MKOR(window=2, inverse_update_period=1))

    def step() -> dict[str, dict[str, Tensor]]:
        model.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        preconditioner.step()
        return copy.deepcopy(preconditioner.state_dict()["layers"])

    before = [step() for _ in range(2)][-1]
    decompose, calls = torch.linalg.eigh, iter(("left", "right"))

    def fail(matrix: Tensor) -> Any:
        if next(calls) == fails_on:
            raise torch.linalg.LinAlgError  # type: ignore[attr-defined]
        return decompose(matrix)

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", fail)
        assert_close(step(), before, rtol=0, atol=0)
    assert int(step()["0"]["updates"]) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "MKOR: layers '0', '1' keep what they had, because a decomposition failed."
    ]
