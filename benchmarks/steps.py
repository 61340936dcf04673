"""What a step of every optimizer costs, beside torch's SGD and AdamW and the forward and backward pass.

``python -m benchmarks.steps`` (``make bench``) takes at most 5 minutes on two cores and needs the machine to itself;
``--gpu`` times whole models on a GPU instead (`benchmarks.whole_steps`, which lists its columns), where a block of
layers would keep only the host busy. It writes ``steps.csv`` and, where Matplotlib is installed, a picture. All
contenders take turns in every round; ratios are those within a round, their intervals span the rounds. The control is
the same SGD once more: if the interval of its ratio excludes 1, the machine was not quiet.

Rows: one for each block of layers, width, optimizer and period (of updates of its preconditioner; a method without one
has equal rows). Columns:

- update_ms, plain_ms: medians of a step that updates and of one that does not. ms, ms_low, ms_high: a step's mean over
  a period, median over the rounds, with its 95 % interval.
- of_sgd, of_adamw, of_forward_backward (each with _low and _high): ratios of ms to a step of torch's foreach SGD with
  momentum, to one of torch's fused AdamW, and to a forward and backward pass of the block on a true batch.
- of_reference, reference: the ratio to another contender: the control's to SGD, dense MKOR's to its two matrix products
  alone, a factor's update to a matrix-vector product and an outer product on such a matrix (block ``factor``).
- slope: the exponent of ms over the widths, in the rows of the largest one.
- state_bytes; rounds; note: why an optimizer was left out; device, hardware, threads, torch, code_fingerprint,
  git_commit.

Optimizers are left out at a width if all together would exceed its time, the costliest first (`unaffordable`).
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

import torch

from benchmarks import contenders, step_rows, whole_steps
from benchmarks.contenders import OptimizerContender, Times
from benchmarks.methods import FAILED, BenchmarkMethod, attempted, methods
from benchmarks.models import BLOCKS, EncoderBlock, narrowed
from benchmarks.step_rows import MeasuredStep, Rounds, Row
from workflow.bench.probes import _timing
from workflow.bench.probes._command import write_rows
from workflow.bench.probes._state_bytes import all_bytes
from workflow.bench.support import provenance
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ConfigError, did_you_mean

Chosen = TypeVar("Chosen")

MINUTES: Final = 4.2
"""The time that rounds may fill; the start and the last round come on top."""
QUICK_MINUTES: Final = 0.4
ROUNDS: Final = (3, 15)
"""The fewest rounds of any contender, and the most."""
TOO_LATE: Final = "left out: the optimizers before it took the"
"""How the note of an optimizer begins for which no time was left; it may have some at the next width."""
GROWTH: Final = 2.5
"""The power of the width by which a step's time is expected to grow: the memory's is 2, that of products 3."""
DEAREST: Final = 0.5
"""The share of a width's time that a single optimizer may take in the fewest rounds."""
CHEAP_SHARE: Final = 0.2
"""The share of a width's time that the cheap contenders' further rounds have in any case."""
FACTOR_WIDTHS: Final = (1024, 4096)


def measure_block(
    block: EncoderBlock, chosen: Sequence[BenchmarkMethod], device: torch.device, seconds: float
) -> Iterator[MeasuredStep]:
    """Yield the measurements of a block at every width, which together take about ``seconds``.

    The largest width has most of the time. A method that would be too slow at a width is left out there.
    """
    smaller: MeasuredStep | None = None
    for width in block.widths:
        share = 0.7 if width == block.widths[-1] else 0.3 / (len(block.widths) - 1)
        measured = measure_width(block, width, chosen, device, share * seconds, smaller)
        yield measured
        smaller = measured
        gc.collect()  # models and preconditioners refer to each other through hooks


