"""The Triton kernels, in Triton's interpreter. Truth: the same step in PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

pytest.importorskip("triton", reason="Triton is an extra: make test-kernels installs it")

from triton.runtime import interpreter

from baselines import Eva
from benchmarks.kernels import bytes_of
from mkor_core import MKOR, Preconditioner
from mkor_core.kernels import grouped
from mkor_core.kernels.fused import FusedAdamW, FusedSGD
from mkor_core.kernels.grouped import Launch
from mkor_core.method import InPlaceMethod

METHODS: dict[str, InPlaceMethod] = {
    "window 2": MKOR(inverse_update_period=1, window=2),
    "window 3": MKOR(inverse_update_period=1, window=3),
    "window 4": MKOR(inverse_update_period=1, window=4),
    "window 8": MKOR(inverse_update_period=1, window=8),
    "published": MKOR(inverse_update_period=1, window=4, update_rule="published"),
    "released": MKOR(inverse_update_period=1, window=4, update_rule="released"),
    "input": MKOR(inverse_update_period=1, window=4, sides="input"),
    "without the norm": MKOR(inverse_update_period=1, window=4, rescale=False),
    "input without the norm": MKOR(inverse_update_period=1, window=2, sides="input", rescale=False),
    "half factors": MKOR(inverse_update_period=1, window=4, factor_dtype=torch.bfloat16),
    "Eva": Eva(),
    "Eva without a clip": Eva(kl_clip=None),
    "Eva that is not clipped": Eva(kl_clip=1e9),
}


class Network(nn.Module):
    """Layers of several shapes, with and without biases, with aligned and other rows; one has two strips."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 3, 2, stride=2, bias=False)
        self.first = nn.Linear(12, 136)
        self.second = nn.Linear(136, 40, bias=False)
        self.third = nn.Linear(40, 40)
        self.skipped = nn.Linear(40, 40)
        self.head = nn.Linear(40, 3)

    def forward(self, inputs: Tensor, *, skip: bool = False) -> Tensor:
        hidden = torch.tanh(self.convolution(inputs)).flatten(1)
        hidden = torch.tanh(self.third(torch.tanh(self.second(torch.tanh(self.first(hidden))))))
        output: Tensor = self.head(hidden if skip else torch.tanh(self.skipped(hidden)))
        return output


def backward(model: Network, step: int, *, skip: bool = False, scale: float = 10.0) -> None:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, 1, 4, 4, generator=generator, dtype=torch.float32).to(model.head.weight.dtype)
    model.zero_grad()
    (model(inputs, skip=skip).square().mean() * scale).backward()


def pair(method: InPlaceMethod, dtype: torch.dtype = torch.float32) -> list[tuple[Network, Preconditioner]]:
    """Return a network in PyTorch's operators, and the same in kernels."""
    found = []
    for kernels in ("eager", "triton"):
        model = Network().to(dtype)
        found.append((model, Preconditioner(model, method, lr=0.1, kernels=kernels)))
    return found


def differences(one: nn.Module, other: nn.Module) -> list[float]:
    """Return by how much each gradient differs, relative to its norm."""
    pairs = [(p.grad, q.grad) for p, q in zip(one.parameters(), other.parameters(), strict=True) if p.grad is not None]
    return [float((a - b).norm() / a.norm()) for a, b in pairs]


def errors(model: Network, preconditioner: Preconditioner) -> Callable[[], list[float]]:
    """Return what computes the error of a step's V by layer, relative to its norm. Truth: the same state in float64."""
    (part,) = preconditioner._parts
    before = {name: layer.gradient().double() for name, layer in part.layers.items() if layer.has_gradient()}

    def after() -> list[float]:
        found = []
        for name, d in before.items():
            state = part.states.get(name)
            wide = {key: one.double() if one.is_floating_point() else one for key, one in state.items()}
            truth = part.method.precondition(wide, d)
            found.append(float((part.layers[name].gradient() - truth).norm() / truth.norm()))
        return found

    return after


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_that_of_the_operators(name: str):
    (eager, first), (kernels, second) = pair(METHODS[name])
    for step in range(3):  # in the second, a layer has no gradient
        backward(eager, step, skip=step == 1)
        backward(kernels, step, skip=step == 1)
        error_of_operators, error_of_kernels = errors(eager, first), errors(kernels, second)
        first.step()
        second.step()
        assert max(differences(eager, kernels)) < (3e-6 if name == "released" else 1e-6)
        if name == "released":  # V is a difference of larger numbers, in which the operators lose digits, too
            assert max(error_of_kernels()) < 3e-6
            assert max(error_of_kernels()) <= 2 * max(error_of_operators())


