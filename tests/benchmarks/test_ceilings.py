"""Ceilings of a step of BERT-Large's layers on the meta device: of preconditioners, and of bases on a GPU."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import pytest
import torch

from baselines import KAISA, Eva, HyLo, build
from benchmarks.counting import bert_large, count_steps
from benchmarks.models import Encoder
from mkor_core import MKOR, Method
from mkor_core.kernels import bases
from workflow.bench.probes._counting import META, Counting


class Ceiling(NamedTuple):
    """The most kernels and gigabytes of a step without and with an update of the factors."""

    method: Method
    updates: int
    """Updates to count; with five of them the smaller window is full and is cut once."""
    plain_kernels: int
    update_kernels: int
    plain_gb: float
    update_gb: float
    update_waits: int = 0
    encoders: int = 24
    """Layers of the encoder, of six matrices each, besides two others. A method that returns its updates takes every
    matrix by itself, so that 14 say of it what all 146 do, in a tenth of the time."""


CEILINGS = {
    "dense": Ceiling(MKOR(inverse_update_period=2), 1, 400, 800, 28.5, 44.5),
    "window 16": Ceiling(MKOR(inverse_update_period=2, window=16), 1, 500, 900, 16.0, 19.0),
    "window 4": Ceiling(MKOR(inverse_update_period=2, window=4), 5, 500, 900, 15.0, 18.0),
    "Eva": Ceiling(Eva(), 1, 600, 600, 19.0, 19.0),
    "KAISA": Ceiling(KAISA(factor_update_period=2, inverse_update_period=2), 1, 350, 860, 4.3, 12.2, 28, 2),
    "KAISA, inverse": Ceiling(
        KAISA(factor_update_period=2, inverse_update_period=2, compute_method="inverse"), 1, 280, 840, 2.8, 12.5, 0, 2
    ),
    "HyLo": Ceiling(HyLo(update_period=2), 1, 255, 870, 2.2, 8.5, 0, 2),
}


@pytest.mark.parametrize("name", CEILINGS)
def test_a_step_stays_below_its_ceilings(name):
    """What the hooks do in forward and backward counts."""
    ceiling = CEILINGS[name]
    inputs = torch.empty(8, 512, 1024, device=META)
    with META:
        model = Encoder(ceiling.encoders)
    plain, update = count_steps(ceiling.method, model, inputs, ceiling.updates)
    assert plain.kernels <= ceiling.plain_kernels
    assert update.kernels <= ceiling.update_kernels
    assert plain.bytes <= 1e9 * ceiling.plain_gb
    assert update.bytes <= 1e9 * ceiling.update_gb
    assert (plain.waits, update.waits) == (0, ceiling.update_waits)


BYTES = {"sgd": 20, "adamw": 28, "lamb": 68}
"""The most bytes for each float32 parameter in a step of a base on a GPU; ``foreach`` kernels move 32, 84 and 108."""


@pytest.mark.parametrize("name", BYTES)
def test_a_base_on_a_gpu_moves_no_more_than_its_fused_kernels_do(name, monkeypatch):
    monkeypatch.setattr(bases, "FUSED_ON", "meta")
    torchs_own = import_module("torch.optim.optimizer")
    monkeypatch.setattr(torchs_own, "_get_fused_kernels_supported_devices", lambda: ["meta"])
    model = bert_large()
    optimizer, _ = build(name, model, {"lr": 0.1})
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    for _ in range(2):  # the first of which sets up the state
        with Counting() as counts:
            optimizer.step()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert counts.bytes <= 1.001 * BYTES[name] * parameters
    assert counts.kernels <= 30
    assert counts.waits == 0
