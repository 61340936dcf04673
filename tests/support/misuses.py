"""What users do wrong with the library, or do that its hooks must see through; by the outcome that is due.

Every entry is a step of training, which ends with ``session.optimizer.step()``. The checks state the outcome:
tests/mkor_core/test_misuse.py makes them of every statistic, tests/faults/test_library.py with every setting.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import MethodType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing import assert_close

from baselines import available, build, method_class
from tests.support.hyperparameters import options

SECOND_ORDER = [name for name in available() if method_class(name) is not None]
PERIODS = {"inverse_update_period": 1, "factor_update_period": 1, "update_period": 1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in SECOND_ORDER} | {
    "mkor released": ("mkor", {"update_rule": "released"}),
    "mkor published": ("mkor", {"update_rule": "published"}),
    "mkor rank 2": ("mkor", {"rank": 2}),
    # A full window is truncated even in a step that is left out; one of 4 rows is not full after 3 steps.
    "mkor window": ("mkor", {"window": 4}),
    "mkor not rescaled": ("mkor", {"rescale": False}),
    "kaisa inverse": ("kaisa", {"compute_method": "inverse"}),
    "kaisa not clipped": ("kaisa", {"kl_clip": None}),
    "eva not clipped": ("eva", {"kl_clip": None}),
    "hylo KID": ("hylo", {"variant": "KID"}),
    "hylo clipped": ("hylo", {"kl_clip": 1e-3}),
}
"""Every method, and the settings that take another path through it: an optimizer's name and hyperparameters."""
OF_EACH_STATISTIC = ("mkor", "mac", "eva", "kaisa", "foof", "hylo", "rs_kfac")
"""Means of all rows, of inputs, of the first rows; moments of both sides, of inputs; rows, and what is made of them.

What happens before a method sees them is the same in the others, but in "mkor released", which clamps rows."""
NEEDS_THE_NUMBER_OF_MICRO_BATCHES = ("mkor released", "eva", "eva not clipped")
"""Variants whose statistic depends on how many micro-batches share a batch."""
REDUCES_NONLINEARLY = ("foof", "kaisa", "kaisa inverse", "kaisa not clipped", "mkor released", "thermo_kfac")
"""Variants whose statistic is not linear in the gradient of one backward pass."""
KINDS = ("linear", "tokens", "convolution")
EXAMPLES = 6


