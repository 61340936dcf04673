"""The cost of a factor update and of preconditioning over the width d of a layer, beside the memory floor.

``python -m workflow.bench.probes.cost_scaling --tier embedded --out cost_scaling.csv`` writes one row an optimizer,
part, width and repeat. It wants the machine to itself. Columns:

- optimizer: ``mkor``, the dense factor with the exact rule; ``mkor_windowed``, 16 columns; ``kaisa``, eigendecomposed;
  ``eva``; ``copy``, the floor: a new copy of a float32 ``[d, d]``, its memory's allocation included: what an update
  that makes a new matrix of an old one takes at least.
- part: ``factor``, one factor of width d (the other side of the layer has width 1): what was captured goes into the
  state, and the method refreshes; for KAISA the running average of the moment and its decomposition. ``precondition``:
  the update of a gradient ``[d, d]`` from factors of both sides. ``floor``.
- dimension d, repeat; calls: how many were timed together (at least `LEAST_MS`); ms: milliseconds a call.
- hardware, threads, code_fingerprint, git_commit.

Slopes are fitted downstream, by `analysis.fits.power_law`. Capturing is no part of it: that costs what the rows
cost, O(n d) for mean vectors and O(n d^2) for moments. A call that takes longer than `LONG_MS` is timed once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from baselines import KAISA, Eva
from mkor_core import MKOR, Method
from mkor_core.capture import Captured
from mkor_core.method import LayerShape
from workflow.bench.plan import Plan
from workflow.bench.probes import _command

DIMENSIONS: Final = (256, 512, 1024, 2048, 4096)
REPEATS: Final = 5
LEAST_MS: Final = 5.0
LONG_MS: Final = 500.0
WINDOW: Final = 16
METHODS: Final[Mapping[str, Method]] = {
    "mkor": MKOR(),
    "mkor_windowed": MKOR(window=WINDOW),
    "kaisa": KAISA(),
    "eva": Eva(),
}


class Row(NamedTuple):
    """One repeat of one part at one width."""

    optimizer: str
    part: str
    dimension: int
    repeat: int
    calls: int
    ms: float
    hardware: str
    threads: int


Call = Callable[[], object]


def factor_update(method: Method, d: int, device: torch.device) -> Call:
    """Return what updates the right factor ``[d, d]`` of a layer with one output."""
    shape = LayerShape(1, d)
    state = method.initial_state(shape, torch.float32, device)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2 * d if method.statistic.kind == "moment" else 64, d, generator=generator).to(device)
    x = rows.T @ rows / len(rows) if method.statistic.kind == "moment" else rows.sum(0)
    _, g_shape = method.sum_shapes(shape)
    number = torch.tensor(1.0 if method.statistic.kind == "moment" else len(rows), device=device)
    captured = Captured(x, torch.ones(g_shape, device=device), number)

    def update() -> None:
        method.accumulate(state, captured, 0)
        method.refresh(state, 0)

    return update


def preconditioning(method: Method, d: int, device: torch.device) -> Call:
    """Return what preconditions a gradient ``[d, d]``."""
    state = method.initial_state(LayerShape(d, d), torch.float32, device)
    grad = torch.randn(d, d, generator=torch.Generator().manual_seed(0)).to(device)
    return partial(method.precondition, state, grad)


def calls(d: int, device: torch.device) -> Iterator[tuple[str, str, Call]]:
    """Yield everything that is timed at a width: optimizer, part, call."""
    yield "copy", "floor", torch.ones(d, d, device=device).clone
    for name, method in METHODS.items():
        yield name, "factor", factor_update(method, d, device)
        yield name, "precondition", preconditioning(method, d, device)


def timed(call: Call, number: int, device: torch.device) -> float:
    """Return the milliseconds a call takes, ``number`` of them timed together."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(number):
        call()
    _wait(device)
    return 1000 * (time.perf_counter() - start) / number


def repeated(call: Call, repeats: int, device: torch.device) -> Iterator[tuple[int, float]]:
    """Yield (calls, milliseconds a call), ``repeats`` times after a warm-up; a long call just once, cold."""
    first = timed(call, 1, device)
    if first > LONG_MS:
        yield 1, first
        return
    again = timed(call, 1, device)  # the first one also paid for memory and code that was not there
    number = max(1, round(LEAST_MS / again))
    for _ in range(repeats):
        yield number, timed(call, number, device)


def measure(plan: Plan, dimensions: Sequence[int] = DIMENSIONS, repeats: int = REPEATS) -> Iterator[Row]:
    """Yield all rows."""
    device = torch.device(plan.tier.device)
    for d in dimensions:
        for optimizer, part, call in calls(d, device):
            for repeat, (number, ms) in enumerate(repeated(call, repeats, device)):
                yield Row(optimizer, part, d, repeat, number, ms, plan.hardware, torch.get_num_threads())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(_command.run("cost_scaling", measure))
