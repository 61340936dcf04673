"""Time of a factor update and of preconditioning over the width d of a layer, and the memory floor.

``python -m workflow.bench.probes.cost_scaling --tier embedded --out cost_scaling.csv`` writes one row for each
optimizer, part, width and repeat. It needs the machine to itself. Columns:

- optimizer: a second-order method, e.g. ``mkor``, the dense factor with the exact rule; ``mkor_windowed``, 4 columns;
  ``kaisa``, eigendecomposed; ``eva``. ``copy`` is the floor: a float32 ``[d, d]`` copied into another one that is
  there already, which reads and writes a matrix once.
- part: ``factor``, one factor of width d (the other side of the layer has width 1): the captured statistic is folded
  into the state, and the method refreshes; for KAISA this is the running average of the moment and its decomposition.
  ``precondition``: the update for a gradient ``[d, d]`` with factors of both sides. ``floor``.
- dimension d, repeat; calls: the number timed together, which take `LEAST_MS` or more; ms: milliseconds a call;
  busy_share: the share of the cores that other processes took in the repeat, or over several short ones.
- hardware, threads, code_fingerprint, git_commit.

`analysis.fits.power_law` fits the slopes downstream. The cost of capturing n rows is left out: O(n d) for mean
vectors, O(n d^2) for moments. At each width all calls take turns in every repeat. A call that takes longer than
`LONG_MS` is timed `LONG_REPEATS` times in a row. A busy repeat is repeated if there is time (`_timing.idle_rounds`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple

import torch

from mkor_core import Method
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.method import HostAssisted
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _timing
from workflow.bench.probes._models import method_of
from workflow.bench.probes._state_bytes import captured
from workflow.bench.probes._timing import Round, idle_rounds
from workflow.bench.support.load import OtherLoad

CORES: Final = "all"
TIMING: Final = True
OPTIMIZERS: Final = ("mkor", "mkor_windowed", "kaisa", "eva", "hylo")
DIMENSIONS: Final = (256, 512, 1024, 2048, 4096)
REPEATS: Final = 10
LEAST_MS: Final = 50.0
LONG_MS: Final = 500.0
LONG_REPEATS: Final = 3


class Row(NamedTuple):
    """One repeat of one part at one width."""

    optimizer: str
    part: str
    dimension: int
    repeat: int
    calls: int
    ms: float
    busy_share: float | None
    hardware: str
    threads: int


Call = Callable[[], object]


def _statistic(method: Method, shape: LayerShape, device: torch.device) -> Captured:
    """Return what a method captures of a layer's rows."""
    # Enough rows for a moment of full rank, and as many for HyLo; means cost the same for any number of rows.
    number = 64 if method.statistic.kind == "mean" else 2 * shape.d_in
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(number, d, generator=generator).to(device) for d in (shape.d_in, shape.d_out))
    return captured(method, x, g)


def factor_update(method: Method, d: int, device: torch.device) -> Call:
    """Return a function that updates the right factor ``[d, d]`` of a layer with one output; HyLo's of all of it."""
    shape = LayerShape(d if method.statistic.kind == "rows" else 1, d)
    state, statistic = method.initial_state(shape, torch.float32, device), _statistic(method, shape, device)
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
    shape = LayerShape(d, d)
    state = method.initial_state(shape, torch.float32, device)
    if method.statistic.kind == "rows":  # without rows HyLo leaves the gradient as it is, which takes no time
        method.accumulate(state, _statistic(method, shape, device), 0)
        method.refresh(state, 0)
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

    A decomposition of 4,096 columns takes 9 seconds.
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
            load = OtherLoad()
            number, first = number_of_calls(call, device)
            if number == 0:
                key = label, part
                timed_first = Round({key: first}, load.share())
                # Under a name, the call's state, hundreds of megabytes, would stay until the next long one.
                long = idle_rounds({key: partial(_timing.milliseconds, call, device)}, LONG_REPEATS, timed_first)
                for repeat, timed in enumerate(long):
                    yield Row(label, part, d, repeat, 1, timed.results[key], timed.busy_share, *where)
            else:
                numbers[label, part] = number
                turns[label, part] = partial(_timing.milliseconds, call, device, number)
        for repeat, timed in enumerate(idle_rounds(turns, repeats)):
            for (label, part), ms in timed.results.items():
                yield Row(label, part, d, repeat, numbers[label, part], ms, timed.busy_share, *where)


if __name__ == "__main__":
    sys.exit(_command.run("cost_scaling", measure, optimizers=OPTIMIZERS))