def measure_width(
    block: EncoderBlock,
    width: int,
    chosen: Sequence[BenchmarkMethod],
    device: torch.device,
    seconds: float,
    smaller: MeasuredStep | None,
) -> MeasuredStep:
    """Return the measurements of a block at one width; smaller: those at the next smaller one."""
    start = _timing.now(device)
    optimizers: dict[str, OptimizerContender] = {
        step_rows.SGD: contenders.of_torch(block, width, device, contenders.FOREACH_SGD),
        step_rows.CONTROL: contenders.of_torch(block, width, device, contenders.FOREACH_SGD),
        step_rows.ADAMW: contenders.of_torch(block, width, device, contenders.FUSED_ADAMW),
    }
    left_out: dict[str, str] = {}
    if smaller is not None:
        left_out = unaffordable([one.label for one in chosen], width, seconds, smaller)
        times_of = {label: median(map(sum, times)) for label, times in smaller.times.items()}
        # Those without a time, which may be any, come last.
        chosen = sorted(chosen, key=lambda one: times_of.get(one.label, math.inf))
    for method in chosen:
        made = left_out.get(method.label) or contenders.of_method(method, block, width, device)
        if isinstance(made, str):
            left_out[method.label] = made
        else:
            optimizers[method.label] = made
    for label, optimizer in list(optimizers.items()):
        left = seconds - (_timing.now(device) - start)
        if reason := _warm_up(label, optimizer, seconds, left):
            left_out[label] = reason
            del optimizers[label]
    turns: dict[str, Callable[[], Times]] = {label: one.turn for label, one in optimizers.items()}
    turns[step_rows.FORWARD_BACKWARD] = contenders.forward_backward(block, width, device)
    if "mkor" in optimizers:
        turns[step_rows.PRODUCTS] = contenders.two_products(block, width, device)
    times = in_rounds(turns, seconds - (_timing.now(device) - start), device)
    return MeasuredStep(
        block.name,
        width,
        times,
        {label: all_bytes(one.optimizer, one.preconditioner) for label, one in optimizers.items()},
        left_out,
    )


def _warm_up(label: str, optimizer: OptimizerContender, seconds: float, left: float) -> str | None:
    """Warm an optimizer up; return why it is left out: it fails, or the time of its width does not suffice.

    seconds, left: the time that the width has, and what is left of it. References are never left out.
    """
    if label in (step_rows.SGD, step_rows.CONTROL, step_rows.ADAMW):
        optimizer.warm_up()
        return None
    if left <= 0:
        return f"{TOO_LATE} {seconds:.0f} s of this width"
    if why := attempted(label, optimizer.warm_up):
        return why
    cycle = optimizer.cycle_ms / 1000
    if ROUNDS[0] * cycle <= DEAREST * seconds:
        return None
    return f"left out: an update and a plain step took {cycle:.1f} s together"


def unaffordable(chosen: Sequence[str], width: int, seconds: float, smaller: MeasuredStep) -> dict[str, str]:
    """Return the optimizers to leave out at a width, and why.

    Each is expected to grow from the next smaller width by a power of the width, `GROWTH`. The cheapest ones are kept
    that together fit into the given time with the fewest rounds and one cycle before them.
    """
    left_out = {
        label: reason
        for label, reason in smaller.left_out.items()
        if label in chosen and not reason.startswith(TOO_LATE)
    }
    expected = {
        label: (ROUNDS[0] + 1) * median(map(sum, times)) / 1000 * (width / smaller.width) ** GROWTH
        for label, times in smaller.times.items()
        if label in chosen
    }
    total = 0.0
    for label in sorted(expected, key=lambda label: expected[label]):
        total += expected[label]
        if total > seconds:
            left_out[label] = (
                f"left out from width {width} on: by its time at width {smaller.width} it would take "
                f"{expected[label]:.0f} s, and this width has {seconds:.0f} s for all"
            )
    return left_out


def in_rounds(turns: Mapping[str, Callable[[], Times]], seconds: float, device: torch.device) -> Rounds:
    """Return the times of the fewest rounds of all contenders, and of further ones of the cheap contenders.

    The further rounds, up to the most, have as many contenders as fit into the given time, the cheapest first.
    """
    least, most = ROUNDS
    times: dict[str, list[Times]] = {label: [] for label in turns}
    spent = dict.fromkeys(turns, 0.0)

    def timed(label: str) -> Times:
        start = _timing.now(device)
        times_of_turn = turns[label]()
        spent[label] += _timing.now(device) - start
        return times_of_turn

    every = {label: partial(timed, label) for label in turns}
    start = _timing.now(device)
    done = list(_timing.rounds(every, least))
    left = max(seconds - (_timing.now(device) - start), CHEAP_SHARE * seconds)
    costs = {label: spent[label] / least * (most - least) for label in sorted(turns, key=lambda label: spent[label])}
    cheap = [label for label, total in zip(costs, accumulate(costs.values()), strict=True) if total <= left]
    done += _timing.rounds({label: every[label] for label in turns if label in cheap}, most - least)
    for of_round in done:
        for label, one in of_round.items():
            times[label].append(one)
    return times


