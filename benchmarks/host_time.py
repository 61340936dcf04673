"""The host's time of a step, on tensors so small that computing takes next to none of it.

``python -m benchmarks.host_time`` trains BERT-Large's 146 layers with a width of 8, on one thread. A GPU that computes
faster than the host launches waits for this time. Kernels of methods of low rank are recorded, not launched, so that
neither Triton nor a GPU is needed. In every round all methods take turns with the same model without a preconditioner,
whose forward and backward passes are timed twice: the second one, less the first, shows what the machine's noise is.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

import torch

from baselines import Eva
from benchmarks.methods import RATE
from benchmarks.models import Encoder
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.kernels import grouped
from workflow.bench.probes._timing import milliseconds, rounds
from workflow.bench.support.command_line import check_option, run_command, whole

WIDTH: Final = 8
PERIOD: Final = 10
"""Steps between two updates of MKOR's factors; Eva updates its means in every step."""
WARM_UP: Final = 3
CPU: Final = torch.device("cpu")
METHODS: Final[dict[str, Method]] = {
    "mkor_w4": MKOR(window=4, inverse_update_period=PERIOD),
    "eva": Eva(),
}


class HostTime(NamedTuple):
    """Milliseconds of the host in one step."""

    passes: float
    """Of the forward and backward passes, with the hooks."""
    step: float
    """Of the preconditioner's step."""


def turn(method: Method | None) -> Callable[[], HostTime]:
    """Return a function that trains a step of the tiny model, and times it."""
    model = Encoder(width=WIDTH, inner=4 * WIDTH)
    rows = torch.randn(32, 4, WIDTH)
    preconditioner = None if method is None else Preconditioner(model, method, lr=RATE, kernels="triton")

    def passes() -> None:
        model(rows).backward()

    def trained() -> HostTime:
        for parameter in model.parameters():
            parameter.grad = None
        own = milliseconds(passes, CPU)
        return HostTime(own, 0.0 if preconditioner is None else milliseconds(preconditioner.step, CPU))

    return trained


def measured(number: int) -> dict[str, HostTime]:
    """Return the medians over plain steps, by method; of the passes, what the hooks add to those of ``none``."""
    with grouped.recorded(deque[object](maxlen=0).append):
        turns = {"none": turn(None), "none again": turn(None), **{label: turn(one) for label, one in METHODS.items()}}
        found = [*rounds(turns, WARM_UP + number)]
    # In every PERIOD-th step MKOR updates its factors; the first one sets up states.
    plain = [times for index, times in enumerate(found) if index >= WARM_UP and index % PERIOD]
    base = HostTime(median(times["none"].passes for times in plain), 0.0)
    added = {
        label: HostTime(
            median(times[label].passes - times["none"].passes for times in plain),
            median(times[label].step for times in plain),
        )
        for label in turns
        if label != "none"
    }
    return {"none": base, **added}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is measured; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_time", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=whole, default=100, help="rounds of turns (default: 100, some 10 seconds)")

    def work(options: argparse.Namespace) -> None:
        check_option("--rounds", options.rounds, PERIOD, 10_000)
        torch.set_num_threads(1)
        none, *others = measured(options.rounds).items()
        print(f"the model's own forward and backward pass: {none[1].passes:.2f} ms")
        for label, time in others:
            print(f"{label:12} hooks {time.passes:6.2f} ms, step {time.step:6.2f} ms")

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
