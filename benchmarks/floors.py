"""The least time of each piece of a step: the bytes that it must move and the operations that it must do.

``python -m benchmarks.floors`` measures this machine's memory bandwidth and its rate of matrix products, and prints the
floors of BERT-Large's layers and, beside what ``steps.csv`` says was reached, those of one encoder layer. ``--page
docs/performance.md`` writes both tables into the page.

The formulas are those of `workflow.bench.probes._costs`. No program that does these operations is faster than a floor,
unless tensors stay in a cache between them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd
import torch

from benchmarks.step_rows import ADAMW, FACTOR, FACTOR_BLOCK, SGD
from workflow.bench.probes import _costs, _timing
from workflow.bench.probes._costs import CostedLayer, LayerCost, MachineModel
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError
from workflow.bench.support.pages import fill

TOKENS: Final = 4096

H100: Final = MachineModel("H100 (3 TB/s, TF32 at 400 TFLOP/s)", 3.0e12, 4.0e14)
"""Round numbers below the data sheet's, for computing without a GPU."""

Piece = Callable[[CostedLayer], Sequence[LayerCost]]
"""A layer's costs, of works that follow one another."""

PIECES: Final[Mapping[str, Piece]] = {
    "SGD with momentum": lambda layer: [_costs.sgd(layer)],
    "AdamW": lambda layer: [_costs.adamw(layer)],
    "capture of means": lambda layer: [_costs.capture_means(layer, TOKENS)],
    "dense factors' updates": _costs.both_updates,
    "windowed factors' updates, w = 16": lambda layer: _costs.both_updates(layer, 16),
    "preconditioning, dense": lambda layer: [_costs.precondition_dense(layer)],
    "preconditioning, w = 16": lambda layer: [_costs.precondition_windowed(layer, 16)],
    "preconditioning, w = 4": lambda layer: [_costs.precondition_windowed(layer, 4)],
    "preconditioning, Eva": lambda layer: [_costs.precondition_eva(layer)],
    "preconditioning, KAISA": lambda layer: [_costs.precondition_kaisa(layer)],
    "capture of moments": lambda layer: [_costs.capture_moments(layer, TOKENS)],
    "KAISA's decompositions": lambda layer: [_costs.decompose_kaisa(layer)],
}


def costs_of(piece: Piece, layers: Iterable[CostedLayer]) -> list[LayerCost]:
    """Return the costs of a piece in some layers."""
    return [cost for layer in layers for cost in piece(layer)]


def floors_table(machines: Sequence[MachineModel]) -> Iterator[str]:
    """Yield a Markdown table of the pieces' costs in BERT-Large and their floors."""
    yield "| piece, all 146 layers | GFLOP | GB |" + "".join(f" ms, {machine.name} |" for machine in machines)
    yield "|---|---|---|" + "---|" * len(machines)
    for name, piece in PIECES.items():
        costs = costs_of(piece, _costs.BERT_LARGE)
        operations, size = sum(cost.operations for cost in costs) / 1e9, sum(cost.bytes for cost in costs) / 1e9
        times = "".join(f" {_costs.least_ms(costs, machine):.2f} |" for machine in machines)
        yield f"| {name} | {operations:,.1f} | {size:.2f} |{times}"


PERIOD: Final = 10


def step_costs(layers: Sequence[CostedLayer]) -> dict[str, tuple[str, list[LayerCost]]]:
    """Return names and costs of whole steps by the labels of `benchmarks.steps`, amortized over `PERIOD`."""
    base = costs_of(PIECES["SGD with momentum"], layers)
    costs = {
        SGD: ("SGD with momentum, foreach", base),
        ADAMW: ("AdamW, fused", costs_of(PIECES["AdamW"], layers)),
        "eva": ("Eva", costs_of(PIECES["preconditioning, Eva"], layers) + base),
    }
    for window in (None, 4, 16, 64):
        updates = [cost.times(1 / PERIOD) for layer in layers for cost in _costs.both_updates(layer, window)]
        plain = [
            _costs.precondition_dense(layer) if window is None else _costs.precondition_windowed(layer, window)
            for layer in layers
        ]
        label, name = ("mkor", "MKOR, dense") if window is None else (f"mkor_w{window}", f"MKOR, window {window}")
        costs[label] = (name, updates + plain + base)
    return costs


def reached_table(steps: pd.DataFrame, machine: MachineModel) -> Iterator[str]:
    """Yield a Markdown table of the steps in ``steps.csv`` beside their floors; both include the base's step."""
    yield f"| step, amortized over 10 | floor, ms, {machine.name} | reached, ms | ratio |"
    yield "|---|---|---|---|"
    block = steps[(steps["block"] == "bert") & (steps["width"] == 1024) & (steps["period"] == PERIOD)].set_index(
        "optimizer"
    )
    for label, (name, costs) in step_costs(_costs.ENCODER_LAYER).items():
        if label in block.index:
            yield _beside(name, _costs.least_ms(costs, machine), float(block["ms"][label]))
    factor = steps[(steps["block"] == FACTOR_BLOCK) & (steps["optimizer"] == FACTOR) & (steps["period"] == 1)]
    for width, ms in zip(factor["width"].to_list(), factor["ms"].to_list(), strict=True):
        yield _beside(f"update of one dense factor, d = {width}", _costs.factor_update(width).milliseconds(machine), ms)


def _beside(name: str, floor: float, reached: float) -> str:
    if math.isnan(reached):
        return f"| {name} | {floor:.2f} | not timed | |"
    return f"| {name} | {floor:.2f} | {reached:.2f} | {reached / floor:.1f} |"


def this_machine(device: torch.device, numbers: int = 2**26, width: int | None = None) -> MachineModel:
    """Measure the bandwidth of a copy and the rate of float32 (on a GPU TF32) products; the best of five each."""
    source = torch.ones(numbers, device=device)
    target = torch.empty_like(source)
    side = width or (8192 if device.type == "cuda" else 2048)
    left, right = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    copies = [_timing.milliseconds(lambda: target.copy_(source), device) for _ in range(6)][1:]
    products = [_timing.milliseconds(lambda: left @ right, device) for _ in range(6)][1:]
    torch.set_float32_matmul_precision(before)
    bandwidth = 2 * _costs.FLOAT * numbers / (min(copies) / 1000)
    rate = 2 * side**3 / (min(products) / 1000)
    return MachineModel(f"here ({bandwidth / 1e9:.0f} GB/s, {rate / 1e9:.0f} GFLOP/s)", bandwidth, rate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a page; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.floors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=Path, help="steps.csv of this machine (default: no second table)")
    parser.add_argument("--gpu", action="store_true", help="measure the GPU's peaks instead of the CPU's")
    parser.add_argument("--page", type=Path, help="the page to write the tables into")

    def work(options: argparse.Namespace) -> None:
        if options.gpu and not torch.cuda.is_available():
            raise ConfigError("--gpu: PyTorch finds no GPU")
        here = this_machine(torch.device("cuda" if options.gpu else "cpu"))
        tables = {"floors": list(floors_table([H100, here]))}
        if options.steps is not None:
            tables["reached"] = list(reached_table(pd.read_csv(options.steps), here))
        if options.page is None:
            print("\n\n".join("\n".join(lines) for lines in tables.values()))
            return
        for name, lines in tables.items():
            fill(options.page, name, lines)

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