def measure(
    blocks: Sequence[EncoderBlock], chosen: Sequence[BenchmarkMethod], device: torch.device, minutes: float
) -> Iterator[MeasuredStep]:
    """Yield the measurements of all blocks and of a factor's update, with a line of progress for each.

    The update of a dense factor is timed beside the least that it must do.
    """
    told: set[tuple[str, str]] = set()
    start = time.monotonic()
    for position, block in enumerate(blocks):
        left = max(60 * minutes - (time.monotonic() - start), 0.0)
        weight = 0.93 * block.weight / sum(other.weight for other in blocks[position:])
        # At least half of its share, whatever the blocks before it took.
        least = 0.5 * 0.93 * 60 * minutes * block.weight / sum(other.weight for other in blocks)
        for one in measure_block(block, chosen, device, max(weight * left, least)):
            counts = [len(times) for times in one.times.values()]
            rounds = f"{len(counts)} contenders, {min(counts)} to {max(counts)} rounds"
            _progress(start, f"{block.title}, width {one.width}: {rounds}")
            for label, reason in one.left_out.items():
                if (block.name, label) not in told:
                    told.add((block.name, label))
                    _progress(start, f"  {label}: {reason}")
            yield one
    widths = FACTOR_WIDTHS if blocks[0] in BLOCKS else (64, 128)
    for d in widths:
        turns = {
            step_rows.FACTOR: contenders.factor_update(d, device),
            step_rows.FLOOR: contenders.vector_and_outer_product(d, device),
        }
        times = in_rounds(turns, 0.07 * 60 * minutes / len(widths), device)
        _progress(start, f"update of one factor, width {d}")
        yield MeasuredStep(step_rows.FACTOR_BLOCK, d, times)


def _progress(start: float, line: str) -> None:
    print(f"[{time.monotonic() - start:5.0f} s] {line}", flush=True)


def draw(folder: Path) -> str:
    """Draw the picture, and say where it is or why there is none."""
    try:
        from benchmarks import steps_figure
    except ModuleNotFoundError as error:
        return f"No picture: {error.name} is not installed; python -m benchmarks.steps_figure {folder} draws it later"
    return f"Written: {', '.join(str(file) for file in steps_figure.draw(folder))}"


def choose(names: Sequence[str] | None, known: Mapping[str, Chosen]) -> list[Chosen]:
    """Return what has some names; without names all.

    Raises:
        ConfigError: an unknown name.
    """
    for name in names or ():
        if name not in known:
            raise ConfigError(f"models = '{name}': unknown; {did_you_mean(name, known)}")
    return [known[name] for name in names or known]


def layers(options: argparse.Namespace, folder: Path, hardware: str) -> int:
    """Time the optimizers' steps on blocks of layers; return the exit status."""
    blocks = choose(options.models, {block.name: block for block in BLOCKS})
    chosen, out, device = methods(options.optimizers), folder / "steps.csv", torch.device("cpu")
    refuse_unwritable("--out", out)
    if options.quick:
        blocks = [narrowed(block, 4) for block in blocks]
    measured = list(measure(blocks, chosen, device, QUICK_MINUTES if options.quick else MINUTES))
    table = list(step_rows.rows(measured, device, hardware))
    status = publish(out, table, step_rows.summary(table))
    print(draw(folder))
    return status


def whole_models(options: argparse.Namespace, folder: Path, hardware: str) -> int:
    """Time whole models on the GPU; return the exit status."""
    models = choose(options.models, whole_steps.small_models() if options.quick else whole_steps.true_models())
    chosen, out = methods(options.optimizers or whole_steps.LABELS), folder / "whole_steps.csv"
    refuse_unwritable("--out", out)
    minutes = QUICK_MINUTES if options.quick else whole_steps.MINUTES
    table = list(whole_steps.measure(models, chosen, torch.device("cuda"), hardware, 60 * minutes))
    return publish(out, table, whole_steps.summary(table))


def publish(out: Path, table: Sequence[Row] | Sequence[whole_steps.Row], lines: Iterable[str]) -> int:
    """Write a table and print its summary; return the exit status, 1 if an optimizer failed."""
    write_rows(out, table, "benchmarks.steps")
    for line in lines:
        print(line)
    print(f"Written: {out}")
    return int(any((row.note or "").startswith(FAILED) for row in table))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the CSV and the picture; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true", help="time whole models on the GPU")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="some of them (default: all)")
    parser.add_argument(
        "--optimizers",
        nargs="+",
        metavar="LABEL",
        help="files of baselines/, mkor_w4, ... (default: all but those that the field tier alone has; on a GPU "
        f"{', '.join(whole_steps.LABELS)})",
    )
    parser.add_argument("--out", type=Path, help="the folder to write to (default: results/<hardware>/bench)")
    parser.add_argument("--quick", action="store_true", help="narrow layers and half a minute: a trial of the program")

    def work(options: argparse.Namespace) -> int:
        if options.gpu and not torch.cuda.is_available():
            raise ConfigError("--gpu: PyTorch finds no GPU")
        hardware = provenance.hardware_name("cuda" if options.gpu else "cpu")
        folder = options.out or Path("results", hardware, "bench")
        return (whole_models if options.gpu else layers)(options, folder, hardware)

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
