"""Misuses of the library with every setting of every method: right, refused by its own errors, or logged by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import baselines
import mkor_core
from tests.support.misuses import (
    CLOSE,
    DISTURBANCES,
    EXACTLY,
    IGNORED,
    KINDS,
    NEEDS_THE_NUMBER_OF_MICRO_BATCHES,
    ODD,
    POISONED,
    REFUSED,
    SUMMED,
    VARIANTS,
    Session,
    WithOdd,
    check_evaluation,
    check_halves,
    check_ignored,
    check_not_finite,
    check_refused,
    check_same_forward,
    check_summed,
    hand_set,
    inputs,
    plain,
    run,
)
from tests.support.tally import count

LIBRARY = tuple(str(Path(package.__file__).parent) for package in (mkor_core, baselines) if package.__file__)

OF_INPUTS = ("foof", "mac", "mkor_muon")
"""Variants that take nothing from the gradients of a convolution's outputs."""

every_setting = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
pytestmark = [
    pytest.mark.parametrize("variant", VARIANTS),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:A step has more backward passes"),
    pytest.mark.filterwarnings("ignore:.*captures nothing in evaluation mode"),
    pytest.mark.filterwarnings("ignore:.* preconditions"),
]


def misused(train: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a misuse results in; an error that the library does not raise itself is counted as a traceback."""
    count("library misuses")
    count("tracebacks", 0)
    try:
        return train(*arguments)
    except (RuntimeError, TypeError, ValueError) as error:
        if not extract_tb(error.__traceback__)[-1].filename.startswith(LIBRARY):
            count("tracebacks")
        raise


@pytest.mark.parametrize("kind", KINDS)
@every_setting
def test_what_adds_nothing_to_the_gradients_changes_nothing(variant: str, kind: str, dtype: torch.dtype):
    for misuse in IGNORED:
        misused(check_ignored, partial(Session, *VARIANTS[variant], kind, dtype), misuse)


@pytest.mark.parametrize("kind", KINDS)
def test_several_backward_passes_count_as_that_of_the_sum_or_warn(variant: str, kind: str):
    make = partial(Session, *VARIANTS[variant], kind)
    for misuse in SUMMED:
        misused(check_summed, make, misuse)
    misused(check_halves, make, variant)
    misused(check_same_forward, make, variant)


@pytest.mark.parametrize("kind", KINDS)
@every_setting
def test_a_step_without_statistics_is_refused_in_training_and_the_bases_in_evaluation(
    variant: str, kind: str, dtype: torch.dtype
):
    make = partial(Session, *VARIANTS[variant], kind, dtype)
    for misuse in REFUSED:
        misused(check_refused, make, misuse)
    for step in (plain, hand_set):
        misused(check_evaluation, make, Session("sgd", {}, kind, dtype), step)


@pytest.mark.parametrize("kind", KINDS)
@every_setting
def test_a_step_that_is_not_finite_leaves_factors_and_gradients_alone(
    variant: str, kind: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
):
    for misuse in POISONED:
        if variant == "mkor released" and "infinit" in misuse:
            continue  # the rule clamps infinite rows
        if variant in OF_INPUTS and kind == "convolution" and "loss" in misuse:
            continue  # such a loss leaves the inputs finite, and so these statistics
        caplog.clear()
        make = partial(Session, *VARIANTS[variant], kind, dtype)
        misused(check_not_finite, make, Session("sgd", {}, kind, dtype), misuse, caplog)


@every_setting
def test_odd_modules_are_left_to_the_base_optimizer_and_printed_by_name(variant: str, dtype: torch.dtype):
    name, chosen = VARIANTS[variant]
    for odd in ODD.values():
        trained, base = WithOdd(odd, dtype), WithOdd(odd, dtype)

        def train(trained: WithOdd = trained, reason: str = odd.reason) -> list[Tensor]:
            optimizer, preconditioner = baselines.build(name, trained, {"lr": 0.1, **chosen})
            assert preconditioner is not None
            assert reason in repr(preconditioner)
            trained(inputs("linear", 0, dtype)).backward()
            preconditioner.observe(1.0)
            optimizer.step()
            return [*trained.odd.parameters()]

        parameters = misused(train)
        optimizer, _ = baselines.build("sgd", base, {"lr": 0.1})
        base(inputs("linear", 0, dtype)).backward()
        optimizer.step()
        assert_close(parameters, [*base.odd.parameters()], **EXACTLY)


events = st.lists(st.sampled_from(["loss", *DISTURBANCES]), min_size=1, max_size=6)
steps = st.lists(st.tuples(events, st.sampled_from([None, True, False]), events), min_size=1, max_size=3)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=steps, announced=st.integers(1, 4))
def test_any_sequence_of_passes_counts_those_that_are_in_the_gradients(
    variant: str, program: list[Any], announced: int
):
    """Each step: events, a zero_grad or none, more events. Truth: one backward pass of the losses that are left.

    announced: the number of micro-batches of which the library is told, where that changes nothing.
    """
    announced = 1 if variant in NEEDS_THE_NUMBER_OF_MICRO_BATCHES else announced

    def all_events(session: Session, step: int) -> None:
        first, set_to_none, second = program[step]
        place = 100 * step
        for part in (first, None, second):
            if part is None:
                if set_to_none is not None:
                    session.optimizer.zero_grad(set_to_none=set_to_none)
                continue
            for event in part:
                place += 1
                if event == "loss":
                    session.loss(place).backward()
                else:
                    DISTURBANCES[event](session, place)
        _step_or_not(session, bool(_kept(program[step], step)))

    def one_pass(session: Session, step: int) -> None:
        kept = _kept(program[step], step)
        if kept:
            # Autograd starts with the forward pass that came last.
            losses = [session.loss(place) for place in reversed(kept)]
            torch.stack(losses[::-1]).sum().backward()
        _step_or_not(session, bool(kept))

    truth = run(Session(*VARIANTS[variant]), one_pass, steps=len(program))
    session = Session(*VARIANTS[variant], accumulation_steps=announced)
    weights = misused(lambda: run(session, all_events, steps=len(program)))
    assert_close(weights, truth, **CLOSE)


def _kept(step: tuple[list[str], bool | None, list[str]], number: int) -> list[int]:
    """Return the places of the losses whose gradients are not cleared before the optimizer's step."""
    first, set_to_none, second = step
    start = 0 if set_to_none is None else len(first)
    everything = [*first, *second]
    return [100 * number + i + 1 for i, event in enumerate(everything) if event == "loss" and i >= start]


def _step_or_not(session: Session, has_gradients: bool) -> None:
    if has_gradients:
        session.optimizer.step()
