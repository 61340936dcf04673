"""Truth: a step taken by hand, the uninterrupted run, the same gradients without the feature under test."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from baselines import KAISA, build
from mkor_core import MKOR, MKORH, Preconditioner
from mkor_core.engines import engine
from mkor_core.saving.entries import saved_tensors

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("mkor", {"inverse_update_period": 3}),
    ("mkor", {"inverse_update_period": 3, "window": 2, "update_rule": "released"}),
    ("mkor", {"inverse_update_period": 2, "rank": 2}),
    ("mkor_h", {"inverse_update_period": 1, "warmup_steps": 4, "knee_beta": 5.0}),
    ("kaisa", {"factor_update_period": 2, "inverse_update_period": 4}),
    ("eva", {}),
    ("hylo", {"update_period": 3}),
]


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


def train(name: str, options: dict[str, Any], steps: int, interrupt: int | None = None) -> list[Tensor]:
    """Train with a learning-rate schedule; at step ``interrupt``, save, build new objects and load."""

    def make(model: nn.Module) -> tuple[Any, ...]:
        optimizer, preconditioner = build(name, model, {"lr": 0.05, **options})
        return optimizer, preconditioner, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)

    model = network()
    optimizer, preconditioner, scheduler = make(model)
    for step in range(steps):
        if step == interrupt:
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            model = network(seed=7)
            optimizer, preconditioner, scheduler = make(model)
            for part, state in zip((model, optimizer, scheduler), saved, strict=True):
                part.load_state_dict(state)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        preconditioner.observe(loss)
        optimizer.step()
        scheduler.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("name", "options"), METHODS, ids=str)
@pytest.mark.parametrize("interrupt", [1, 4, 6])
def test_resumed_training_equals_uninterrupted_training_bitwise(name, options, interrupt):
    """Also between two inverse updates, and through torch's safe loader."""
    whole, resumed = train(name, options, 10), train(name, options, 10, interrupt)
    assert_close(resumed, whole, rtol=0, atol=0)
    assert not torch.equal(whole[0], network()[0].weight)


def test_loading_twice_is_as_good_as_once():
    optimizer, _ = build("mkor", model := network(), {"lr": 0.1})
    loss_of(model, 0).backward()
    optimizer.step()
    state = optimizer.state_dict()
    clone, preconditioner = build("mkor", network(), {"lr": 0.1})
    clone.load_state_dict(state)
    clone.load_state_dict(state)
    assert preconditioner is not None
    for name, tensors in preconditioner.state_dict()["layers"].items():
        assert_close(tensors, saved_tensors(state)[{"0": 0, "3": 2, "5": 4}[name]], rtol=0, atol=0)


def test_a_closures_gradients_are_preconditioned_before_the_optimizer_uses_them():
    by_closure, by_hand = network(), network()
    weights = []
    for model in (by_closure, by_hand):
        optimizer, _ = build("mkor", model, {"lr": 0.1, "inverse_update_period": 1})

        def closure(model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        for _ in range(3):
            if model is by_closure:
                assert optimizer.step(closure) is not None
            else:
                closure()
                optimizer.step()
        weights.append([parameter.detach() for parameter in model.parameters()])
    assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_a_closure_by_keyword_is_preconditioned_too():
    one, other = network(), network()
    for model, keyword in ((one, False), (other, True)):
        optimizer, _ = build("mkor", model, {"lr": 0.1, "inverse_update_period": 1})

        def closure(model: nn.Module = model) -> Tensor:
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    assert_close([*one.parameters()], [*other.parameters()], rtol=0, atol=0)


class Lengthened(torch.optim.SGD):
    """Multiplies every learning rate by a second argument of its step before it runs."""

    def step(self, closure: Any = None, factor: float = 1.0) -> Any:
        for group in self.param_groups:
            group["lr"] *= factor
        return super().step(closure)


def test_arguments_after_a_positional_closure_reach_the_optimizer():
    model = network()
    optimizer = Lengthened(model.parameters(), lr=0.25)
    Preconditioner(model, MKOR()).attach(optimizer)
    loss = loss_of(model, 0)
    assert optimizer.step(lambda: loss, 2.0) is loss
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_step_without_attach_does_the_same():
    attached, by_hand = network(), network()
    one, _ = build("kaisa", attached, {"lr": 0.1})
    other = torch.optim.SGD(by_hand.parameters(), lr=0.1, momentum=0.9)
    preconditioner = Preconditioner(by_hand, KAISA(), lr=0.1)
    for step in range(4):
        for model, optimizer in ((attached, one), (by_hand, other)):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if model is by_hand:
                preconditioner.step()
            optimizer.step()
    assert_close([*attached.parameters()], [*by_hand.parameters()], rtol=0, atol=0)


def test_a_layer_without_a_gradient_does_not_keep_others_from_a_step_without_statistics():
    """MKOR captures nothing in step 1. Truth: a model without the unused layer."""
    results = []
    for unused in (True, False):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)] if unused else [nn.Linear(4, 3)])
        preconditioner = Preconditioner(model, MKOR(inverse_update_period=2))
        for step in range(2):
            model.zero_grad()
            model[0](torch.arange(8.0).view(2, 4) + step).square().sum().backward()
            raw = model[0].weight.grad.clone()
            preconditioner.step()
        assert not torch.equal(model[0].weight.grad, raw)
        results.append(model[0].weight.grad)
    assert_close(results[0], results[1], rtol=0, atol=0)


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


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ValueError, match="exclude='heads' matches no module"):
        Preconditioner(network(), MKOR(), exclude=("heads",))


