"""Truth: a step taken by hand, the uninterrupted run, the same gradients without the feature under test."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, build
from mkor_core import MKOR, MKORH, Preconditioner
from mkor_core.engines import engine
from tests.support.operators import Operators


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(27, 8), nn.Tanh(), nn.Linear(8, 2)
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(8, 1, 7, 7, generator=generator), torch.randn(8, 2, generator=generator)


def loss_of(model: nn.Module, step: int) -> Tensor:
    inputs, targets = batch(step)
    return (model(inputs) - targets).square().mean()


class Lengthened(torch.optim.SGD):
    """Multiplies every learning rate by a second argument of its step before it runs."""

    def step(self, closure: Any = None, factor: float = 1.0) -> Any:
        for group in self.param_groups:
            group["lr"] *= factor
        return super().step(closure)


def test_arguments_beside_a_closure_reach_the_optimizer():
    optimizer = Lengthened((model := network()).parameters(), lr=0.25)
    Preconditioner(model, MKOR()).attach(optimizer)
    loss = loss_of(model, 0)
    assert optimizer.step(lambda: loss, 2.0) is loss
    assert optimizer.step(closure=lambda: loss, factor=2.0) is loss
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_kl_clip_needs_a_learning_rate():
    preconditioner = Preconditioner(model := network(), KAISA())
    loss_of(model, 0).backward()
    with pytest.raises(ValueError, match="pass lr="):
        preconditioner.step()


@pytest.mark.parametrize("chosen", [r"^3$", "module"])
def test_excluded_layers_keep_their_gradient(chosen):
    model = network()
    exclude = model[3] if chosen == "module" else chosen
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1), exclude=(exclude,))
    assert preconditioner.layers == ("0", "5")
    loss_of(model, 0).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    preconditioner.step()
    after = [parameter.grad for parameter in model.parameters()]
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [False, False, True, True, False, False]


def test_a_published_factor_that_overflows_is_named():
    """Along a persistent mean the printed rule doubles its factor at every update, in spite of the stabilizer."""
    model = nn.Sequential(nn.Linear(4, 2))
    preconditioner = Preconditioner(model, MKOR(update_rule="published", inverse_update_period=1))
    inputs = torch.ones(3, 4)
    for _ in range(300):
        model.zero_grad()
        model(inputs).sum().backward()
        preconditioner.step()
    assert preconditioner.non_finite_layers() == ["0"]
    assert_close(model[0].weight.grad, torch.full((2, 4), 3.0))  # rescaling falls back on the gradient


def test_after_remove_the_optimizer_is_the_plain_one():
    model, plain = network(), network()
    optimizer, preconditioner = build("mkor", model, {"lr": 0.1, "inverse_update_period": 1})
    base = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    assert preconditioner is not None
    assert preconditioner.memory_bytes() > 0
    preconditioner.remove()
    assert preconditioner.memory_bytes() == 0
    for network_, stepper in ((model, optimizer), (plain, base)):
        loss_of(network_, 0).backward()
        stepper.step()
    assert_close([*model.parameters()], [*plain.parameters()], rtol=0, atol=0)
    state = optimizer.state_dict()
    assert "preconditioner" not in state["param_groups"][0]
    assert {key for entries in state["state"].values() for key in entries} == {"momentum_buffer"}


def test_what_was_captured_before_a_state_is_loaded_does_not_count_in_its_next_step():
    """Truth: a new preconditioner that loads the same state, and the second batch."""
    results = []
    for captures_before in (True, False):
        preconditioner = Preconditioner(model := network(), MKOR(inverse_update_period=1))
        if captures_before:
            loss_of(model, 0).backward()
        preconditioner.load_state_dict(Preconditioner(network(), MKOR(inverse_update_period=1)).state_dict())
        loss_of(model, 1).backward()
        preconditioner.step()
        # Inputs only: the gradients, which have not been cleared, are those of both batches.
        results.append([layer["right"] for layer in preconditioner.state_dict()["layers"].values()])
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_after_mkor_h_has_switched_a_state_from_before_needs_a_new_preconditioner():
    """Its hooks are gone; a state from after the switch can be loaded into one that has not switched, and frees it."""
    options = {"inverse_update_period": 1, "warmup_steps": 0, "knee_beta": 9.0}
    switched, other = (Preconditioner(network(), MKORH(**options)) for _ in range(2))
    early = switched.state_dict()
    late = early | {"step": 7, "switch_step": 7}
    switched.load_state_dict(late)
    switched.load_state_dict(late)
    with pytest.raises(RuntimeError, match="has switched to the base optimizer: load the state into a new one"):
        switched.load_state_dict(early)
    other.load_state_dict(early)
    assert (other.switch_step, other.memory_bytes() > 0) == (None, True)
    other.load_state_dict(late)
    assert (other.switch_step, other.memory_bytes(), other.state_dict()["step"]) == (7, 0, 7)


def train_scaled(
    *, fused: bool, dtype: torch.dtype | None, overflow_at: tuple[int, ...], name: str = "mkor", **more: float
) -> tuple[Any, ...]:
    """Train with a GradScaler; in some steps the loss overflows first, so that the step is skipped and repeated."""
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10_000)
    # Without momentum: torch's fused SGD starts its buffer from a skipped first step.
    period = {} if name == "eva" else {"inverse_update_period": 3}
    options = {"lr": 0.05, "momentum": 0.0, **period, **more}
    optimizer, preconditioner = build(name, model, options, grad_scale=scaler)
    for group in optimizer.param_groups:
        group["fused"] = fused
    setattr(optimizer, "_step_supports_amp_scaling", fused)  # noqa: B010  (not in torch's stubs)
    step = 0
    while step < 8:
        for _ in range(1 + (step in overflow_at)):  # a skipped step is repeated with the same batch
            optimizer.zero_grad()
            inputs, targets = batch(step)
            bad = step in overflow_at and _ == 0
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = (model(inputs) - targets).float().square().mean()
            scaler.scale(loss * torch.inf if bad else loss).backward()
            scaler.step(optimizer)
            scaler.update(new_scale=2.0**10)
        step += 1
    return [parameter.detach() for parameter in model.parameters()], preconditioner.state_dict()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("overflow_at", [(0,), (3,), (2, 4)], ids=str)
def test_a_step_that_the_scaler_skips_changes_nothing(fused, overflow_at, caplog):
    """Truth: the same run with a loss that never overflows. Steps 0 and 3 update factors, 2 and 4 do not."""
    weights, state = train_scaled(fused=fused, dtype=None, overflow_at=overflow_at)
    true_weights, true_state = train_scaled(fused=fused, dtype=None, overflow_at=())
    assert state["step"] == true_state["step"] == 8
    assert_close(state["layers"], true_state["layers"], rtol=0, atol=0)
    assert_close(weights, true_weights, rtol=0, atol=0)
    assert caplog.records == []


def test_the_state_after_a_step_that_a_fused_optimizer_skipped_is_the_one_before(caplog):
    """The host learns of the skipped step when the state is saved. Only one of two branches overflows."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    preconditioner.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    inputs = torch.arange(8.0).view(2, 4)
    saved = []
    for factor in (1.0, torch.inf):
        optimizer.zero_grad()
        scaler.scale(model[0](inputs).square().sum() + model[1](inputs).square().sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update(new_scale=4.0)
        saved.append(preconditioner.state_dict())
    assert saved[0]["step"] == saved[1]["step"] == 1
    assert_close(saved[1]["layers"], saved[0]["layers"], rtol=0, atol=0)
    assert caplog.records == []


def test_rows_of_a_step_that_needs_none_do_not_count_in_the_next():
    """A fused optimizer may skip step 0, so step 1 captures too. Gradients are not cleared between steps 1 and 2."""
    results = []
    for fused in (True, False):
        preconditioner = Preconditioner(model := network(), MKOR(inverse_update_period=2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=fused)
        preconditioner.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        for step in range(3):
            if step < 2:
                optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(preconditioner.state_dict()["layers"])
    assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.parametrize(("name", "more"), [("mkor", {}), ("kaisa", {"kl_clip": 1e-7}), ("eva", {"kl_clip": 1e-7})])
def test_fused_and_unfused_scaled_training_agree(name, more):
    """A fused optimizer gets scaled gradients and unscales them itself; kl_clip acts on unscaled ones."""
    fused, _ = train_scaled(name=name, fused=True, dtype=None, overflow_at=(), **more)
    unfused, _ = train_scaled(name=name, fused=False, dtype=None, overflow_at=(), **more)
    assert_close(fused, unfused, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_training_comes_close_to_float32(dtype):
    exact, _ = train_scaled(fused=False, dtype=None, overflow_at=())
    half, state = train_scaled(fused=False, dtype=dtype, overflow_at=())
    moved = [weight - start for weight, start in zip(exact, network().parameters(), strict=True)]
    for near, true, distance in zip(half, exact, moved, strict=True):
        assert (near - true).norm() < 0.1 * distance.norm()
    assert all(t.dtype in (torch.float32, torch.int64) for layer in state["layers"].values() for t in layer.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ("heads",)}, "exclude='heads' matches no module"),
        ({"exclude": nn.Linear(2, 2)}, "exclude=Linear matches no module"),
        ({"lr": "0.1"}, "lr='0.1' must be a number or None"),
        ({"grad_scale": "x"}, "grad_scale='x' must be a number"),
        ({"accumulation_steps": 0}, "accumulation_steps=0 must be at least 1"),
        ({"precision": "tf32"}, "precision='tf32' must be one of highest, high, medium"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Preconditioner(network(), MKOR(), **options)


class FullyShardedDataParallel(nn.Sequential):
    """Stands in for torch's class, which is recognized by its name."""


def test_models_methods_and_optimizers_that_cannot_serve_are_refused_by_name():
    of_deepspeed = nn.Sequential(nn.Linear(2, 2))
    of_deepspeed[0].weight.ds_id = 0
    foreign: Any = type("DeepSpeedEngine", (), {})()
    preconditioner = Preconditioner(model := network(), MKOR())
    sgd, lbfgs = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.LBFGS(model.parameters())
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: Preconditioner(nn.LayerNorm(4), MKOR()), ValueError, "no Linear or convolution"),
        (lambda: Preconditioner(FullyShardedDataParallel(nn.Linear(2, 2)), MKOR()), TypeError, r"fully_shard or"),
        (lambda: Preconditioner(of_deepspeed, MKOR()), TypeError, "DeepSpeed ZeRO-3 shards parameter '0.weight'"),
        (
            lambda: Preconditioner(network(), MKOR),
            TypeError,
            r"is not an instance of Method; pass one, such as MKOR\(\)",
        ),
        (lambda: preconditioner.attach(foreign), TypeError, "DeepSpeedEngine is not a torch.optim.Optimizer"),
        (lambda: preconditioner.attach(lbfgs), TypeError, "LBFGS"),
    ]
    for action, error, message in refused:
        with pytest.raises(error, match=message):
            action()
    preconditioner.attach(sgd)
    with pytest.raises(RuntimeError, match="already attached"):
        preconditioner.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="would precondition twice"):
        Preconditioner(model, MKOR()).attach(sgd)


