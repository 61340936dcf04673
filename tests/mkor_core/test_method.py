"""The base class's defaults. Truth: rows averaged and joined by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, Eva
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.capture.statistics import MEAN, ROWS, Captured, LayerShape, Rows, Statistic, join_rows
from mkor_core.maths.products import Gradient
from mkor_core.method import Distributed, FollowsLoss, InPlaceMethod, Known, LayerState, put


def test_the_rows_of_all_calls_are_joined_with_a_convolutions_averaged_over_its_locations():
    generator = torch.Generator().manual_seed(0)
    x, g = torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)
    joined = join_rows([Rows(x, g, 3), Rows(x, g, 1)])
    for rows, original in ((joined.x, x), (joined.g, g)):
        averaged = torch.stack([original[:3].mean(0), original[3:].mean(0)])
        assert_close(rows, torch.cat([averaged, original]))
    assert joined.number == 8


def test_ranks_join_rows_unless_a_statistic_says_what_they_add_up():
    def ones(rows: list[Rows], step: int) -> Captured:
        return Captured(torch.ones(2), torch.ones(3), torch.tensor(float(step)))

    joined, summed = ROWS.gathered(ones), ROWS.summed(ones, lambda shape: ((shape.d_out,), (shape.d_in,)))
    assert [one.gathers_rows for one in (ROWS, joined, summed, MEAN)] == [True, True, False, False]
    assert [one.condense for one in (ROWS, joined, summed)] == [None, ones, ones]
    assert summed.sum_shapes(LayerShape(2, 3)) == ((2,), (3,))


@pytest.mark.parametrize("shapes", [None, lambda shape: ((1,), (1,))])
def test_only_rows_are_condensed(shapes):
    with pytest.raises(ValueError, match="condense and shapes are for rows"):
        Statistic("moment", condense=lambda rows, step: join_rows(rows), shapes=shapes)


@dataclass(frozen=True, kw_only=True)
class Doubling(Method):
    """V = 2 D: a method that defines nothing but what it must."""

    @property
    def statistic(self) -> Statistic:
        return MEAN

    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {"mean": torch.zeros(*leading, shape.d_out, dtype=dtype, device=device)}

    def accumulates(self, step: int) -> bool:
        return True

    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        put(state, accept, mean=captured.g / captured.number)

    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        return 2 * grad


def test_a_method_of_abstract_methods_alone_works_on_the_mean_loss_to_the_end():
    """Its updates are used as they are, its gradient rows are those of the global mean loss, and no loss ends it.

    A layer without statistics, here the second, whose gradient is set by hand, keeps its state.
    """
    model = nn.ModuleList([nn.Linear(3, 2, bias=False), nn.Linear(1, 1)])
    preconditioner = Preconditioner(model, Doubling())
    for step in range(3):
        model.zero_grad()
        (model[0](torch.full((4, 3), 1.0 + step)) ** 2).mean().backward()
        for parameter in model[1].parameters():
            parameter.grad = torch.ones_like(parameter)
        grad = model[0].weight.grad.clone()
        preconditioner.observe(1.0)
        preconditioner.step()
        assert_close(model[0].weight.grad, 2 * grad)
    states = preconditioner.state_dict()["layers"]
    assert [bool(state["mean"].any()) for state in states.values()] == [True, False]
    assert preconditioner.switch_step is None
    method = Doubling()
    assert not method.statistic.gathers_rows
    assert not method.statistic.of_rank
    assert not isinstance(method, FollowsLoss | Distributed)
    assert not method.refreshes(0)
    assert method.clip is None
    assert method.has_statistics({}) is True
    assert method.one_sided({}, torch.ones(2, 3)) == {}
    assert method.start_weight({}) is None


@dataclass(frozen=True, kw_only=True)
class Refreshing(Doubling):
    """It refreshes every other step."""

    def initial_state(self, *arguments: Any, **keywords: Any) -> LayerState:
        return super().initial_state(*arguments, **keywords) | {"refreshed": torch.tensor(0)}

    def refreshes(self, step: int) -> bool:
        return step % 2 == 0

    def refresh(self, state: LayerState, step: int, accept: Tensor | None = None) -> None:
        put(state, accept, refreshed=state["refreshed"] + 1)


def test_a_refresh_that_is_due_is_that_of_all_layers_alike():
    """Whether or not they have statistics in its step: what it computes depends on the state alone."""
    model = nn.ModuleList([nn.Linear(3, 2, bias=False), nn.Linear(1, 1)])
    preconditioner = Preconditioner(model, Refreshing())
    for _ in range(4):
        model[0](torch.ones(4, 3)).square().mean().backward()
        preconditioner.step()
    assert [int(state["refreshed"]) for state in preconditioner.state_dict()["layers"].values()] == [2, 2]


@pytest.mark.parametrize(
    ("method", "shapes"),
    [
        (Eva(), ((13,), (4,))),
        (MKOR(), ((13,), (4,))),
        (KAISA(), ((13, 13), (4, 4))),
        (MKOR(rank=2), ((13, 10), (4, 4))),
    ],
    ids=str,
)
def test_ranks_add_up_vectors_moments_or_sketches(method, shapes):
    """The sides are 13 and 4; rank 2 needs sketches of 10 columns, but of no more than the side has."""
    assert method.statistic.sum_shapes(LayerShape(4, 13)) == shapes


@dataclass(frozen=True, kw_only=True)
class Counting(InPlaceMethod):
    """V = D times the number of steps: an in-place method that defines nothing but what it must."""

    @property
    def statistic(self) -> Statistic:
        return MEAN

    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {"steps": torch.zeros(leading, dtype=dtype, device=device)}

    def accumulates(self, step: int) -> bool:
        return True

    def accumulate(self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None) -> None:
        state["steps"].add_(1 if accept is None else accept)

    def apply(self, state: LayerState, grad: Gradient, known: Known) -> None:
        grad.multiply_(state["steps"])


@dataclass(frozen=True, kw_only=True)
class Clipped(Counting):
    """It has a clip, but not what that needs."""

    @property
    def clip(self) -> float | None:
        return 1e-3


def test_an_in_place_method_of_abstract_methods_alone_works():
    model = nn.Linear(3, 2)
    preconditioner = Preconditioner(model, Counting())
    for step in range(3):
        model.zero_grad()
        model(torch.full((4, 3), 1.0)).square().mean().backward()
        grad = model.weight.grad.clone()
        preconditioner.step()
        assert_close(model.weight.grad, (step + 1) * grad)
    assert not Counting().works_on_blocks
    assert not Counting().keeps_norm


def test_an_in_place_method_with_a_clip_must_define_what_it_clips():
    model = nn.Linear(3, 2)
    preconditioner = Preconditioner(model, Clipped(), lr=0.1)
    model(torch.ones(4, 3)).square().mean().backward()
    with pytest.raises(NotImplementedError, match="Clipped has a clip, so it must define propose"):
        preconditioner.step()