def test_a_model_without_a_layer_to_precondition_is_refused():
    with pytest.raises(ValueError, match="no Linear or convolution"):
        Preconditioner(nn.LayerNorm(4), MKOR())


class Mixed(nn.Module):
    """Tied, grouped, frozen, unused and normalizing modules around one plain layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.plain, self.frozen, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.grouped = nn.Conv2d(6, 6, 1, groups=2)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.frozen(self.plain(self.embedding(tokens))))
        return self.head(self.grouped(hidden[:, :, None, None]).flatten(1))


def test_unsupported_layers_are_left_alone_and_named():
    model, plain = Mixed(), Mixed()
    plain.load_state_dict(model.state_dict())
    with pytest.warns(UserWarning, match="Left to the base optimizer:") as caught:
        preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    assert preconditioner.layers == ("plain", "frozen", "unused")
    for name in (
        "embedding: Embedding",
        "norm: LayerNorm",
        "grouped: Conv2d with groups=2",
        "head: its weight is shared",
    ):
        assert f"\n  {name}" in repr(preconditioner)
    assert [str(one.message).splitlines()[1:3] for one in caught] == [
        ["  9 %: grouped: Conv2d with groups=2 > 1", "  48 %: embeddings, norms and biases"]
    ]
    for network_ in (model, plain):
        network_(torch.arange(8)).square().mean().backward()
    preconditioner.step()
    assert not torch.equal(model.plain.weight.grad, plain.plain.weight.grad)
    for name, parameter in model.named_parameters():
        if not name.startswith("plain"):
            assert_close(parameter.grad, dict(plain.named_parameters())[name].grad, rtol=0, atol=0)


def test_a_layer_with_zero_gradient_stays_finite():
    model = network()
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    (loss_of(model, 0) * 0).backward()
    preconditioner.step()
    assert all(parameter.grad.eq(0).all() for parameter in model.parameters())


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


def test_memory_is_what_the_state_tensors_hold():
    model = nn.Sequential(nn.Linear(20, 30))
    preconditioner = Preconditioner(model, MKOR())
    by_tensor = preconditioner.memory_by_tensor()
    assert by_tensor["left"] == 4 * 30 * 30
    assert by_tensor["right"] == 4 * 21 * 21
    assert preconditioner.memory_bytes() == sum(by_tensor.values())


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
    assert "preconditioner" not in optimizer.state_dict()["param_groups"][0]


def test_remove_frees_the_state_and_takes_mkor_hs_hook_off_the_model():
    preconditioner = Preconditioner(model := network(), MKORH(inverse_update_period=1))
    loss_of(model, 0).backward()
    preconditioner.observe(1.0)
    preconditioner.step()
    assert preconditioner.state_dict()["layers"]
    preconditioner.remove()
    assert preconditioner.state_dict()["layers"] == {}
    assert not any(module._forward_hooks for module in model.modules())


class Wrapper(torch.optim.Optimizer):
    """A wrapper like accelerate's: it keeps the true optimizer as ``.optimizer`` and lacks its hooks."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def test_a_wrapped_optimizer_is_unwrapped():
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    Preconditioner(model, MKOR()).attach(Wrapper(inner))
    assert "preconditioner" in inner.state_dict()["param_groups"][0]


