"""What users do wrong with the library, or do that its hooks must see through; by the outcome that is due.

Every entry is a step of training, which ends with ``session.optimizer.step()``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from baselines import available, build, method_class
from tests.support.hyperparameters import options

SECOND_ORDER = [name for name in available() if method_class(name) is not None]
PERIODS = {"inverse_update_period": 1, "factor_update_period": 1, "update_period": 1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in SECOND_ORDER} | {
    "mkor released": ("mkor", {"update_rule": "released"}),
    "mkor published": ("mkor", {"update_rule": "published"}),
    "mkor rank 2": ("mkor", {"rank": 2}),
    "mkor window": ("mkor", {"window": 3}),
    "mkor not rescaled": ("mkor", {"rescale": False}),
    "kaisa inverse": ("kaisa", {"compute_method": "inverse"}),
    "kaisa not clipped": ("kaisa", {"kl_clip": None}),
    "eva not clipped": ("eva", {"kl_clip": None}),
    "hylo KID": ("hylo", {"variant": "KID"}),
    "hylo clipped": ("hylo", {"kl_clip": 1e-3}),
}
"""Every method, and the settings that take another path through it: an optimizer's name and hyperparameters."""
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


def _split(session: Session) -> tuple[slice, slice]:
    return slice(0, EXAMPLES // 2), slice(EXAMPLES // 2, None)


def halves(session: Session, step: int) -> None:
    """Train in two micro-batches."""
    for rows in _split(session):
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