def network(kind: str, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Return a model of two layers with inplace and other activations; the same weights at every call."""
    torch.manual_seed(0)
    if kind == "convolution":
        convolution = nn.Conv2d(2, 3, 2, stride=2, bias=False)
        return nn.Sequential(convolution, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3)).to(dtype)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def inputs(kind: str, step: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a batch of `EXAMPLES`; tokens come in threes."""
    shape = {"linear": (4,), "tokens": (3, 4), "convolution": (2, 4, 4)}[kind]
    return torch.randn(EXAMPLES, *shape, generator=torch.Generator().manual_seed(step)).to(dtype)


class Session:
    """A model in training; the misuses are functions of it and of a step."""

    def __init__(
        self, name: str, chosen: dict[str, Any], kind: str = "linear", dtype: torch.dtype = torch.float64, **more: Any
    ) -> None:
        self.kind, self.dtype = kind, dtype
        self.model: nn.Module = network(kind, dtype)
        periods = {key: value for key, value in PERIODS.items() if key in options(name)}
        self.optimizer, self.preconditioner = build(
            name, self.model, {**options(name, lr=0.01), **periods, **chosen}, **more
        )
        if self.preconditioner is not None:  # MKOR-H warns of a first step without one; some misuses have no loss
            self.preconditioner.observe(1.0)

    def batch(self, step: int) -> Tensor:
        """Return the inputs of a step."""
        return inputs(self.kind, step, self.dtype)

    def loss(self, step: int, rows: slice = slice(None)) -> Tensor:
        """Return a loss whose value depends on the weights in every layer."""
        loss = (self.model(self.batch(step)[rows]) - 0.1).square().mean()
        if self.preconditioner is not None:
            self.preconditioner.observe(loss)
        return loss

    def scores(self, parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
        """Return a loss as a pure function of the parameters, for torch.func."""
        result: Tensor = functional_call(self.model, parameters, (batch,)).square().mean()
        return result

    def weights(self) -> list[Tensor]:
        """Return copies of the parameters."""
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def gradients(model: nn.Module) -> list[Tensor]:
    """Return copies of the gradients."""
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


Step = Callable[[Session, int], None]


def run(session: Session, step: Step, steps: int = 3) -> list[Tensor]:
    """Train and return the weights."""
    for number in range(steps):
        session.optimizer.zero_grad()
        step(session, number)
    return session.weights()


def plain(session: Session, step: int) -> None:
    """Train as one should."""
    session.loss(step).backward()
    session.optimizer.step()


def _between(other: Step) -> Step:
    """Return a step that does something else between the backward pass and the optimizer's step."""

    def step_with(session: Session, step: int) -> None:
        session.loss(step).backward()
        other(session, step)
        session.optimizer.step()

    return step_with


def _parameters(session: Session) -> dict[str, Tensor]:
    return dict(session.model.named_parameters())


def _other_gradient(session: Session, step: int) -> None:
    torch.autograd.grad(session.model(session.batch(step + 50)).sum(), [*session.model.parameters()])


def _saliency(session: Session, step: int) -> None:
    batch = session.batch(step + 50).requires_grad_()
    torch.autograd.grad(session.model(batch).sum(), batch)


def _gradient_of_inputs_alone(session: Session, step: int) -> None:
    batch = session.batch(step + 50).requires_grad_()
    session.model(batch).sum().backward(inputs=[batch])


def _functional_gradient(session: Session, step: int) -> None:
    grad(session.scores)(_parameters(session), session.batch(step + 50))


def _gradients_by_example(session: Session, step: int) -> None:
    one = lambda parameters, example: session.scores(parameters, example[None])  # noqa: E731
    vmap(grad(one), (None, 0))(_parameters(session), session.batch(step + 50))


def _directional_derivative(session: Session, step: int) -> None:
    parameters = {name: parameter.detach() for name, parameter in _parameters(session).items()}
    jvp(lambda p: session.scores(p, session.batch(step + 50)), (parameters,), (parameters,))


def _fast_weights(session: Session, step: int) -> None:
    moved = {name: (p.detach() * 1.1).requires_grad_() for name, p in _parameters(session).items()}
    session.scores(moved, session.batch(step + 50)).backward()


def _forward_without_gradient(session: Session, step: int) -> None:
    with torch.no_grad():
        session.model(session.batch(step + 50))


def _evaluation(session: Session, step: int) -> None:
    session.model.eval()
    _forward_without_gradient(session, step)
    session.model.train()


DISTURBANCES: dict[str, Step] = {
    "autograd.grad of another loss": _other_gradient,
    "autograd.grad with respect to the inputs": _saliency,
    "backward(inputs=...) of the inputs alone": _gradient_of_inputs_alone,
    "torch.func.grad": _functional_gradient,
    "vmap of torch.func.grad": _gradients_by_example,
    "torch.func.jvp": _directional_derivative,
    "backward to other parameters through functional_call": _fast_weights,
    "a forward pass without gradient": _forward_without_gradient,
    "an evaluation": _evaluation,
}
"""What adds nothing to the parameters' gradients, at any place of a step."""


def _other_gradient_first(session: Session, step: int) -> None:
    _other_gradient(session, step)
    plain(session, step)


def _abandoned(set_to_none: bool) -> Step:
    """Return a step whose first backward pass is thrown away, as a GAN's generator step does to a discriminator."""

    def step_after_another(session: Session, step: int) -> None:
        session.loss(step + 50).backward()
        session.optimizer.zero_grad(set_to_none=set_to_none)
        plain(session, step)

    return step_after_another


def _interrupted(session: Session, step: int) -> None:
    """Try again after a backward pass that ran out of memory in its middle."""

    def fail(gradient: Tensor) -> None:
        raise MemoryError

    hidden = session.model[0](session.batch(step))
    hidden.register_hook(fail)
    with suppress(MemoryError):
        session.model[1:](hidden).square().mean().backward()
    session.optimizer.zero_grad()
    plain(session, step)


IGNORED: dict[str, Step] = {
    **{name: _between(disturbance) for name, disturbance in DISTURBANCES.items()},
    "autograd.grad of another loss before": _other_gradient_first,
    "a backward pass that is thrown away": _abandoned(set_to_none=True),
    "a backward pass that is overwritten with zeros": _abandoned(set_to_none=False),
    "a backward pass that an exception ended": _interrupted,
}
"""Steps that must train bitwise as `plain` does."""


def sum_of_losses(session: Session, step: int) -> None:
    """Send two losses back at once; autograd starts with the later forward pass."""
    other = 2 * session.loss(step + 50)
    (session.loss(step) + other).backward()
    session.optimizer.step()


def _two_in_turn(session: Session, step: int) -> None:
    session.loss(step).backward()
    (2 * session.loss(step + 50)).backward()
    session.optimizer.step()


def _two_after_both_forwards(session: Session, step: int) -> None:
    one, other = session.loss(step), 2 * session.loss(step + 50)
    one.backward()
    other.backward()
    session.optimizer.step()


def _two_in_a_closure(session: Session, step: int) -> None:
    def closure() -> Tensor:
        one, other = session.loss(step), 2 * session.loss(step + 50)
        one.backward()
        other.backward()
        return one + other

    session.optimizer.step(closure)


def _two_with_another_gradient_between(session: Session, step: int) -> None:
    session.loss(step).backward()
    _functional_gradient(session, step)
    _other_gradient(session, step)
    (2 * session.loss(step + 50)).backward()
    session.optimizer.step()


SUMMED: dict[str, Step] = {
    "two losses in turn": _two_in_turn,
    "two losses after both forward passes": _two_after_both_forwards,
    "two losses in a closure": _two_in_a_closure,
    "two losses with other gradients in between": _two_with_another_gradient_between,
}
"""Steps that must train as one backward pass of the sum does, `sum_of_losses`."""


def halves(session: Session, step: int) -> None:
    """Train in two micro-batches."""
    for rows in (slice(0, EXAMPLES // 2), slice(EXAMPLES // 2, None)):
        (session.loss(step, rows) / 2).backward()
    session.optimizer.step()


def same_forward_twice(session: Session, step: int) -> None:
    """Send the two losses of one forward pass back in turn."""
    output = session.model(session.batch(step))
    output.square().mean().backward(retain_graph=True)
    (2 * output.mean()).backward()
    session.optimizer.step()


def same_forward_once(session: Session, step: int) -> None:
    """Send their sum back."""
    output = session.model(session.batch(step))
    (output.square().mean() + 2 * output.mean()).backward()
    session.optimizer.step()


def hand_set(session: Session, step: int) -> None:
    """Step with gradients that no backward pass has computed."""
    for parameter in session.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
    session.optimizer.step()


def from_autograd_grad(session: Session, step: int) -> None:
    """Step with the gradients of torch.autograd.grad."""
    parameters = [*session.model.parameters()]
    for parameter, gradient in zip(parameters, torch.autograd.grad(session.loss(step), parameters), strict=True):
        parameter.grad = gradient
    session.optimizer.step()


def twice(session: Session, step: int) -> None:
    """Step twice after one backward pass."""
    plain(session, step)
    session.optimizer.step()


def evaluated(session: Session, step: int) -> None:
    """Take the gradients of the training data in evaluation mode, then step in training mode."""
    session.model.eval()
    loss = session.loss(step)
    session.model.train()
    loss.backward()
    session.optimizer.step()


def vectorized(session: Session, step: int) -> None:
    """Run the forward pass under vmap, whose tensors the hooks cannot keep."""
    halves = session.batch(step).unflatten(0, (2, -1))
    vmap(session.model)(halves).square().mean().backward()
    session.optimizer.step()


REFUSED: dict[str, Step] = {
    "a forward pass under vmap": vectorized,
    "gradients set by hand": hand_set,
    "gradients of torch.autograd.grad": from_autograd_grad,
    "two steps after one backward pass": twice,
    "forward passes in evaluation mode, steps in training mode": evaluated,
}
"""Steps that a method must refuse, because nothing was captured."""


def _poisoned(factor: float) -> Step:
    def step_with(session: Session, step: int) -> None:
        (session.loss(step) * factor).backward()
        session.optimizer.step()

    return step_with


def _one_bad_row(value: float) -> Step:
    def step_with(session: Session, step: int) -> None:
        batch = session.batch(step)
        batch[0] = value
        session.model(batch).square().mean().backward()
        session.optimizer.step()

    return step_with


POISONED: dict[str, Step] = {
    "a NaN loss": _poisoned(torch.nan),
    "an infinite loss": _poisoned(torch.inf),
    "a NaN in the data": _one_bad_row(torch.nan),
    "an infinity in the data": _one_bad_row(torch.inf),
}
"""Steps whose gradients are not finite."""

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
EXACTLY = {"rtol": 0, "atol": 0}
Make = Callable[..., Session]
"""Makes a session of a method, with further options of `build`; always the same one."""


def warnings_of(train: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return a result and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train()
    return result, [str(warning.message) for warning in caught]


def check_ignored(make: Make, misuse: str) -> None:
    """One of `IGNORED` trains as `plain` does."""
    weights, warned = warnings_of(lambda: run(make(), IGNORED[misuse]))
    assert_close(weights, run(make(), plain), **EXACTLY)
    assert not any(message.startswith("A step has more backward passes") for message in warned)


def check_summed(make: Make, misuse: str) -> None:
    """One of `SUMMED` trains as the backward pass of the sum does."""
    assert_close(run(make(), SUMMED[misuse]), run(make(), sum_of_losses), **CLOSE)


def check_halves(make: Make, variant: str) -> None:
    """Micro-batches that are not announced count as announced; a method that must know their number warns once."""
    weights, warned = warnings_of(lambda: run(make(), halves))
    warned = [message for message in warned if "more backward passes than accumulation_steps=1" in message]
    assert len(warned) == (variant in NEEDS_THE_NUMBER_OF_MICRO_BATCHES)
    if not warned:
        assert_close(weights, run(make(accumulation_steps=2), halves), **CLOSE)


def check_same_forward(make: Make, variant: str) -> None:
    """Two passes through one forward pass train as that of the sum; methods that reduce rows nonlinearly warn once."""
    weights, warned = warnings_of(lambda: run(make(), same_forward_twice))
    assert len(warned) == (variant in REDUCES_NONLINEARLY)
    assert all(message.startswith("Two backward passes went through one forward pass.") for message in warned)
    if not warned:
        assert_close(weights, run(make(), same_forward_once), **CLOSE)


def check_refused(make: Make, misuse: str) -> None:
    """One of `REFUSED` ends in an error that says what is missing."""
    with pytest.raises(RuntimeError, match=r"has captured no statistics .* layer '0' has a gradient.*model\.eval\(\)"):
        run(make(), REFUSED[misuse])


def check_evaluation(make: Make, base: Session, step: Step) -> None:
    """In evaluation mode the base optimizer trains alone and a warning says so; with a rate at which kl_clip acts."""
    trained = make()
    for one in (trained, base):
        one.optimizer.param_groups[0]["lr"] = 0.9
        one.model.eval()
    weights, warned = warnings_of(lambda: run(trained, step))
    assert len(warned) == 1
    assert "captures nothing in evaluation mode" in warned[0]
    assert_close(weights, run(base, step), **EXACTLY)


def check_not_finite(make: Make, base: Session, misuse: str, caplog: pytest.LogCaptureFixture) -> None:
    """One of `POISONED` leaves the state alone, and the weights to the base optimizer's step from the same ones."""
    trained = make()
    for one in (trained, base):
        one.optimizer.param_groups[0]["momentum"] = 0.0
    start, preconditioner = run(trained, plain), trained.preconditioner
    assert preconditioner is not None
    before = copy.deepcopy(preconditioner.state_dict()["layers"])
    with torch.no_grad():
        for parameter, value in zip(base.model.parameters(), start, strict=True):
            parameter.copy_(value)
    weights, of_base = (run(one, POISONED[misuse], steps=1) for one in (trained, base))
    assert_close(weights, of_base, equal_nan=True, **EXACTLY)
    assert_close(preconditioner.state_dict()["layers"], before, **EXACTLY)
    assert preconditioner.non_finite_layers() == []
    run(trained, POISONED[misuse], steps=2)
    preconditioner.state_dict()
    told = [
        m for m in caplog.messages if "'0', '" in m and "have statistics that are not finite, which are left out" in m
    ]
    assert len(told) == 1


# Modules that look like layers to precondition and are not, with the reasons that ``print`` must give

IMAGES = (6, 4, 1, 1)
NO_LAYER = "is no Linear, Conv1d, Conv2d or Conv3d"


class TupleLinear(nn.Linear):
    """Returns more than its output."""

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs), inputs


class DoubledLinear(nn.Linear):
    """Computes ``2 (W x + b)``."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class DoubledConv2d(nn.Conv2d):
    """Computes with twice its weight."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, 2 * weight, bias)


class Shifted(nn.Module):
    """Holds a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.shift


def _overridden() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.forward = MethodType(lambda self, inputs: 3 * nn.functional.linear(inputs, self.weight), layer)  # type: ignore[method-assign]
    return layer


def _quietly(make: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():  # of functions that torch keeps but discourages, and of empty weights
        warnings.simplefilter("ignore")
        return make()


def _parametrized_bias() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "bias", nn.Tanh())
    return layer


class Odd(NamedTuple):
    """How to make a module, the lines of ``print`` on why it is left out, and how to call it with ``[6, 4]``."""

    make: Callable[[], nn.Module]
    reason: str
    call: Callable[[nn.Module, Tensor], Tensor] = lambda module, inputs: module(inputs)


def _as_image(module: nn.Module, inputs: Tensor) -> Tensor:
    result: Tensor = module(inputs.reshape(IMAGES))
    return result


def _complex(module: nn.Module, inputs: Tensor) -> Tensor:
    result: Tensor = module(torch.complex(inputs, inputs)).abs()
    return result


ODD: dict[str, Odd] = {
    "LSTM": Odd(lambda: nn.LSTM(4, 4), f"odd: LSTM {NO_LAYER}", lambda m, x: m(x)[0]),
    "GRUCell": Odd(lambda: nn.GRUCell(4, 4), f"odd: GRUCell {NO_LAYER}"),
    "parameter": Odd(Shifted, f"odd: Shifted {NO_LAYER}"),
    "Bilinear": Odd(lambda: nn.Bilinear(4, 4, 4), f"odd: Bilinear {NO_LAYER}", lambda m, x: m(x, x)),
    "ConvTranspose2d": Odd(lambda: nn.ConvTranspose2d(4, 4, 1), f"odd: ConvTranspose2d {NO_LAYER}", _as_image),
    "groups": Odd(lambda: nn.Conv2d(4, 4, 1, groups=2), "odd: Conv2d with groups=2 > 1", _as_image),
    "weight_norm": Odd(
        lambda: nn.utils.weight_norm(nn.Linear(4, 4)), "odd: its weight is computed from weight_g and weight_v"
    ),
    "parametrized weight_norm": Odd(
        lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "odd: its weight is computed from other parameters"
    ),
    "spectral_norm": Odd(
        lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), "odd: its weight is computed from weight_orig"
    ),
    "parametrized spectral_norm": Odd(
        lambda: parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)),
        "odd: its weight is computed from other parameters",
        _as_image,
    ),
    "prune": Odd(
        lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5), "odd: its weight is computed from weight_orig"
    ),
    "pruned bias": Odd(
        lambda: prune.l1_unstructured(nn.Linear(4, 4), "bias", 0.5), "odd: its bias is computed from bias_orig"
    ),
    "parametrized bias": Odd(_parametrized_bias, "odd: its bias is computed from other parameters"),
    "attention": Odd(
        lambda: nn.MultiheadAttention(4, 2),
        "odd: MultiheadAttention multiplies by its packed weights itself, without calling a layer; an attention with a "
        "Linear for each of q, k and v is preconditioned\n"
        "  odd.out_proj: MultiheadAttention multiplies by its weight itself, without calling it",
        lambda m, x: m(x, x, x)[0],
    ),
    "complex": Odd(
        lambda: nn.Linear(4, 4, dtype=torch.complex128), "odd: its weight is torch.complex128, not real", _complex
    ),
    "complex convolution": Odd(
        lambda: nn.Conv2d(4, 4, 1, dtype=torch.complex128),
        "odd: its weight is torch.complex128, not real",
        lambda m, x: _complex(m, x.reshape(IMAGES)),
    ),
    "tuple": Odd(
        lambda: TupleLinear(4, 4), "odd: TupleLinear computes its output in a forward of its own", lambda m, x: m(x)[0]
    ),
    "2 W x": Odd(lambda: DoubledLinear(4, 4), "odd: DoubledLinear computes its output in a forward of its own"),
    "2 W x of a convolution": Odd(
        lambda: DoubledConv2d(4, 4, 1), "odd: DoubledConv2d computes its output in a forward of its own", _as_image
    ),
    "forward of an instance": Odd(_overridden, "odd: Linear computes its output in a forward of its own"),
    "no outputs": Odd(lambda: nn.Linear(4, 0), "odd: its weight is empty"),
    "no inputs": Odd(lambda: nn.Linear(0, 4), "odd: its weight is empty", lambda m, x: m(x[:, :0])),
    "no channels": Odd(lambda: nn.Conv2d(0, 4, 1), "odd: its weight is empty", lambda m, x: m.bias * x.mean()),
}


class WithOdd(nn.Module):
    """A model of two plain layers and an odd module between them; forward returns a loss."""

    def __init__(self, odd: Odd, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.odd = _quietly(odd.make)
        self._call = odd.call
        for parameter in self.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for module in self.modules():
            module._buffers = {
                key: value.to(dtype) if value is not None and value.is_floating_point() else value
                for key, value in module._buffers.items()
            }

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        if not any(parameter.is_complex() for parameter in self.odd.parameters()):
            return self.head(hidden).square().mean() + self._call(self.odd, hidden).square().sum()
        return self.head(hidden).square().mean() + self._call(self.odd, hidden.double()).square().sum().to(hidden.dtype)
