"""States that cannot be right. Truth: the preconditioner's own state before, which a refusal leaves as it is."""

from __future__ import annotations

import copy
import logging
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, MKORH, Method, Preconditioner
from mkor_core.method import plain_hyperparameters

State = dict[str, Any]


def made(method: Method, seed: int = 0) -> Preconditioner:
    """Return a preconditioner that has taken a step; with another seed, another model's."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    preconditioner = Preconditioner(model, method, lr=0.1)
    model(torch.randn(5, 3)).square().mean().backward()
    preconditioner.observe(1.0)
    preconditioner.step()
    return preconditioner


def put(value: object, *path: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


def without(key: str) -> Callable[[State], None]:
    return lambda state: state.pop(key)


def cast(dtype: torch.dtype) -> Callable[[State], None]:
    return lambda state: state["layers"]["2"].update(right=state["layers"]["2"]["right"].to(dtype))


STEP = "step is {}: it must be an integer of at least 0"
WRONG: dict[str, tuple[Callable[[State], None], str]] = {
    "a negative step": (put(-5, "step"), STEP.format("-5")),
    "half a step": (put(2.5, "step"), STEP.format("2.5")),
    "a step of NaN": (put(math.nan, "step"), STEP.format("nan")),
    "a step of True": (put(True, "step"), STEP.format("True")),
    "a tensor as step": (put(torch.tensor(3), "step"), STEP.format("a value of type Tensor")),
    "a step of a thousand digits": (put(10**1000, "step"), STEP.format("a value of type int")),
    "a step that is None": (put(None, "step"), STEP.format("None")),
    "a negative switch": (put(-1, "switch_step"), "switch_step is -1: it must be an integer of at least 0"),
    "a switch at text": (put("no", "switch_step"), "switch_step is 'no': it must be"),
    **{f"no {key}": (without(key), f"has no entry '{key}'") for key in ("method", "step", "switch_step", "layers")},
    "an unknown entry": (put(1, "mood"), "has an unknown entry 'mood'"),
    "a method that is no text": (put(["MKOR"], "method"), "was saved by a value of type list, but"),
    "hyperparameters in a list": (put([], "hyperparameters"), "hyperparameters are no mapping, but a value of type"),
    "a window that is a tensor": (put(torch.ones(2), "hyperparameters", "window"), "window=a value of type Tensor"),
    "losses": (put({"history": [], "sum": 0.0, "steps": 0}, "losses"), "losses are not None, as a MKOR has them"),
    "layers that are none": (put(None, "layers"), "layers are no mapping, but None"),
    "a layer that is a number": (put(3, "layers", "2"), "layer '2' is not a mapping"),
    "a factor that is a number": (put(3.0, "layers", "2", "left"), "'left' of layer '2' is no dense tensor, but 3.0"),
    **{
        f"a factor {shape}": (
            put(torch.ones(shape), "layers", "2", "left"),
            f"Tensor 'left' of layer '2' has shape {shape}, not (2, 2)",
        )
        for shape in ((5, 5), (2,), (2, 2, 1))
    },
    "a sparse factor": (put(torch.eye(2).to_sparse(), "layers", "2", "left"), "'left' of layer '2' is no dense tensor"),
    "an integer factor": (cast(torch.int64), "'right' of layer '2' has dtype torch.int64, which is no form of"),
    "a complex factor": (cast(torch.complex64), "'right' of layer '2' has dtype torch.complex64"),
    "a fractional count": (put(torch.tensor(1.5), "layers", "2", "updates"), "'updates' of layer '2' has dtype"),
    "a layer that the model lacks": (put({}, "layers", "7"), "a layer '7' that this Preconditioner"),
}


def refused(loader: Preconditioner, state: Any, message: str) -> None:
    before = copy.deepcopy(loader.state_dict())
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        loader.load_state_dict(state)
    assert "\n" not in str(caught.value)
    assert_close(loader.state_dict()["layers"], before["layers"], rtol=0, atol=0)
    assert {**loader.state_dict(), "layers": None} == {**before, "layers": None}


@pytest.mark.parametrize("what", WRONG)
def test_a_state_that_cannot_be_right_is_refused_in_a_line_and_changes_nothing(what: str):
    damage, message = WRONG[what]
    state = copy.deepcopy(made(MKOR(), seed=1).state_dict())
    damage(state)
    refused(made(MKOR()), state, message)


def test_what_is_no_mapping_is_refused():
    refused(made(MKOR()), [1, 2], "The saved state is no mapping, but a value of type list.")


@pytest.mark.parametrize(
    "losses",
    [
        None,
        {},
        {"history": [], "sum": 0.0, "steps": -1},
        {"history": [], "sum": "0", "steps": 0},
        {"history": [(1,)], "sum": 0.0, "steps": 0},
        {"history": [(1, "2.0")], "sum": 0.0, "steps": 0},
        {"history": 3, "sum": 0.0, "steps": 0},
    ],
    ids=str,
)
def test_losses_that_are_no_history_are_refused(losses: object):
    state = {**made(MKORH(), seed=1).state_dict(), "losses": losses}
    refused(made(MKORH()), state, "losses are not the history of a loss, as a MKORH has them")


SAVED_WITH: list[tuple[Method, Method, str]] = [
    (
        MKOR(),
        MKOR(update_rule="published"),
        "update_rule='sherman_morrison', but this MKOR has update_rule='published'",
    ),
    (MKOR(window=2), MKOR(window=3), "window=2, but this MKOR has window=3"),
    (MKOR(rank=2), MKOR(), "rank=2, but this MKOR has rank=1"),
    (MKOR(), MKOR(factor_dtype=torch.bfloat16), "factor_dtype='float32', but this MKOR has factor_dtype='bfloat16'"),
    (MKOR(sides="input"), MKOR(), "sides='input', but this MKOR has sides='both'"),
    (MKORH(window=2), MKORH(), "window=2, but this MKORH has window=None"),
    (KAISA(), KAISA(rows="rank"), "rows='global', but this KAISA has rows='rank'"),
    (KAISA(compute_method="inverse"), KAISA(), "compute_method='inverse', but this KAISA has compute_method='eigen'"),
    (Eva(), Eva(rows="rank"), "rows='global', but this Eva has rows='rank'"),
    (HyLo(), HyLo(variant="KID"), "variant='KIS', but this HyLo has variant='KID'"),
]


@pytest.mark.parametrize(("source", "target", "message"), SAVED_WITH, ids=[case[2] for case in SAVED_WITH])
def test_a_state_whose_tensors_mean_something_else_is_refused(source: Method, target: Method, message: str):
    refused(made(target), made(source, seed=1).state_dict(), f"The state was saved with {message}, for which its")


def test_what_a_method_fixes_in_its_state_are_hyperparameters_of_it():
    for method in (MKOR(), MKORH(), KAISA(), Eva(), HyLo()):
        assert set(method.fixed_in_state) <= plain_hyperparameters(method).keys()


def test_hyperparameters_that_say_what_to_do_next_may_change_which_is_logged(caplog: pytest.LogCaptureFixture):
    source, target = made(MKOR(), seed=1), made(MKOR(inverse_update_period=3, stabilizer_threshold=9.0))
    with caplog.at_level(logging.INFO):
        target.load_state_dict(source.state_dict())
    assert_close(target.state_dict()["layers"], source.state_dict()["layers"], rtol=0, atol=0)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "inverse_update_period from 10 to 3, stabilizer_threshold from 2.1 to 9.0" in record.getMessage()


def test_a_state_of_an_older_version_without_hyperparameters_or_one_of_them_is_loaded():
    source = made(MKOR(), seed=1).state_dict()
    for lacking in (("hyperparameters", "losses"), ("losses",), ()):
        old = {key: value for key, value in source.items() if key not in lacking}
        if "hyperparameters" in old:
            old["hyperparameters"] = {"window": None, "a_name_of_old": 3}
        target = made(MKOR())
        target.load_state_dict(old)
        assert_close(target.state_dict()["layers"], source["layers"], rtol=0, atol=0)


def test_another_precision_of_the_factors_is_converted():
    state = copy.deepcopy(made(MKOR(), seed=1).state_dict())
    truth: Tensor = state["layers"]["2"]["right"]
    cast(torch.float64)(state)
    target = made(MKOR())
    target.load_state_dict(state)
    assert_close(target.state_dict()["layers"]["2"]["right"], truth, rtol=0, atol=0)


def test_a_state_that_is_not_finite_is_loaded_with_a_warning(caplog: pytest.LogCaptureFixture):
    """The factors of the rule `published` may overflow in a run that goes on."""
    state = copy.deepcopy(made(MKOR(), seed=1).state_dict())
    state["layers"]["2"]["left"][0, 0] = math.inf
    target = made(MKOR())
    target.load_state_dict(state)
    assert target.non_finite_layers() == ["2"]
    (record,) = caplog.records
    assert record.getMessage() == "The saved state of layers '2' has a NaN or an infinity."
