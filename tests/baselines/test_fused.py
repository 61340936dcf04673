"""Fused SGD, AdamW and LAMB, chosen by the parameters' device; the CPU, which has the kernels, stands in."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor

from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

# isort: split
from timm.optim import Lamb

from baselines import build
from baselines.first_order.lamb import by_kind
from mkor_core.kernels import bases

NAMES = ("adamw", "sgd")


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(bases, "FUSED_ON", "cpu")


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def made(name: str, model: nn.Module, **more: float) -> torch.optim.Optimizer:
    optimizer, _ = build(name, model, {"lr": 0.1, "weight_decay": 0.2, **more})
    return optimizer


def step(model, optimizer, number: int, *, weight: float = 1.0, change=lambda: None) -> None:
    """Take a step on a batch of its own; weight: multiplies the loss; change: called before the optimizer's step."""
    some = next(model.parameters())
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)).to(some.dtype)
    optimizer.zero_grad()
    (weight * model(batch).square().mean()).backward()
    change()
    optimizer.step()


def trained(name: str, steps: int = 3, **more: float) -> list[Tensor]:
    model = network()
    optimizer = made(name, model, **more)
    for number in range(steps):
        step(model, optimizer, number)
    return [parameter.detach() for parameter in model.parameters()]


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    chosen = {group["fused"] for group in optimizer.param_groups}
    assert chosen in ({True}, {None})
    assert getattr(optimizer, "_step_supports_amp_scaling", None) is (chosen == {True})
    return chosen == {True}


