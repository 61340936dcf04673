"""Ceilings of what a preconditioner adds to a step of BERT-Large's 146 layers, 8 x 512 tokens, on the meta device."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from baselines import Eva
from benchmarks.counting import bert_large, count_steps
from mkor_core import MKOR, Method
from workflow.bench.probes._counting import META


class Ceiling(NamedTuple):
    """The most kernels and gigabytes of a step without and with an update of the factors."""

    method: Method
    updates: int
    """Updates to count; with five of them the smaller window is full and is cut once."""
    plain_kernels: int
    update_kernels: int
    plain_gb: float
    update_gb: float


CEILINGS = {
    "dense": Ceiling(MKOR(inverse_update_period=2), 1, 400, 800, 28.5, 44.5),
    "window 16": Ceiling(MKOR(inverse_update_period=2, window=16), 1, 500, 900, 16.0, 19.0),
    "window 4": Ceiling(MKOR(inverse_update_period=2, window=4), 5, 500, 900, 15.0, 18.0),
    "Eva": Ceiling(Eva(), 1, 600, 600, 19.0, 19.0),
}


@pytest.mark.parametrize("name", CEILINGS)
def test_a_step_stays_below_its_ceilings(name):
    """What the hooks do in forward and backward counts."""
    ceiling = CEILINGS[name]
    inputs = torch.empty(8, 512, 1024, device=META)
    plain, update = count_steps(ceiling.method, bert_large(), inputs, ceiling.updates)
    assert plain.kernels <= ceiling.plain_kernels
    assert update.kernels <= ceiling.update_kernels
    assert plain.bytes <= 1e9 * ceiling.plain_gb
    assert update.bytes <= 1e9 * ceiling.update_gb
    assert plain.waits == update.waits == 0