def read_back(operators: Operators) -> int:
    """Return how many tensors' values were read back to the host, each of which would make it wait for a GPU."""
    return len(operators.named("_local_scalar_dense"))


@pytest.mark.filterwarnings("ignore:A step has more backward passes")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("announced", [1, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mkor", {"inverse_update_period": 3}),
        ("mkor", {"inverse_update_period": 3, "window": 2, "update_rule": "released"}),
        ("mkor", {"inverse_update_period": 2, "rank": 2}),
        ("kaisa", {"factor_update_period": 2, "inverse_update_period": 4}),
        ("eva", {}),
    ],
    ids=str,
)
def test_no_step_reads_a_value_back_to_the_host(name, options, announced, set_to_none, monkeypatch):
    """Except in HyLo, whose kept rows differ in number, and MKOR-H, which reads the loss of the last update.

    Nor does a backward pass, when several share a step: it finds the gradients as the last has left them. Nor is the
    loss scale read, a tensor. As on a GPU: of a CPU, the host knows the values without waiting.
    """
    monkeypatch.setattr(engine, "goes_alone", lambda device: False)
    model, one = network(), torch.tensor(1.0)
    _, preconditioner = build(
        name, model, {"lr": 0.05, **options}, accumulation_steps=announced, grad_scale=lambda: one
    )
    for step in range(4):
        model.zero_grad(set_to_none=set_to_none)
        with Operators() as operators:
            for part in range(3):
                loss_of(model, 3 * step + part).backward()
            preconditioner.step()
        assert read_back(operators) == 0