@pytest.mark.parametrize("name", ["window 4", "Eva"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_half_precision_differ_by_their_rounding(name: str, dtype: torch.dtype):
    (eager, first), (kernels, second) = pair(METHODS[name], dtype)
    for step in range(2):
        backward(eager, step)
        backward(kernels, step)
        first.step()
        second.step()
        for p, q in zip(eager.parameters(), kernels.parameters(), strict=True):
            assert p.grad.dtype == q.grad.dtype == dtype
            assert_close(p.grad, q.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["window 4", "input", "Eva"])
def test_a_gradient_that_is_not_finite_stays(name: str, bad: float):
    (eager, first), (kernels, second) = pair(METHODS[name])
    for model, preconditioner in ((eager, first), (kernels, second)):
        backward(model, 0)
        preconditioner.step()
        backward(model, 1)
        model.third.weight.grad[1, 2] = bad
        plain = model.third.weight.grad.clone()
        preconditioner.step()
        assert torch.equal(model.third.weight.grad.nan_to_num(), plain.nan_to_num())
    others = [n for n, _ in eager.named_parameters() if not n.startswith("third")]
    for name_of in others:
        assert_close(kernels.get_parameter(name_of).grad, eager.get_parameter(name_of).grad, rtol=1e-4, atol=1e-7)


def test_a_norm_that_cancels_is_measured():
    """J = I - .99999 u u^T on either side, and D = u v^T + a little: |V| is far below |D|."""
    (eager, first), (kernels, second) = pair(METHODS["window 4"])
    for model, preconditioner in ((eager, first), (kernels, second)):
        backward(model, 0)
        preconditioner.step()
        states = preconditioner.state_dict()["layers"]["third"]
        for side, d in (("left", 40), ("right", 41)):
            states[side].zero_()
            states[side][0, :d] = d**-0.5
            states[f"{side}_weights"].copy_(torch.tensor([0.99999, 0, 0, 0]))
            states[f"{side}_scale"].fill_(1)
        generator = torch.Generator().manual_seed(0)
        model.third.weight.grad.copy_(1 + 1e-4 * torch.randn(40, 40, generator=generator))
        model.third.bias.grad.copy_(1 + 1e-4 * torch.randn(40, generator=generator))
        preconditioner.set(inverse_update_period=1000)
        preconditioner.step()
    assert_close(kernels.third.weight.grad.norm(), eager.third.weight.grad.norm(), rtol=1e-4, atol=0)
    # V itself is a difference of numbers 1e4 times larger.
    assert differences(eager, kernels)[4] < 1e-2


def test_layers_without_kernels_are_left_to_the_operators():
    """A gradient that is not contiguous, and one of float64 beside others."""
    (eager, first), (kernels, second) = pair(METHODS["window 4"])
    for model, preconditioner in ((eager, first), (kernels, second)):
        backward(model, 0)
        preconditioner.step()
        backward(model, 1)
        strided = model.third.weight.grad.T.contiguous().T
        model.third.weight.grad = strided
        preconditioner.step()
        assert model.third.weight.grad is strided
    assert max(differences(eager, kernels)) < 1e-6
    (eager, first), (kernels, second) = pair(METHODS["window 4"], torch.float64)
    for model, preconditioner in ((eager, first), (kernels, second)):
        backward(model, 0)
        preconditioner.step()
    assert max(differences(eager, kernels)) == 0


def trained(
    method: InPlaceMethod, kernels: Any, make: Callable[..., torch.optim.Optimizer], steps: int = 3
) -> tuple[Network, torch.optim.Optimizer]:
    model = Network()
    matrices, others = ([p for p in model.parameters() if (p.dim() > 1) == are] for are in (True, False))
    optimizer = make([{"params": matrices}, {"params": others, "weight_decay": 0.0}])
    Preconditioner(model, method, kernels=kernels).attach(optimizer)
    for step in range(steps):
        backward(model, step, skip=step == 1)
        optimizer.step()
    return model, optimizer


OPTIMIZERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, FusedAdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "AdamW, maximized": (torch.optim.AdamW, FusedAdamW, {"lr": 1e-2, "maximize": True, "eps": 1e-6}),
    "SGD": (torch.optim.SGD, FusedSGD, {"lr": 1e-1, "weight_decay": 0.1}),
    "momentum": (torch.optim.SGD, FusedSGD, {"lr": 1e-1, "momentum": 0.9, "maximize": True}),
    "Nesterov": (torch.optim.SGD, FusedSGD, {"lr": 1e-1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
}


@pytest.mark.parametrize("method", ["window 4", "Eva"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_its_step_with_v(name: str, method: str):
    base, fused, options = OPTIMIZERS[name]
    one, first = trained(METHODS[method], "eager", lambda groups: base(groups, **options))
    other, second = trained(METHODS[method], "triton", lambda groups: fused(groups, **options))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert float((p - q).norm() / p.norm()) < 1e-6
    states = [optimizer.state_dict()["state"] for optimizer in (first, second)]
    assert {key: [*state] for key, state in states[0].items()} == {key: [*state] for key, state in states[1].items()}


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_a_scaled_gradient_is_unscaled_and_an_infinite_one_skipped(found_inf: float):
    models = []
    for scale in (1.0, 256.0):
        model = Network()
        # With so large an epsilon a gradient's rounding is not blown up to a step of the size of the rate.
        optimizer = FusedAdamW(model.parameters(), lr=1e-2, eps=1e-2)
        Preconditioner(model, METHODS["window 4"], kernels="triton", grad_scale=scale).attach(optimizer)
        # As torch.amp.GradScaler tells an optimizer that unscales by itself. torch's own step on a CPU would refuse
        # them, so every parameter of this model is one that the kernels step.
        vars(optimizer).update(grad_scale=torch.full((), scale), found_inf=torch.full((), found_inf))
        before = [p.detach().clone() for p in model.parameters()]
        backward(model, 0, scale=10 * scale)
        optimizer.step()
        models.append(model)
        unchanged = all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        assert unchanged == bool(found_inf)
        assert {float(state["step"]) for state in optimizer.state.values()} == {1 - found_inf}
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_what_an_optimizers_kernels_do_not_know_is_written_into_the_gradients():
    for options in ({"amsgrad": True}, {"lr": torch.tensor(1e-2), "foreach": False}):
        one, _ = trained(METHODS["window 4"], "eager", lambda groups, o=options: torch.optim.AdamW(groups, **o))
        other, _ = trained(METHODS["window 4"], "triton", lambda groups, o=options: FusedAdamW(groups, **o))
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            assert float((p - q).detach().norm() / p.norm()) < 1e-6


def test_updates_that_are_compared_are_written_into_the_gradients():
    model = Network()
    optimizer = FusedAdamW(model.parameters(), lr=1e-2)
    preconditioner = Preconditioner(model, METHODS["window 4"], kernels="triton").attach(optimizer)
    compared = Network()
    expected = Preconditioner(compared, METHODS["window 4"], lr=0.1, kernels="eager")
    for one, other in ((model, preconditioner), (compared, expected)):
        backward(one, 0)
        other.step()
        backward(one, 1)
        other.compare_next_step()
    optimizer.step()
    expected.step()
    for name, comparison in expected.comparisons().items():
        assert preconditioner.comparisons()[name].cosine == pytest.approx(comparison.cosine, rel=1e-4)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes that each launch's programs read and write, each address once for a program, and the formula's."""
    seen: set[tuple[Any, ...]] = set()
    builder = interpreter.InterpreterBuilder

    def watched(kind: str, original: Callable[..., Any], with_mask: int | None) -> Callable[..., Any]:
        def call(self: Any, pointers: Any, *rest: Any) -> Any:
            addresses = pointers.data.reshape(-1)
            if with_mask is not None:
                addresses = addresses[rest[with_mask].data.reshape(-1).astype(bool)]
            size = pointers.get_element_ty().primitive_bitwidth // 8
            seen.update((kind, self.grid_idx, int(address), size) for address in addresses)
            return original(self, pointers, *rest)

        return call

    masks = {"create_load": None, "create_masked_load": 0, "create_store": None, "create_masked_store": 1}
    for name, mask in masks.items():
        kind = name.rpartition("_")[2]
        monkeypatch.setattr(builder, name, watched(kind, getattr(builder, name), mask))
    found: list[int] = []
    run = grouped._run

    def counted(launch: Launch) -> None:
        seen.clear()
        run(launch)
        found.extend((sum(size for *_, size in seen), bytes_of(launch)))

    with grouped.recorded(counted):
        yield found


@pytest.mark.parametrize("name", ["window 4", "input", "Eva"])
def test_the_counted_bytes_are_those_that_programs_touch(name: str, traffic: list[int]):
    model = Network()
    preconditioner = Preconditioner(model, METHODS[name], lr=0.1, kernels="triton")
    backward(model, 0)
    preconditioner.step()
    touched, formula = sum(traffic[::2]), sum(traffic[1::2])
    assert touched <= formula <= 1.25 * touched
