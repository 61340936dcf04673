"""The base class's defaults. Truth: rows averaged and joined by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.capture.statistics import MEAN, ROWS, Captured, LayerShape, Rows, Statistic
from mkor_core.maths.products import Gradient
from mkor_core.method import LayerState, StackedMethod


def test_the_rows_of_all_calls_are_joined_with_a_convolutions_averaged_over_its_locations():
    generator = torch.Generator().manual_seed(0)
    x, g = torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)
    joined = HyLo().condense([Rows(x, g, 3), Rows(x, g, 1)], step=0)
    for rows, original in ((joined.x, x), (joined.g, g)):
        averaged = torch.stack([original[:3].mean(0), original[3:].mean(0)])
        assert_close(rows, torch.cat([averaged, original]))
    assert joined.number == 8


@dataclass(frozen=True, kw_only=True)
class Undecided(HyLo):
    """A method on rows that neither gathers them nor gives the shapes of sums."""

    gathers_rows = False

    @property
    def statistic(self) -> Statistic:
        return ROWS


def test_a_method_on_rows_must_choose_what_ranks_exchange():
    with pytest.raises(NotImplementedError, match="Undecided reduces rows: set gathers_rows = True, or define"):
        Undecided().sum_shapes(LayerShape(2, 3))


@dataclass(frozen=True, kw_only=True)
class Doubling(Method):
    """V = 2 D: a method that defines nothing but what it must."""

    @property
    def statistic(self) -> Statistic:
        return MEAN

    def initial_state(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> LayerState:
        return {"mean": torch.zeros(shape.d_out, dtype=dtype, device=device), "refreshed": torch.tensor(0)}

    def accumulates(self, step: int) -> bool:
        return True

    def refreshes(self, step: int) -> bool:
        return True

    def accumulate(self, state: LayerState, captured: Captured, step: int) -> None:
        state["mean"] = captured.g / captured.number

    def refresh(self, state: LayerState, step: int) -> None:
        state["refreshed"] = state["refreshed"] + 1

    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        return 2 * grad


def test_a_method_of_abstract_methods_alone_works_on_the_mean_loss_to_the_end():
    """Its updates are used as they are, its gradient rows are those of the global mean loss, and no loss ends it.

    A layer without statistics, here the second, whose gradient is set by hand, is not refreshed.
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
    assert [int(state["refreshed"]) for state in preconditioner.state_dict()["layers"].values()] == [3, 0]
    assert preconditioner.switch_step is None
    assert not Doubling().gathers_rows
    assert not Doubling().follows_loss
    assert not Doubling().rank_rows
    assert Doubling().worker_fraction == 1
    assert Doubling().refreshed == ()
    assert not Doubling().needs_lr
    assert not Doubling().loss_is_due(10**6)
    assert not Doubling().is_over([(1, 1.0)] * 50, 50)


@pytest.mark.parametrize(
    "method", [Eva(kl_clip=None), KAISA(kl_clip=None), MKOR(), MKOR(window=2), MKOR(rank=2)], ids=str
)
def test_ranks_add_up_sums_of_the_shapes_that_are_accumulated(method, monkeypatch):
    """The sides are 13 and 4; rank 2 needs sketches of 10 columns, but of no more than the side has."""
    accumulated = []
    own = type(method).accumulate
    monkeypatch.setattr(
        type(method),
        "accumulate",
        lambda self, state, captured, *a, **k: (accumulated.append(captured), own(self, state, captured, *a, **k)),
    )
    model = nn.Sequential(nn.Linear(12, 4))
    preconditioner = Preconditioner(model, method)
    model(torch.randn(20, 12)).square().mean().backward()
    preconditioner.step()
    (captured,) = accumulated
    stacked = isinstance(method, StackedMethod) and not method.decomposes
    shapes = [part.shape[1:] if stacked else part.shape for part in (captured.x, captured.g)]
    assert method.sum_shapes(LayerShape(4, 13)) == tuple(shapes)
    assert shapes[0] == {1: (13,), 2: (13, 10)}.get(getattr(method, "rank", 0), shapes[0])


@dataclass(frozen=True, kw_only=True)
class Counting(StackedMethod):
    """V = D times the number of refreshes: a stacked method that defines nothing but what it must."""

    @property
    def statistic(self) -> Statistic:
        return MEAN

    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        return {"refreshed": torch.zeros(leading, dtype=dtype, device=device)}

    def accumulates(self, step: int) -> bool:
        return True

    def refreshes(self, step: int) -> bool:
        return True

    def accumulate(self, state: LayerState, *_: object) -> None:
        pass

    def refresh(self, state: LayerState, *_: object) -> None:
        state["refreshed"].add_(1)

    def apply(self, state: LayerState, grad: Gradient, *_: object) -> None:
        grad.multiply_(state["refreshed"])


@dataclass(frozen=True, kw_only=True)
class Clipped(Counting):
    """It has a clip, but not what that needs."""

    @property
    def clip(self) -> float | None:
        return 1e-3


def test_a_stacked_method_of_abstract_methods_alone_works():
    model = nn.Linear(3, 2)
    preconditioner = Preconditioner(model, Counting())
    for step in range(3):
        model.zero_grad()
        model(torch.full((4, 3), 1.0)).square().mean().backward()
        grad = model.weight.grad.clone()
        preconditioner.step()
        assert_close(model.weight.grad, (step + 1) * grad)
    assert not Counting().decomposes
    assert not Counting().needs_gradient_norms


def test_a_stacked_method_with_a_clip_must_define_what_it_clips():
    model = nn.Linear(3, 2)
    preconditioner = Preconditioner(model, Clipped(), lr=0.1)
    model(torch.ones(4, 3)).square().mean().backward()
    with pytest.raises(NotImplementedError, match="Clipped has a clip, so it must define prepare"):
        preconditioner.step()


def test_a_methods_refresh_costs_the_entries_of_its_factors_by_default():
    assert Doubling().refresh_cost(LayerShape(3, 5)) == 3 * 3 + 5 * 5
