"""Nothing in a training step makes the host wait for the device, whose place the meta device takes."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import nn

from baselines import available
from tests.support.trained import after, run_of, setting, train
from workflow.bench.plan.runs import Run
from workflow.bench.probes._counting import META, Counting
from workflow.bench.training.build import build, micro_batches
from workflow.bench.training.clocks import Clock
from workflow.bench.training.loop import Loop
from workflow.bench.training.state import TrainingState, prepare
from workflow.bench.training.summary import Account
from workflow.bench.workloads.base import Workload


def counted_steps(workload: Workload, loop: Loop, run: Run, number: int) -> list[int]:
    """Return the waits of each of the next steps, as the loop takes them."""
    waits = []
    batches = workload.batches(run.seed)
    for _ in range(number):
        with Counting() as counts:
            loop._step(micro_batches(next(batches), run.accumulation_steps))
        assert counts.kernels > 10
        waits.append(counts.waits)
    return waits


DECOMPOSE = ("b_kfac", "dp_kfac", "kaisa", "kl_shampoo", "rs_kfac", "soap", "soap_muon", "thermo_kfac")
"""Methods that decompose two matrices for each layer now and then; torch looks whether that failed."""
DECOMPOSE_ALWAYS = ("kld_wrm", "sketchy")
"""Those that do so in every step."""
READ_VALUES = ("shampoo", "singd")
"""Shampoo's iterations and SINGD's factors need values, which the meta device does not have."""


PLAIN: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        *((name, PLAIN) for name in sorted({*available()} - {*READ_VALUES})),
        ("mkor_h", {"micro_batch_size": 64, "schedule": {"name": "linear"}}),
    ],
    ids=str,
)
def test_a_step_waits_for_nothing(folder, workload, name, shared):
    """The forward and backward pass, the preconditioner with updates of its factors, and the optimizer."""
    run = run_of(folder, name, shared, lr=0.1)
    parts = build(run, workload, setting(device=META))
    state = cast("TrainingState", SimpleNamespace(account=Account(), clock=Clock()))
    waits = counted_steps(workload, Loop(parts, state, setting(device=META)), run, 11)
    layers = sum(isinstance(module, nn.Linear) for module in parts.model.modules())
    decompositions = {2 * layers} if name in (*DECOMPOSE, *DECOMPOSE_ALWAYS) else set()
    assert set(waits) == decompositions | (set() if name in DECOMPOSE_ALWAYS else {0})


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter in the checkpoint to a meta parameter")
def test_a_resumed_step_waits_for_nothing(folder, place, workload):
    """A checkpoint's tensors lie on the CPU: each goes where it belongs, counters of steps stay."""
    run = run_of(folder, "mkor", lr=0.1, base="adamw")
    assert train(run, workload, place, after(4)) == "interrupted"
    parts, resumed = prepare(run, workload, place, setting(device=META), None)
    with closing(resumed):
        assert [loss.device.type for loss in resumed.losses] == ["meta"] * 4
        assert {state["step"].device.type for state in parts.optimizer.state.values()} == {"cpu"}
        assert {state["exp_avg"].device.type for state in parts.optimizer.state.values()} == {"meta"}
        assert counted_steps(workload, Loop(parts, resumed, setting(device=META)), run, 2) == [0, 0]
