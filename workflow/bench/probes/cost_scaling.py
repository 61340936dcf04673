"""Time of a factor update and of preconditioning over the width d of a layer, and the memory floor.

``python -m workflow.bench.probes.cost_scaling --tier embedded --out cost_scaling.csv`` writes one row for each
optimizer, part, width and repeat. It needs the machine to itself. Columns:

- optimizer: a second-order method, e.g. ``mkor``, the dense factor with the exact rule; ``mkor_windowed``, 4 columns;
  ``kaisa``, eigendecomposed; ``eva``. ``copy`` is the floor: a float32 ``[d, d]`` copied into another one that is
  there already, which reads and writes a matrix once.
- part: ``factor``, one factor of width d (the other side of the layer has width 1): the captured statistic is folded
  into the state, and the method refreshes; for KAISA this is the running average of the moment and its decomposition.
  ``precondition``: the update for a gradient ``[d, d]`` with factors of both sides. ``floor``.
- dimension d, repeat; calls: the number timed together, which take `LEAST_MS` or more; ms: milliseconds a call.
- hardware, threads, code_fingerprint, git_commit.

`analysis.fits.power_law` fits the slopes downstream. The cost of capturing n rows is left out: O(n d) for mean
vectors, O(n d^2) for moments. At each width all calls take turns in every repeat. A call that takes longer than
`LONG_MS` is timed once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple

import torch

from mkor_core import Method
from mkor_core.capture.statistics import LayerShape
from mkor_core.method import HostAssisted
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _timing
from workflow.bench.probes._models import method_of
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

    steps = (step for step in count() if method.accumulates(step) or method.refreshes(step))

    def update() -> None:
        step = next(steps)
        if isinstance(method, HostAssisted):
            method.make_room(state, step)
        method.accumulate(state, statistic, step)
        method.refresh(state, step)

    return update


def preconditioning(method: Method, d: int, device: torch.device) -> Call:
    """Return a function that preconditions a gradient ``[d, d]``."""
    state = method.initial_state(LayerShape(d, d), torch.float32, device)
    grad = torch.randn(d, d, generator=torch.Generator().manual_seed(0)).to(device)
    return partial(method.precondition, state, grad)


def calls(labels: Sequence[str], d: int, device: torch.device) -> Iterator[tuple[str, str, Call]]:
    """Yield everything that is timed at a width: optimizer, part, call. First-order optimizers have no such parts."""
    yield "copy", "floor", partial(torch.zeros(d, d, device=device).copy_, torch.ones(d, d, device=device))
    for label in labels:
        if (method := method_of(label)) is not None:
            yield label, "factor", factor_update(method, d, device)
            yield label, "precondition", preconditioning(method, d, device)


def number_of_calls(call: Call, device: torch.device) -> tuple[int, float]:
    """Return how many calls to time together, and the milliseconds of the first one; 0 if that one was long.

    A decomposition of 4,096 columns takes 9 seconds: it is not called again.
    """
    first = _timing.milliseconds(call, device)
    if first > LONG_MS:
        return 0, first
    second = _timing.milliseconds(call, device)  # the first call also paid for allocating memory and loading code
    return max(1, round(LEAST_MS / second)), first


def measure(
    plan: Plan, labels: Sequence[str] = OPTIMIZERS, dimensions: Sequence[int] = DIMENSIONS, repeats: int = REPEATS
) -> Iterator[Row]:
    """Yield all rows."""
    device = torch.device(plan.tier.device)
    where = plan.hardware, torch.get_num_threads()
    for d in dimensions:
        numbers, turns = {}, {}
        # Cheap calls are timed many at once, since waiting for the device and reading the clock take time as well.
        for label, part, call in calls(labels, d, device):
            number, first = number_of_calls(call, device)
            if number == 0:
                yield Row(label, part, d, 0, 1, first, *where)
            else:
                numbers[label, part] = number
                turns[label, part] = partial(_timing.milliseconds, call, device, number)
        for repeat, timed in enumerate(_timing.rounds(turns, repeats)):
            for (label, part), ms in timed.items():
                yield Row(label, part, d, repeat, numbers[label, part], ms, *where)


if __name__ == "__main__":
    sys.exit(_command.run("cost_scaling", measure, optimizers=OPTIMIZERS))
