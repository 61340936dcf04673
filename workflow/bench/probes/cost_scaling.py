"""Time of a factor update and of preconditioning over the width d of a layer, and the memory floor.

``python -m workflow.bench.probes.cost_scaling --tier embedded --out cost_scaling.csv`` writes one row for each
optimizer, part, width and repeat. It needs the machine to itself. Columns:

- optimizer: a second-order method, e.g. ``mkor``, the dense factor with the exact rule; ``mkor_windowed``, 16 columns;
  ``kaisa``, eigendecomposed; ``eva``. ``copy`` is the floor: a new copy of a float32 ``[d, d]``, including the
  allocation, which is the least that an update takes if it makes a new matrix of an old one.
- part: ``factor``, one factor of width d (the other side of the layer has width 1): the captured statistic is folded
  into the state, and the method refreshes; for KAISA this is the running average of the moment and its decomposition.
  ``precondition``: the update for a gradient ``[d, d]`` with factors of both sides. ``floor``.
- dimension d, repeat; calls: the number timed together, which take `LEAST_MS` or more; ms: milliseconds a call.
- hardware, threads, code_fingerprint, git_commit.

`analysis.fits.power_law` fits the slopes downstream. The cost of capturing n rows is left out: O(n d) for mean
vectors, O(n d^2) for moments. A call that takes longer than `LONG_MS` is timed once.
"""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from mkor_core import Method
from mkor_core.method import LayerShape
from workflow.bench.plan import Plan
from workflow.bench.probes import _command
from workflow.bench.probes._optimizers import method_of
from workflow.bench.probes._state_bytes import captured

CORES: Final = "all"
TIMING: Final = True
OPTIMIZERS: Final = ("mkor", "mkor_windowed", "kaisa", "eva")
DIMENSIONS: Final = (256, 512, 1024, 2048, 4096)
REPEATS: Final = 5
LEAST_MS: Final = 5.0
LONG_MS: Final = 500.0


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
    """Return a function that updates the right factor ``[d, d]`` of a layer with one output."""
    state = method.initial_state(LayerShape(1, d), torch.float32, device)
    # Enough rows for a moment of full rank; other statistics cost the same for any number of rows.
    number = 2 * d if method.statistic.kind == "moment" else 64
    x = torch.randn(number, d, generator=torch.Generator().manual_seed(0)).to(device)
    statistic = captured(method, x, torch.ones(number, 1, device=device))

    def update() -> None:
        method.accumulate(state, statistic, 0)
        method.refresh(state, 0)

    return update


def preconditioning(method: Method, d: int, device: torch.device) -> Call:
    """Return a function that preconditions a gradient ``[d, d]``."""
    state = method.initial_state(LayerShape(d, d), torch.float32, device)
    grad = torch.randn(d, d, generator=torch.Generator().manual_seed(0)).to(device)
    return partial(method.precondition, state, grad)


def calls(labels: Sequence[str], d: int, device: torch.device) -> Iterator[tuple[str, str, Call]]:
    """Yield everything that is timed at a width: optimizer, part, call. First-order optimizers have no such parts."""
    yield "copy", "floor", torch.ones(d, d, device=device).clone
    for label in labels:
        if (method := method_of(label)) is not None:
            yield label, "factor", factor_update(method, d, device)
            yield label, "precondition", preconditioning(method, d, device)


def repeated(call: Call, repeats: int, device: torch.device) -> Iterator[tuple[int, float]]:
    """Yield (calls, milliseconds a call) ``repeats`` times after a warm-up; once, without one, for a long call.

    `timeit` does this; torch.utils.benchmark calls at least twice more before each of its measurements, and a
    decomposition of 4,096 columns takes 9 seconds.
    """
    timer = timeit.Timer(call, timer=partial(_now, device))
    first = 1000 * timer.timeit(1)
    if first > LONG_MS:
        yield 1, first
        return
    second = 1000 * timer.timeit(1)  # the first call also paid for allocating memory and loading code
    number = max(1, round(LEAST_MS / second))
    for seconds in timer.repeat(repeats, number):
        yield number, 1000 * seconds / number


def measure(
    plan: Plan, labels: Sequence[str] = OPTIMIZERS, dimensions: Sequence[int] = DIMENSIONS, repeats: int = REPEATS
) -> Iterator[Row]:
    """Yield all rows."""
    device = torch.device(plan.tier.device)
    for d in dimensions:
        for label, part, call in calls(labels, d, device):
            for repeat, (number, ms) in enumerate(repeated(call, repeats, device)):
                yield Row(label, part, d, repeat, number, ms, plan.hardware, torch.get_num_threads())


def _now(device: torch.device) -> float:
    """Return the time once the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(_command.run("cost_scaling", measure, optimizers=OPTIMIZERS))
