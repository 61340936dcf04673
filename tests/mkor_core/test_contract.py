"""The contract of a method: its defaults, what it asks of one, and what every method in the repository keeps of it."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, Eva, available, method_class
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.capture.statistics import MEAN, ROWS, Captured, LayerShape, Rows, Statistic, join_rows
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.maths.products import Gradient
from mkor_core.method import Distributed, FollowsLoss, HostAssisted, InPlaceMethod, Known, LayerState, put
from workflow.bench.support.config import ROOT

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in available() if method_class(name) is not None},
    "mkor released": ("mkor", {"update_rule": "released"}),
    "mkor published": ("mkor", {"update_rule": "published"}),
    "mkor window": ("mkor", {"window": 4}),
    "mkor norm": ("mkor", {"gradient_norm": 3.0}),
    "mkor rank 2": ("mkor", {"rank": 2}),
    "mkor bfloat16": ("mkor", {"factor_dtype": torch.bfloat16}),
    "kaisa inverse": ("kaisa", {"compute_method": "inverse"}),
    "hylo KID": ("hylo", {"variant": "KID"}),
}
PERIODS = {"inverse_update_period", "factor_update_period", "update_period"}
DECOMPOSITIONS = ("cholesky", "eigh", "eigvalsh", "inv", "pinv", "qr", "solve", "svd")
DECOMPOSED = {
    "b_kfac": 2,
    "hylo KID": 3,
    "kaisa": 2,
    "mkor rank 2": 4,
    "rs_kfac": 10,
    "thermo_kfac": 2,
    "mkor window": 2,  # a window of 4 is full for each side before the fifth update
}
"""Decompositions of a layer, or a stack, in a step; none of the other variants."""


def test_a_method_has_few_members_and_eva_few_lines():
    assert len([name for name in dir(Method) if not name.startswith("_")]) <= 12
    assert len((ROOT / "baselines" / "natural" / "eva.py").read_text().splitlines()) <= 90


@given(
    leading=st.sampled_from([(), (3,), (2, 2)]),
    shape=st.sampled_from([(), (1,), (2, 3)]),
    dtypes=st.sampled_from([(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]),
    data=st.data(),
)
def test_put_changes_the_accepted_layers_alone_and_their_memory_in_place(leading, shape, dtypes, data):
    """What is not accepted stays to the last bit, whatever is in the new value; a value of another dtype is rounded."""
    stored, given_dtype = dtypes
    old = torch.randn((*leading, *shape)).to(stored)
    new = torch.randn((*leading, *shape)).to(given_dtype)
    layers = torch.Size(leading).numel()
    accept = torch.tensor(data.draw(st.lists(st.booleans(), min_size=layers, max_size=layers))).view(leading)
    new[~accept] = torch.nan
    state, other = {"a": old.clone(), "b": old.clone()}, old.clone()
    pointer = state["a"].data_ptr()
    put(state, accept, a=new)
    assert state["a"].data_ptr() == pointer
    assert state["a"].dtype == stored
    assert_close(state["b"], other, rtol=0, atol=0)
    assert torch.equal(state["a"][accept], new[accept].to(stored))
    assert torch.equal(state["a"][~accept], old[~accept])
    put(state, None, b=new)
    assert_close(state["b"], new.to(stored), rtol=0, atol=0, equal_nan=True)


def test_one_mask_holds_for_all_layers_of_a_stack():
    """As that of a step which the optimizer skips."""
    state = {"a": torch.zeros(2, 3)}
    put(state, torch.tensor(False), a=torch.ones(2, 3))
    assert not state["a"].any()
    put(state, torch.tensor(True), a=torch.ones(2, 3))
    assert state["a"].all()


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("accept", [None, torch.tensor(True), torch.tensor(False)], ids=str)
def test_a_change_that_is_not_accepted_is_none_also_if_it_changes_the_number_of_rows(rows, accept):
    before, new = torch.eye(3), torch.ones(rows, 3)
    state = {"right": before.clone()}
    put(state, accept, right=new)
    assert_close(state["right"], before if accept is not None and not accept else new, rtol=0, atol=0)


def test_a_decomposition_that_fails_is_reported_with_its_layer(caplog):
    def fail() -> None:
        raise torch.linalg.LinAlgError  # type: ignore[attr-defined]

    Diagnostics("MKOR").guard("one", fail)
    (record,) = caplog.records
    assert record.getMessage() == "MKOR: layers 'one' keep what they had, because a decomposition failed."


class Step(NamedTuple):
    """What a method gets for a layer, or a stack, in a step."""

    state: LayerState
    captured: Captured
    step: int


def next_steps(name: str) -> tuple[Method, list[Step]]:
    """Return a method that works in every step, and what it gets in the fifth step of a training."""
    file, options = VARIANTS[name]
    cls = method_class(file)
    assert cls is not None
    periods = dict.fromkeys(PERIODS & {field.name for field in fields(cls)}, 1)
    method, accumulate, found = cls(**periods, **options), cls.accumulate, list[Step]()
    make_room = getattr(cls, "make_room", None)
    before: dict[int, LayerState] = {}

    def keep_and_make_room(self: Any, state: LayerState, *others: Any) -> None:
        before[id(state)] = copy.deepcopy(state)
        assert make_room is not None
        make_room(self, state, *others)

    def record(self: Method, state: LayerState, captured: Captured, step: int, *others: Any) -> Tensor | None:
        if step == 4:
            found.append(Step(before.get(id(state)) or copy.deepcopy(state), captured, step))
        return accumulate(self, state, captured, step, *others)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    preconditioner = Preconditioner(model, method, lr=0.1)
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(cls, "accumulate", record))
        if make_room is not None:
            patches.enter_context(mock.patch.object(cls, "make_room", keep_and_make_room))
        for _ in range(5):
            model.zero_grad()
            (model(torch.randn(6, 5, dtype=torch.float64)) - 1).square().mean().backward()
            preconditioner.observe(1.0)
            preconditioner.step()
    assert found
    return method, found


def work(method: Method, step: Step, accept: Tensor | None) -> LayerState:
    """Do a step's work on a copy of its state, which is returned."""
    state = copy.deepcopy(step.state)
    if isinstance(method, HostAssisted):
        method.make_room(state, step.step, accept)
    method.accumulate(state, step.captured, step.step, accept)
    method.refresh(state, step.step, accept)
    return state