def test_lbfgs_and_a_second_attach_are_refused():
    model = network()
    preconditioner = Preconditioner(model, MKOR())
    with pytest.raises(TypeError, match="LBFGS"):
        preconditioner.attach(torch.optim.LBFGS(model.parameters()))
    preconditioner.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="already attached"):
        preconditioner.attach(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_state_names_its_method_and_hyperparameters_in_plain_types():
    state = Preconditioner(network(), MKOR(window=2, factor_dtype=torch.bfloat16)).state_dict()
    assert (state["method"], state["step"], state["switch_step"], state["losses"]) == ("MKOR", 0, None, None)
    assert state["hyperparameters"]["window"] == 2
    assert state["hyperparameters"]["factor_dtype"] == "bfloat16"


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


def test_a_state_of_another_method_layer_or_shape_is_refused():
    state = Preconditioner(network(), MKOR()).state_dict()
    with pytest.raises(ValueError, match="saved by MKOR, but this Preconditioner's method is KAISA"):
        Preconditioner(network(), KAISA()).load_state_dict(state)
    optimizer, preconditioner = build("mkor", model := network(), {"lr": 0.1})
    loss_of(model, 0).backward()
    optimizer.step()
    assert preconditioner is not None
    state = preconditioner.state_dict()
    with pytest.raises(ValueError, match="a layer '5' that this Preconditioner does not precondition"):
        Preconditioner(network(), MKOR(), exclude=("^5$",)).load_state_dict(state)
    with pytest.raises(ValueError, match="differ in tensor"):
        Preconditioner(network(), MKOR(window=3)).load_state_dict({**state, "hyperparameters": None})
    state["layers"]["0"]["left"] = torch.eye(5)
    with pytest.raises(ValueError, match=r"Tensor 'left' of layer '0' has shape \(5, 5\), not \(3, 3\)"):
        Preconditioner(network(), MKOR()).load_state_dict(state)


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


def test_an_optimizer_state_without_the_preconditioners_warns():
    optimizer, _ = build("mkor", network(), {"lr": 0.1})
    plain = torch.optim.SGD(network().parameters(), lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match="starts anew"):
        optimizer.load_state_dict(plain.state_dict())


def test_a_data_parallel_prefix_is_stripped_from_names():
    wrapped = nn.DataParallel(network())
    assert Preconditioner(wrapped, MKOR()).layers == ("0", "3", "5")


@pytest.mark.parametrize("given", ["number", "callable", "scaler"])
def test_a_scaled_loss_gives_the_same_factors(given):
    """Captured rows are unscaled once; the gradients are unscaled by the loop, as GradScaler.unscale_ does."""
    plain, scaled = network(), network()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scale = {"number": 2.0, "callable": lambda: 2.0, "scaler": scaler}[given]
    one = Preconditioner(plain, MKOR(inverse_update_period=1))
    other = Preconditioner(scaled, MKOR(inverse_update_period=1), grad_scale=scale)
    loss_of(plain, 0).backward()
    scaler.scale(loss_of(scaled, 0)).backward()
    for parameter in scaled.parameters():
        parameter.grad.div_(2)
    one.step()
    other.step()
    assert_close(other.state_dict()["layers"], one.state_dict()["layers"])
    assert_close([p.grad for p in scaled.parameters()], [p.grad for p in plain.parameters()])


def train_scaled(
    *, fused: bool, dtype: torch.dtype | None, overflow_at: tuple[int, ...], name: str = "mkor", **more: float
) -> tuple[Any, ...]:
    """Train with a GradScaler; in some steps the loss overflows first, so that the step is skipped and repeated."""
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10_000)
    # Without momentum: torch's fused SGD starts its buffer from a skipped first step.
    options = {"lr": 0.05, "momentum": 0.0, "inverse_update_period": 3, **more}
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


