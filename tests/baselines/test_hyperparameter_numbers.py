"""Numbers of any size and sign in every hyperparameter: refused in one line by name, or trained with."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from baselines import available, build
from mkor_core.ranges import LARGEST, Domain, Range
from tests.support import tally
from tests.support.hyperparameters import hyperparameters, options
from tests.support.numbers import NUMBERS, within
from workflow.bench.training.loop import is_overflow

SECONDS = 10.0
"""Time in which a few steps of a tiny model must be done; they take milliseconds."""

PLACES = [
    (name, key)
    for name in available()
    for key, hyperparameter in hyperparameters(name).items()
    if {int, float} & set(Domain.of(hyperparameter.annotation).types)
]
"""Every hyperparameter that is a number, by optimizer."""


def train(name: str, chosen: dict[str, Any]) -> None:
    """Train a tiny model for three steps; raises what `build` and the steps raise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer, preconditioner = build(name, model, chosen)
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        if preconditioner is not None:
            preconditioner.observe(loss)
        optimizer.step()


def refusal(name: str, chosen: dict[str, Any]) -> str | None:
    """Train, and return the message of a refusal; None if there is none."""
    try:
        train(name, chosen)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # divergence to the training loop
        return None
    except ValueError as problem:
        return str(problem)
    except RuntimeError as problem:
        if not is_overflow(problem):  # divergence, too
            raise
    return None


@given(place=st.sampled_from(PLACES), value=NUMBERS)
@example(place=("mkor", "window"), value=65536)
@example(place=("mkor", "window"), value=1024)
@example(place=("mkor", "rank"), value=1024)
@example(place=("muon", "newton_schulz_steps"), value=10**9)
@example(place=("thermo_kfac", "trajectory_steps"), value=10**6)
@example(place=("thermo_kfac", "trajectory_steps"), value=1000)
@example(place=("schedule_free_adamw", "power"), value=647)
@example(place=("sgd", "lr"), value=1e39)
@example(place=("sgd", "lr"), value=10**5000)
@example(place=("mkor", "stabilizer_threshold"), value=2**64)
def test_any_number_is_refused_by_name_or_trained_with(place: tuple[str, str], value: Any):
    name, key = place
    with within(SECONDS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = refusal(name, options(name, **{key: value}))
    tally.count(f"hyperparameters {'refused' if said else 'trained with'}")
    assert said is None or said.startswith(f"{key}=")
    assert said is None or len(said.splitlines()) == 1


def test_every_number_is_bounded():
    """A declared range limits both ends; only infinity may be allowed in addition."""
    for name, key in PLACES:
        limit = Domain.of(hyperparameters(name)[key].annotation).limit
        assert isinstance(limit, Range), f"{name}: {key}"
        assert limit.largest <= LARGEST
        for value in (10**400, 1.01 * limit.largest, -10, -(10**400), float("nan")):
            assert limit.refusal(value), f"{name}: {key}"
        assert limit.refusal(float("inf")) or not limit.finite