@pytest.mark.parametrize("name", VARIANTS)
def test_layers_that_are_not_accepted_keep_their_state_to_the_last_bit(name):
    """As in a step that a fused optimizer skips, of which the statistics need not be finite."""
    method, steps = next_steps(name)
    for step in steps:
        none = torch.zeros_like(step.captured.number, dtype=torch.bool)
        changed, masked = work(method, step, None), work(method, step, ~none)
        assert any(not torch.equal(changed[key], step.state[key]) for key in changed)
        assert_close(masked, changed, rtol=1e-13, atol=1e-15)
        for bad in (1.0, torch.nan, torch.inf):
            x, g, number, norm = step.captured
            given = step._replace(captured=Captured(x * bad, g * bad, number, norm))
            try:
                left = work(method, given, none)
            except torch.linalg.LinAlgError:
                continue
            assert_close(left, step.state, rtol=0, atol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_decomposition_that_fails_leaves_a_state_as_it_was(name):
    """Whichever of a layer's decompositions it is."""
    method, steps = next_steps(name)
    failures = 0
    for step in steps:
        for part in ("accumulate", "refresh"):
            for failing in range(20):
                state, calls = copy.deepcopy(step.state), iter(range(1000))

                def fail(*_: Any, calls: Any = calls, failing: int = failing, own: Any, **options: Any) -> Any:
                    if next(calls) in (failing, failing + 1):  # a second try in float64, too
                        raise torch.linalg.LinAlgError  # type: ignore[attr-defined]
                    return own(*_, **options)

                with ExitStack() as patches:
                    for function in DECOMPOSITIONS:
                        own = getattr(torch.linalg, function)
                        patches.enter_context(mock.patch.object(torch.linalg, function, partial(fail, own=own)))
                    try:
                        if part == "accumulate":
                            if isinstance(method, HostAssisted):
                                method.make_room(state, step.step)
                            method.accumulate(state, step.captured, step.step)
                        else:
                            method.refresh(state, step.step)
                    except torch.linalg.LinAlgError:
                        failures += 1
                        assert_close(state, step.state, rtol=0, atol=0)
                    else:
                        break
    assert failures == DECOMPOSED.get(name, 0) * len(steps)


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
