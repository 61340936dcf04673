"""The contract of a method: how much it asks of one, and what every method in the repository keeps of it."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import available, method_class
from mkor_core import Method, Preconditioner
from mkor_core.capture.statistics import Captured
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.method import HostAssisted, LayerState, put
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
                    if next(calls) == failing:
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
