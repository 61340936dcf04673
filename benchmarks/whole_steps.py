"""Whole training steps on a GPU: BERT-Large and ResNet-50 with their base optimizer alone and with each preconditioner.

``python -m benchmarks.steps --gpu`` takes at most 8 minutes, needs the GPU to itself and writes ``whole_steps.csv``.
The base alone comes twice: if the interval of its ratio to itself excludes 1, the machine was not quiet. All contenders
of a model take turns in every round, each with weights and a state of its own; gradients are freed between turns.

- A step is forward, backward and update on a true batch of random data. A turn trains one period without waiting: two
  events in the GPU's queue, one before and one after all its steps, give the mean time of a step, ``ms``.
- Then it trains one more period in which every step begins on an idle GPU: ``host_ms`` is the mean time until the host
  has issued all of a step, ``host_update_ms`` that of the preconditioner's and optimizer's part. Where ``host_ms`` is
  near ``ms`` the host binds; above some thousand kernels a step it includes waits for a free place in the queue.

Columns: workload, optimizer, base, period; rounds; ms and of_base (the ratio within rounds), with 95 % intervals (_low,
_high); host_ms and host_update_ms, medians; note: why an optimizer was left out; precision, device, hardware, threads,
torch, code_fingerprint, git_commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import median
from typing import Final, NamedTuple

import torch

from benchmarks import models
from benchmarks.methods import RATE, BenchmarkMethod, attempted
from benchmarks.step_rows import columns, quiet_line
from workflow.bench.analysis.estimates import estimate, paired_ratio
from workflow.bench.probes import _timing
from workflow.bench.probes._models import BASE, ProbeModel, RandomImages, RandomTokens, TimedOptimizer, bert_large
from workflow.bench.probes._timing import WARM_UP, TimedLoop, release
from workflow.bench.training.clocks import Clock, clock_of

PERIOD: Final = 10
"""Steps between two updates of a preconditioner, and in each part of a turn."""
AGAIN: Final = "base_again"
LABELS: Final = ("mkor", "mkor_w4", "mkor_w16", "mkor_w64", "eva", "hylo", "kaisa")
"""Labels of `benchmarks.methods` that are timed by default, which should fit into 80 GB together."""
MINUTES: Final = 6.0
"""The time that turns may fill; the start and the last round come on top."""
ROUNDS: Final = (3, 15)
"""The fewest rounds and the most."""


class TurnTimes(NamedTuple):
    """A contender's milliseconds a step in one turn: of the device, of the host, and of the host's in the update."""

    ms: float
    host_ms: float
    host_update_ms: float


class Row(NamedTuple):
    """One optimizer on one model; NaN where it was left out, or there is no base to compare with."""

    workload: str
    optimizer: str
    base: str
    period: int
    rounds: int
    ms: float
    ms_low: float
    ms_high: float
    of_base: float
    of_base_low: float
    of_base_high: float
    host_ms: float
    host_update_ms: float
    note: str | None
    precision: str
    device: str
    hardware: str
    threads: int
    torch: str


def true_models() -> dict[str, Callable[[], ProbeModel]]:
    """Return the models by name, each trained by the base that a step is to be compared with."""
    images = partial(RandomImages, models.resnet50, batch_size=64, size=224, classes=1000)
    return {
        "bert": lambda: ProbeModel("bert", bert_large(batch_size=64, sequence_length=128), "adamw", RATE, "bfloat16"),
        "resnet": lambda: ProbeModel("resnet", images(), "sgd", RATE, "float32"),
    }


def small_models() -> dict[str, Callable[[], ProbeModel]]:
    """Return the same models with few and narrow layers, for a trial of the program."""
    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = partial(RandomTokens, batch_size=2, sequence_length=8, intermediate_size=32, **small)
    images = partial(RandomImages, partial(models.resnet50, 2, 3, (1, 1)), batch_size=2, size=32, classes=3)
    return {
        "bert": lambda: ProbeModel("bert", tokens(), "adamw", RATE, "bfloat16"),
        "resnet": lambda: ProbeModel("resnet", images(), "sgd", RATE),
    }


def measure(
    makers: Sequence[Callable[[], ProbeModel]],
    chosen: Sequence[BenchmarkMethod],
    device: torch.device,
    hardware: str,
    seconds: float,
) -> Iterator[Row]:
    """Yield the rows of all models, which together take about ``seconds``.

    Raises:
        ModuleNotFoundError: a model's package is missing.
    """
    for make in makers:
        yield from measure_model(make(), chosen, device, hardware, seconds / len(makers))
        release(device.type)


def measure_model(
    model: ProbeModel, chosen: Sequence[BenchmarkMethod], device: torch.device, hardware: str, seconds: float
) -> list[Row]:
    """Return the rows of one model, measured within about ``seconds``, but in the fewest rounds at least."""
    start = _timing.now(device)
    turns: dict[str, Callable[[], TurnTimes]] = {}
    left_out: dict[str, str] = {}
    for optimizer in contenders(model, chosen):
        made = loop_or_reason(model, optimizer, device)
        if isinstance(made, str):
            left_out[optimizer.label] = made
            release(device.type)  # what a failed loop has allocated
        else:
            turns[optimizer.label] = partial(turn, made, device)
    times = in_rounds(turns, seconds - (_timing.now(device) - start), device)
    rows, base = [], {turn: one.ms for turn, one in enumerate(times.get(BASE, ()))}
    for optimizer in contenders(model, chosen):
        own = times.get(optimizer.label, [])
        ms = {turn: one.ms for turn, one in enumerate(own)}
        row = Row(
            workload=model.name,
            optimizer=optimizer.label,
            base=model.base,
            period=PERIOD,
            rounds=len(own),
            **columns("ms", estimate([*ms.values()]) if ms else None),
            **columns("of_base", paired_ratio(ms, base) if ms and base else None),
            host_ms=median(one.host_ms for one in own) if own else math.nan,
            host_update_ms=median(one.host_update_ms for one in own) if own else math.nan,
            note=left_out.get(optimizer.label),
            precision=model.precision,
            device=device.type,
            hardware=hardware,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
        )
        rows.append(row)
    return rows


def loop_or_reason(model: ProbeModel, optimizer: TimedOptimizer, device: torch.device) -> TimedLoop | str:
    """Return a loop that has its states; or why there is none."""

    def made() -> TimedLoop:
        loop = TimedLoop(model, optimizer, device.type, by_phase=False)
        turn(loop, device)
        return loop

    return attempted(optimizer.label, made)


def contenders(model: ProbeModel, chosen: Sequence[BenchmarkMethod]) -> list[TimedOptimizer]:
    """Return the base alone, twice, and the chosen methods; those of second order precondition the base."""
    base = {"lr": RATE}
    methods = [
        TimedOptimizer(one.label, one.name, {**one.at(PERIOD), **({"base": model.base} if one.is_second_order else {})})
        for one in chosen
    ]
    return [TimedOptimizer(BASE, model.base, base), TimedOptimizer(AGAIN, model.base, base), *methods]


def turn(loop: TimedLoop, device: torch.device, make_clock: Callable[[torch.device], Clock] = clock_of) -> TurnTimes:
    """Train one period in which the host runs ahead, timed by the device; then one from an idle device, by the host."""
    for _ in range(WARM_UP):  # behind which the first event is queued, so that the device is busy when it passes it
        loop.train_step(Clock())
    clock = make_clock(device)
    clock.start("update")
    for _ in range(PERIOD):
        loop.train_step(Clock())
    clock.stop()
    ms = 1000 * clock.wall_seconds / PERIOD  # waits for the device
    host = Clock()
    for _ in range(PERIOD):
        _timing.now(device)
        loop.train_step(host)
    loop.optimizer.zero_grad()  # the next contender's gradients take their memory
    return TurnTimes(ms, 1000 * host.wall_seconds / PERIOD, 1000 * host.seconds["update"] / PERIOD)


def in_rounds(
    turns: Mapping[str, Callable[[], TurnTimes]], seconds: float, device: torch.device
) -> dict[str, list[TurnTimes]]:
    """Return each contender's times in as many rounds as fit into the time, by `ROUNDS`."""
    least, most = ROUNDS
    start = _timing.now(device)
    times: dict[str, list[TurnTimes]] = {label: [] for label in turns}
    for done, of_round in enumerate(islice(_timing.rounds(turns, most), most), 1):
        for label, one in of_round.items():
            times[label].append(one)
        if done >= least and (_timing.now(device) - start) * (done + 1) / done > seconds:
            break
    return times


def summary(table: Sequence[Row]) -> Iterator[str]:
    """Yield the lines that tell the result, and whether the base's ratio to itself includes 1."""
    for workload in dict.fromkeys(row.workload for row in table):
        yield f"{workload}: ms a step, its ratio to the base's, ms of the host in a step and in its update"
        for row in table:
            if row.workload == workload:
                yield f"  {row.optimizer:18} " + (
                    row.note
                    or f"{row.ms:9.2f} {row.of_base:7.3f} [{row.of_base_low:.3f}, {row.of_base_high:.3f}]"
                    f" {row.host_ms:8.2f} {row.host_update_ms:8.2f}"
                )
    for row in table:
        if row.optimizer == AGAIN and row.rounds:
            yield quiet_line(f"the base on {row.workload}", row.of_base, row.of_base_low, row.of_base_high)