def as_saved(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_on_a_gpu_are_stepped_fused_and_others_as_before(name):
    """Truth on a CPU: torch's own optimizer with its defaults, to the last bit."""
    assert is_fused(made(name, weights("cuda")))
    assert not is_fused(made(name, weights("cuda", "cpu")))
    assert not is_fused(made(name, weights("meta")))
    assert not is_fused(made(name, weights("cuda", dtype=torch.complex64)))
    model, true = network(), network()
    optimizer = made(name, model)
    assert not is_fused(optimizer)
    groups = [{"params": group, "weight_decay": decay} for group, decay in by_decay(true, name)]
    truth = (torch.optim.AdamW if name == "adamw" else torch.optim.SGD)(
        groups, lr=0.1, **({} if name == "adamw" else {"momentum": 0.9})
    )
    assert optimizer.state_dict()["param_groups"] == truth.state_dict()["param_groups"]
    for number in range(3):
        step(model, optimizer, number)
        step(true, truth, number)
    assert_close([*model.parameters()], [*true.parameters()], rtol=0, atol=0)


@cache
def pretended() -> FakeTensorMode:
    return FakeTensorMode()


def weights(*devices: str, dtype: torch.dtype = torch.float32) -> nn.ParameterList:
    """Return parameters that only pretend to be on their devices."""
    with pretended():
        return nn.ParameterList(torch.empty(2, 3, device=device, dtype=dtype) for device in devices)


def by_decay(model: nn.Module, name: str) -> list[tuple[list[nn.Parameter], float]]:
    if name == "sgd":
        return [([*model.parameters()], 0.2)]
    return [([p for p in model.parameters() if (p.dim() > 1) is matrix], 0.2 * matrix) for matrix in (True, False)]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_with_gaps_or_of_other_kinds_are_not_fused(name, on_gpu):
    model = nn.Linear(3, 2)
    assert is_fused(made(name, model))
    transposed = nn.Parameter(torch.randn(3, 2).mT)
    gaps = nn.Parameter(torch.randn(2, 6)[:, ::2])
    two = nn.Parameter(TwoTensor(torch.randn(2, 3), torch.randn(2, 3)))
    for weight, expected in ((transposed, True), (gaps, False), (two, False)):
        model.weight = weight
        assert is_fused(made(name, model)) is expected


@pytest.mark.parametrize(
    ("name", "more"), [("adamw", {}), ("sgd", {}), ("sgd", {"nesterov": True}), ("sgd", {"momentum": 0.0})]
)
def test_fused_training_is_training(name, more, monkeypatch):
    expected = trained(name, **more)
    monkeypatch.setattr(bases, "FUSED_ON", "cpu")
    assert_close(trained(name, **more), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")], ids="-".join)
def test_a_state_that_another_device_saved_goes_on_as_the_new_device_wants(name, devices, monkeypatch):
    """Truth: training without a break. The stand-in for a GPU is the CPU; "fused" is what the two differ in."""
    expected = trained(name, steps=4)
    model, states = network(), []
    for number, device in zip(range(4), [devices[0]] * 2 + [devices[1]] * 2, strict=True):
        monkeypatch.setattr(bases, "FUSED_ON", "cpu" if device == "cuda" else "cuda")
        optimizer = made(name, model)
        if states:
            optimizer.load_state_dict(as_saved(states[-1]))
        assert is_fused(optimizer) is (device == "cuda")
        step(model, optimizer, number)
        states.append(optimizer.state_dict())
    assert_close([p.detach() for p in model.parameters()], expected)
    duplicate = copy.deepcopy(optimizer)
    assert is_fused(duplicate) is (devices[1] == "cuda")


def test_numbers_of_steps_lie_where_the_kernels_read_them():
    """A fused step reads them on the GPU; another one on the host, where a GPU's number would make it wait."""
    for own in ("cuda", "cpu"):
        model = weights(own)
        (weight,) = model
        optimizer = made("adamw", model)
        for device, then in (("cpu", None), ("cuda", True), ("cpu", True), ("cuda", None)):
            with pretended():
                tensors = {key: torch.zeros(2, 3, device=device) for key in ("exp_avg", "exp_avg_sq")}
                tensors["step"] = torch.zeros((), device=device if then else "cpu")
                group = optimizer.state_dict()["param_groups"][0] | {"fused": then}
                optimizer.load_state_dict({"state": {0: tensors}, "param_groups": [group]})
                assert is_fused(optimizer) is (own == "cuda")
                assert {tensor.device.type for tensor in optimizer.state[weight].values()} == {own}
                if own == "cuda":
                    weight.grad = torch.zeros_like(weight)
                    optimizer.step()


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", NAMES)
def test_sharded_parameters_are_fused_where_dtensor_knows_the_kernel(name, on_gpu, one_rank):
    """Truth: plain parameters. A GradScaler's numbers are plain tensors beside the DTensors."""
    expected = trained(name)
    model = fully_shard(network())
    optimizer = made(name, model)
    assert is_fused(optimizer) is (name == "adamw")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(3):
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)).to(torch.float64)
        optimizer.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_close([p.full_tensor() for p in model.parameters()], expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_scaler_s_skipped_first_step_changes_nothing(name, on_gpu):
    """Truth: the steps that are taken, without a scaler. Fused optimizers unscale, and skip on the device."""
    expected = trained(name, steps=3)
    model = network()
    optimizer = made(name, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    taken = 0
    for attempt in range(5):
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(taken)).to(torch.float64)
        optimizer.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        if overflows := attempt in (0, 2):
            next(model.parameters()).grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        taken += not overflows
    assert_close([p.detach() for p in model.parameters()], expected)


def test_momentum_of_a_skipped_first_step_is_not_what_lay_in_memory(on_gpu, monkeypatch):
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **more: torch.full_like(tensor, torch.nan, **more))
    test_a_scaler_s_skipped_first_step_changes_nothing("sgd", None)


def test_parameters_that_get_gradients_later_join_a_fused_sgd(on_gpu):
    """Truth: the step of plain SGD, whose velocity is the first gradient."""
    model = network()
    optimizer = made("sgd", model)
    first, *_, last = model.parameters()
    for parameters in ([first], [first, last]):
        optimizer.zero_grad()
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        before = last.detach().clone()
        optimizer.step()
    assert_close(last.detach(), before - 0.1 * (1 + 0.2 * before))


def test_sparse_gradients_leave_the_fused_kernel(on_gpu):
    model = nn.Embedding(5, 3, sparse=True)
    true = copy.deepcopy(model)
    optimizer, _ = build("sgd", model, {"lr": 0.1})
    truth = torch.optim.SGD(true.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for one, of in ((model, optimizer), (true, truth)):
            of.zero_grad()
            one(torch.tensor([1, 3])).square().sum().backward()
            of.step()
    assert not is_fused(optimizer)
    assert_close(model.weight, true.weight)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_and_a_tensor_rate_are_taken(name, dtype, on_gpu):
    losses = []
    model = network(dtype)
    optimizer = made(name, model)
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.01)
    for number in range(4):
        step(model, optimizer, 0)
        with torch.no_grad():
            losses.append(float(model(torch.ones(1, 4, dtype=dtype)).square().sum()))
        assert is_fused(optimizer), number
    assert all(after < before for before, after in pairwise(losses))