@pytest.mark.parametrize("options", [{"name": "mkor"}, {"name": "kaisa", "kl_clip": 1e-7}], ids=str)
def test_fused_and_unfused_scaled_training_agree(options):
    """A fused optimizer gets scaled gradients and unscales them itself; kl_clip acts on unscaled ones."""
    fused, _ = train_scaled(fused=True, dtype=None, overflow_at=(), **options)
    unfused, _ = train_scaled(fused=False, dtype=None, overflow_at=(), **options)
    assert_close(fused, unfused, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_training_comes_close_to_float32(dtype):
    exact, _ = train_scaled(fused=False, dtype=None, overflow_at=())
    half, state = train_scaled(fused=False, dtype=dtype, overflow_at=())
    moved = [weight - start for weight, start in zip(exact, network().parameters(), strict=True)]
    for near, true, distance in zip(half, exact, moved, strict=True):
        assert (near - true).norm() < 0.1 * distance.norm()
    assert all(t.dtype in (torch.float32, torch.int64) for layer in state["layers"].values() for t in layer.values())


class FullyShardedDataParallel(nn.Sequential):
    """Stands in for torch's class, which is recognized by its name."""


def test_sharded_models_are_refused_by_name():
    with pytest.raises(TypeError, match=r"FullyShardedDataParallel flattens .*fully_shard or"):
        Preconditioner(FullyShardedDataParallel(nn.Linear(2, 2)), MKOR())
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight.ds_id = 0
    with pytest.raises(TypeError, match=r"DeepSpeed ZeRO-3 shards parameter '0.weight'"):
        Preconditioner(model, MKOR())


def test_an_optimizer_that_is_not_torchs_is_refused():
    with pytest.raises(TypeError, match=r"DeepSpeedEngine is not a torch.optim.Optimizer"):
        Preconditioner(network(), MKOR()).attach(type("DeepSpeedEngine", (), {})())


class Waiting(TorchDispatchMode):
    """Counts the tensors whose value is read back to the host, each of which would make it wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:A step has more backward passes")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("announced", [1, 3])
@pytest.mark.parametrize(
    ("name", "options"), [case for case in METHODS if case[0] in ("mkor", "kaisa", "eva")], ids=str
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
        with Waiting() as waits:
            for part in range(3):
                loss_of(model, 3 * step + part).backward()
            preconditioner.step()
        assert waits.count == 0


@pytest.mark.parametrize("announced", [1, 2])
@pytest.mark.parametrize("changed", [(0, 3, 5), (3,)], ids=str)
def test_of_gradients_that_change_between_two_passes_one_is_read_back(announced, changed, monkeypatch):
    """Were they cleared? One that is not zero tells that none was. As on a GPU."""
    monkeypatch.setattr(engine, "goes_alone", lambda device: False)
    preconditioner = Preconditioner(model := network(), MKOR(), accumulation_steps=announced)
    loss_of(model, 0).backward()
    for layer in changed:
        model[layer].weight.grad.mul_(0.5)
    with Waiting() as waits:
        loss_of(model, 1).backward()
        loss_of(model, 2).backward()
        preconditioner.step()
    assert waits.count == 1


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


def test_a_compiled_model_whose_rows_are_kept_is_preconditioned_like_the_plain_one():
    """AOTAutograd compiles the model into graphs that end at every layer's hook."""
    results = []
    for compiled in (False, True):
        model = network()
        optimizer, _ = build("hylo", model, {"lr": 0.1})
        forward = torch.compile(model, backend="aot_eager") if compiled else model
        for step in range(3):
            optimizer.zero_grad()
            loss_of(forward, step).backward()
            optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_phases_name_the_parts_of_the_work():
    names = []

    class Phase:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            names.append(self.name)

        def __exit__(self, *_: object) -> None:
            pass

    preconditioner = Preconditioner(model := network(), MKOR(inverse_update_period=2))
    preconditioner.phases = Phase
    for step in range(2):
        loss_of(model, step).backward()
        preconditioner.step()
        if step == 0:
            assert set(names) == {"capture", "factor", "precondition"}  # and of several ranks, communication
            names.clear()
    assert set(names) == {"precondition"}
