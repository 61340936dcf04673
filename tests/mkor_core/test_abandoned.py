"""Passes that a loop gives up, whose gradients it clears before it begins the step anew. Truth: it without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mkor_core import MKOR, Preconditioner
from mkor_core.capture.autograd import Passes
from mkor_core.capture.layer import Layer
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.statistics import MEAN, MOMENT, ROWS, Statistic
from mkor_core.capture.sums import Capture
from tests.support.misuses import OF_EACH_STATISTIC, VARIANTS, Session

WITH_HOOKS = ("adafisher", "dp_kfac", "kld_wrm", "singd")
"""Optimizers that capture rows without a preconditioner; of the others, none knows of a pass that is given up."""
EXAMPLES = 10
"""Of a micro-batch. Eva takes 16 of a step: all of the first micro-batch, and some of the second."""


class GivenUp(NamedTuple):
    """How a step is given up, and how its gradients and those of the step before are cleared."""

    where: str
    """``layer``: the backward pass of the last layer, which has no gradient yet when the hooks have its statistics."""
    after: int
    """Whole micro-batches before."""
    starts_with_none: bool
    clears_to_none: bool


def ways_to_give_up(micro_batches: int) -> list[GivenUp]:
    where = ("forward", "layer", "backward", "after")
    return [GivenUp(*way) for way in product(where, range(micro_batches), (True, False), (True, False))]


def fail(*_: Any) -> None:
    raise MemoryError


def fail_in_backward(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    output.register_hook(fail)


FAILURES: dict[str, tuple[int, Callable[..., None]]] = {
    "forward": (1, fail),
    "layer": (2, fail_in_backward),
    "backward": (1, fail_in_backward),
}
"""Places in the model, and forward hooks there."""


def begin(session: Session, seed: int) -> Tensor:
    """Run a micro-batch forward, and return its loss."""
    generator = torch.Generator().manual_seed(seed)
    loss = (session.model(torch.randn(EXAMPLES, 4, dtype=torch.float64, generator=generator)) - 0.1).square().mean()
    if session.preconditioner is not None:
        session.preconditioner.observe(loss)
    return loss


def give_up(session: Session, seed: int, way: GivenUp) -> None:
    """Run the passes of a step that is given up; its gradients are left to the caller."""
    for part in range(way.after):
        begin(session, seed + part).backward()
    if way.where not in FAILURES:
        begin(session, seed + way.after).backward()
        return
    place, hook = FAILURES[way.where]
    handle = session.model[place].register_forward_hook(hook)
    with suppress(MemoryError):
        begin(session, seed + way.after).backward()
    handle.remove()


def take(session: Session, seed: int, micro_batches: int, clear: Callable[[], None] = lambda: None) -> list[Tensor]:
    """Take a whole step and return the weights; clear: called after the first forward pass."""
    for part in range(micro_batches):
        loss = begin(session, seed + part) / micro_batches
        if part == 0:
            clear()
        loss.backward()
    session.optimizer.step()
    return session.weights()


@pytest.mark.parametrize(
    ("name", "micro_batches"), [*((name, 3) for name in (*OF_EACH_STATISTIC, "mkor released", *WITH_HOOKS)), ("eva", 2)]
)
@pytest.mark.filterwarnings("error:A step has more backward passes")
def test_a_step_that_is_begun_anew_trains_as_if_it_had_never_been_begun(name, micro_batches):
    setting = VARIANTS.get(name, (name, {}))
    trained, alone = (Session(*setting, accumulation_steps=micro_batches) for _ in range(2))
    for step, way in enumerate(ways_to_give_up(micro_batches)):
        for session in (trained, alone):
            session.optimizer.zero_grad(set_to_none=way.starts_with_none)
        give_up(trained, 100 * step + 50, way)
        trained.optimizer.zero_grad(set_to_none=way.clears_to_none)
        weights = [take(session, 100 * step, micro_batches) for session in (trained, alone)]
        assert_close(*weights, rtol=0, atol=1e-12, msg=lambda text, way=way: f"{way}: {text}")


@pytest.mark.parametrize("name", ["mkor released", *(name for name in OF_EACH_STATISTIC if name != "eva")])
def test_gradients_may_be_cleared_when_the_next_forward_pass_has_run(name):
    """Except in Eva, whose means of inputs are of the examples that the forward pass has chosen."""
    trained, alone = (Session(*VARIANTS[name], accumulation_steps=2) for _ in range(2))
    for step, way in enumerate(ways_to_give_up(2)):
        for session in (trained, alone):
            session.optimizer.zero_grad(set_to_none=way.starts_with_none)
        give_up(trained, 100 * step + 50, way)
        weights = [
            take(trained, 100 * step, 2, lambda way=way: trained.optimizer.zero_grad(set_to_none=way.clears_to_none)),
            take(alone, 100 * step, 2),
        ]
        assert_close(*weights, rtol=0, atol=1e-12, msg=lambda text, way=way: f"{way}: {text}")


def linear(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(n, m, dtype=torch.float64) for n, m in pairwise(sizes)))


def rows(number: int) -> Tensor:
    return torch.randn(number, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def capture(model: nn.Module, statistic: Statistic, **options: Any) -> Capture | RowCapture:
    layers = {name: Layer(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return RowCapture(layers, **options) if statistic == ROWS else Capture(layers, statistic, **options)


def numbers(hooks: Capture | RowCapture) -> list[float]:
    """Return of how many rows the statistics are, by layer; of moments, of how many micro-batches."""
    if isinstance(hooks, RowCapture):
        return [sum(len(part.x) for part in parts) for _, parts in sorted(hooks.take_rows().items())]
    return [float(sums.number) for _, sums in sorted(hooks.take().items())]


@pytest.mark.parametrize("statistic", [MEAN, MOMENT, ROWS], ids=lambda statistic: statistic.kind)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_zero_have_not_been_cleared(statistic, set_to_none):
    """The first loss is 0 times the outputs, then the last layer is dead; gradients start as None or as zeros."""
    model = linear(4, 3, 2)
    hooks = capture(model, statistic, micro_batches=3)
    for _ in range(2):
        model.zero_grad(set_to_none=set_to_none)
        (0 * model(rows(5))).sum().backward()
        torch.relu(model(rows(6)) - 1e9).sum().backward()
        model(rows(7)).sum().backward()
        assert numbers(hooks) == ([3, 3] if statistic == MOMENT else [18, 18])


@pytest.mark.parametrize("statistic", [MEAN, MOMENT, ROWS], ids=lambda statistic: statistic.kind)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_layer_whose_gradient_alone_is_cleared_is_forgotten_alone(statistic, set_to_none):
    """As by the ``zero_grad`` of an optimizer that steps the last layer only."""
    model = linear(4, 3, 2)
    hooks = capture(model, statistic, micro_batches=2)
    for number in (5, 6):
        model[1].zero_grad(set_to_none=set_to_none)
        model(rows(number)).sum().backward()
    assert numbers(hooks) == ([2, 1] if statistic == MOMENT else [11, 6])


def test_an_optimizer_of_some_layers_clears_what_counts_for_them():
    """Truth: the step without the one that is given up."""
    states = []
    for begins in (True, False):
        model = linear(4, 3, 2)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        preconditioner = Preconditioner(model, MKOR(inverse_update_period=1)).attach(optimizer)
        if begins:
            model(rows(5)).square().sum().backward()
            optimizer.zero_grad(set_to_none=False)
        model(rows(6)).square().sum().backward()
        optimizer.step()
        states.append(preconditioner.state_dict()["layers"]["1"])
    assert_close(states[0], states[1], rtol=0, atol=0)


def test_a_gradient_that_takes_the_place_of_a_cleared_one_in_memory_is_another():
    model = linear(4, 3)
    hooks = capture(model, MEAN, micro_batches=2)
    weight = model[0].weight
    model(rows(5)).sum().backward()
    place, weight.grad = id(weight.grad), None
    others: list[Tensor] = []
    while id(zeros := torch.zeros_like(weight)) != place and len(others) < 1000:
        others.append(zeros)
    weight.grad = zeros
    model(rows(6)).sum().backward()
    assert numbers(hooks) == [6]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_backward_pass_is_tried_again_without_another_forward_pass(set_to_none):
    model = linear(4, 3, 2)
    hooks = RowCapture({name: Layer(name, layer) for name, layer in model.named_children()}, micro_batches=2)
    hidden = torch.tanh(model[0](rows(5)))
    handle = hidden.register_hook(fail)
    loss = model[1](hidden).sum()
    with pytest.raises(MemoryError):
        loss.backward(retain_graph=True)
    handle.remove()
    assert hooks.reached == {"1"}
    model.zero_grad(set_to_none=set_to_none)
    loss.backward()
    (last,) = hooks.take_rows()["1"]
    assert_close(last.g, torch.ones_like(last.g))


@pytest.mark.parametrize("micro_batches", [2, 3])
def test_as_many_examples_as_ever_are_taken_if_gradients_are_cleared_when_a_forward_pass_has_run(micro_batches):
    """The forward pass counts on from those that are forgotten; the micro-batches after the last are the first."""
    model = linear(4, 3)
    hooks = capture(model, replace(MEAN, examples=5), micro_batches=micro_batches)
    model(rows(4)).sum().backward()
    loss = model(rows(4)).sum()
    model.zero_grad(set_to_none=False)
    loss.backward()
    for _ in range(micro_batches - 1):
        model(rows(4)).sum().backward()
    assert numbers(hooks) == [5]


def test_a_gradient_of_which_a_rank_holds_no_entries_does_not_tell():
    """It stands for a DTensor's."""
    weights = {"empty": nn.Parameter(torch.ones(0)), "other": nn.Parameter(torch.ones(2))}
    for weight in weights.values():
        weight.grad = torch.zeros_like(weight)

    def cleared(names: Sequence[str]) -> set[str]:
        return Passes(lambda: {name: weights[name] for name in names}).cleared()

    assert cleared(["empty"]) == set()
    assert cleared(["empty", "other"]) == {"empty", "other"}
    weights["empty"].grad = None
    assert cleared(["empty"]) == {"empty"}