def lambs(model: nn.Module) -> tuple[torch.optim.Optimizer, nn.Module, Lamb]:
    """Return LAMB, and a copy of the model with timm's own."""
    true = copy.deepcopy(model)
    groups = [{"params": group, "weight_decay": decay} for group, decay in by_decay(true, "lamb")]
    truth = Lamb(groups, lr=0.1, bias_correction=False, betas=(0.8, 0.95), eps=1e-6, max_grad_norm=1.0)
    return made("lamb", model, beta1=0.8, beta2=0.95), true, truth


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("weight", [1e-3, 1e3])
def test_lamb_takes_timm_s_steps(weight, device, monkeypatch):
    """With gradients that are clipped and that are not. To the last bit on a CPU, where nothing is fused."""
    monkeypatch.setattr(bases, "FUSED_ON", "cpu" if device == "cuda" else "cuda")
    model = network()
    with torch.no_grad():
        model[0].weight.zero_()  # of which the ratio of lengths is 1
    optimizer, true, truth = lambs(model)
    stepped = []
    optimizer.register_step_pre_hook(lambda *_: stepped.append(1))
    for number in range(4):
        step(model, optimizer, number, weight=weight)
        step(true, truth, number, weight=weight)
        assert_close([p.grad for p in model.parameters()], [p.grad for p in true.parameters()])
    assert len(stepped) == 4
    assert optimizer._is_fused is (device == "cuda")
    exactly = {} if device == "cuda" else {"rtol": 0.0, "atol": 0.0}
    assert_close([*model.parameters()], [*true.parameters()], **exactly)
    assert optimizer.state_dict()["param_groups"] == truth.state_dict()["param_groups"]
    truth.load_state_dict(as_saved(optimizer.state_dict()))
    step(model, optimizer, 9)
    step(true, truth, 9)
    assert_close([*model.parameters()], [*true.parameters()], **exactly)


def no_gradients_yet(model: nn.Sequential, optimizer: torch.optim.Optimizer, number: int) -> None:
    for parameter in [*model.parameters()][number:]:
        parameter.grad = None


def a_gradient_of_zeros(model: nn.Sequential, optimizer: torch.optim.Optimizer, number: int) -> None:
    model[0].weight.grad.zero_()


def a_gradient_in_another_order(model: nn.Sequential, optimizer: torch.optim.Optimizer, number: int) -> None:
    model[0].weight.grad = model[0].weight.grad.mT.contiguous().mT


def a_tensor_as_the_rate(model: nn.Sequential, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)


@pytest.mark.parametrize(
    "change", [no_gradients_yet, a_gradient_of_zeros, a_gradient_in_another_order, a_tensor_as_the_rate]
)
def test_lamb_takes_timm_s_steps_with(change, on_gpu):
    optimizer, true, truth = lambs(model := network())
    for number in range(3):
        for one, of in ((model, optimizer), (true, truth)):
            step(one, of, number, change=partial(change, one, of, number))
    assert_close([*model.parameters()], [*true.parameters()])


def test_lamb_in_several_precisions(on_gpu):
    """Truth: timm's, which steps float16 with roundings of its own: that is left to it."""
    model = network(torch.float32)
    model[2].double()
    optimizer, true, truth = lambs(nn.ModuleList(model))
    for _ in range(3):
        for one, of in ((model, optimizer), (true, truth)):
            for parameter in one.parameters():
                parameter.grad = torch.ones_like(parameter)
            of.step()
    assert optimizer._is_fused
    assert_close([*model.parameters()], [*true.parameters()])
    kinds = [{parameter.dtype for parameter in kind} for kind in by_kind(model.parameters())]
    assert kinds == [{torch.float32}, {torch.float64}]  # a GPU's kernel would refuse both in one call
    assert not made("lamb", network(torch.float16))._is_fused