@pytest.mark.parametrize("announced", [1, 2])
@pytest.mark.parametrize("changed", [(0, 3, 5), (3,)], ids=str)
def test_of_gradients_that_change_between_two_passes_one_is_read_back(announced, changed, monkeypatch):
    """Were they cleared? One that is not zero tells that none was. As on a GPU."""
    monkeypatch.setattr(engine, "goes_alone", lambda device: False)
    preconditioner = Preconditioner(model := network(), MKOR(), accumulation_steps=announced)
    loss_of(model, 0).backward()
    for layer in changed:
        model[layer].weight.grad.mul_(0.5)
    with Operators() as operators:
        loss_of(model, 1).backward()
        loss_of(model, 2).backward()
        preconditioner.step()
    assert read_back(operators) == 1


class Scored(nn.Module):
    """Returns an output with a loss, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Any:
        return SimpleNamespace(loss=self.layer(inputs).square().mean())


@pytest.mark.parametrize("sources", [("closure", "output", "observe"), ("output", "observe"), ("observe",)], ids=str)
def test_mkor_h_takes_its_loss_from_the_first_source_that_gives_one(sources):
    """The closure's value, else output.loss at the root, else observe."""
    model = Scored()
    preconditioner = Preconditioner(model, MKORH(inverse_update_period=1, warmup_steps=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    preconditioner.attach(optimizer)

    def closure() -> float:
        loss = model(torch.ones(2, 3)).loss if "output" in sources else model.layer(torch.ones(2, 3)).square().mean()
        loss.backward()
        return 3.0

    for _ in range(2):
        preconditioner.observe(5.0)
        if "closure" in sources:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    output = model(torch.ones(2, 3)).loss.item()
    expected = {"closure": 3.0, "output": output, "observe": 5.0}[sources[0]]
    assert preconditioner.state_dict()["losses"]["history"] == [(1, pytest.approx(expected))] * 2
