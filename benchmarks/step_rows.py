"""The rows of ``steps.csv``: medians and ratios within rounds, computed from the times of `benchmarks.steps`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Any, Final, NamedTuple

import torch

from benchmarks.contenders import Times
from workflow.bench.analysis.estimates import Estimate, estimate, paired_ratio
from workflow.bench.analysis.fits import power_law

PERIODS: Final = (1, 10)
SGD: Final = "sgd_foreach"
CONTROL: Final = "sgd_foreach_again"
ADAMW: Final = "adamw_fused"
FORWARD_BACKWARD: Final = "forward_backward"
PRODUCTS: Final = "two_products"
FACTOR: Final = "mkor_factor_update"
FLOOR: Final = "mv_and_addr"
YARDSTICKS: Final = (FORWARD_BACKWARD, PRODUCTS, FLOOR)
"""Contenders that are no optimizers and have no period."""
REFERENCE: Final = {CONTROL: SGD, "mkor": PRODUCTS, FACTOR: FLOOR}
"""The contender that another one is set beside in ``of_reference``."""
FACTOR_BLOCK: Final = "factor"

Rounds = Mapping[str, Sequence[Times]]
"""Each contender's times by round."""


class Row(NamedTuple):
    """One optimizer on one block at one width and period; NaN where there is nothing to compare with."""

    block: str
    width: int
    optimizer: str
    period: int
    rounds: int
    update_ms: float
    plain_ms: float
    ms: float
    ms_low: float
    ms_high: float
    of_sgd: float
    of_sgd_low: float
    of_sgd_high: float
    of_adamw: float
    of_adamw_low: float
    of_adamw_high: float
    of_forward_backward: float
    of_forward_backward_low: float
    of_forward_backward_high: float
    reference: str | None
    of_reference: float
    of_reference_low: float
    of_reference_high: float
    slope: float
    state_bytes: int | None
    note: str | None
    device: str
    hardware: str
    threads: int
    torch: str


@dataclass
class MeasuredStep:
    """What was measured of a block at a width."""

    block: str
    width: int
    times: Rounds
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Optimizers without times, and the reasons."""


def rows(measured: Sequence[MeasuredStep], device: torch.device, hardware: str) -> Iterator[Row]:
    """Yield the rows of all measurements."""
    for one in measured:
        for label, period in product((*one.times, *one.left_out), PERIODS):
            if label in YARDSTICKS and period != PERIODS[0]:
                continue
            times, reference = one.times.get(label, []), REFERENCE.get(label)
            ms = [each.amortized(period) for each in times]
            beside = {"sgd": SGD, "adamw": ADAMW, "forward_backward": FORWARD_BACKWARD, "reference": reference}
            ratios: dict[str, Any] = {}
            for name, other in beside.items():
                others = [each.amortized(period) for each in one.times.get(other or "", ())]
                ratio = paired_ratio(dict(enumerate(ms)), dict(enumerate(others))) if ms and others else None
                ratios |= columns(f"of_{name}", ratio)
            yield Row(
                block=one.block,
                width=one.width,
                optimizer=label,
                period=period,
                rounds=len(ms),
                update_ms=median(each.update for each in times) if times else math.nan,
                plain_ms=median(each.plain for each in times) if times else math.nan,
                **columns("ms", estimate(ms) if ms else None),
                **ratios,
                reference=reference if reference in one.times else None,
                slope=_slope(measured, one, label, period),
                state_bytes=one.state_bytes.get(label),
                note=one.left_out.get(label),
                device=device.type,
                hardware=hardware,
                threads=torch.get_num_threads(),
                torch=str(torch.__version__),
            )


def columns(name: str, value: Estimate | None) -> dict[str, Any]:
    """Return a value and its interval as the columns ``name``, ``name_low`` and ``name_high``."""
    if value is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def quiet_line(where: str, ratio: float, low: float, high: float) -> str:
    """Return what a control tells: whether the ratio of a contender to itself, with its interval, includes 1."""
    interval = f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
    if low <= 1 <= high:
        return f"The control passed: the ratio of {where} to itself is {interval}."
    return f"The machine was not quiet: the ratio of {where} to itself is {interval}."


def _slope(measured: Sequence[MeasuredStep], one: MeasuredStep, label: str, period: int) -> float:
    """Return the slope over all widths of a block in the row of the largest one that has times; NaN in the others."""
    of_block = [each for each in measured if each.block == one.block and each.times.get(label)]
    if len(of_block) < 2 or one.width != max(each.width for each in of_block):
        return math.nan
    middle = [median(times.amortized(period) for times in each.times[label]) for each in of_block]
    return power_law([each.width for each in of_block], middle).exponent


def summary(table: Sequence[Row]) -> Iterator[str]:
    """Yield the lines that tell the result: each block at its true width and the longest period, and the control."""
    for block in dict.fromkeys(row.block for row in table):
        widths = sorted({row.width for row in table if row.block == block})
        for width in widths if block == FACTOR_BLOCK else widths[-1:]:
            shown = [row for row in table if (row.block, row.width, row.period) == (block, width, PERIODS[-1])]
            ratios = ", its ratio to SGD, to AdamW, to forward and backward, slope over the width"
            yield f"{block}, width {width}: ms a step at period {PERIODS[-1]}{'' if block == FACTOR_BLOCK else ratios}"
            yield from map(_line, shown)
    for row in table:
        if row.optimizer == CONTROL and row.period == PERIODS[0]:
            where = f"SGD in block {row.block} at width {row.width}"
            yield quiet_line(where, row.of_reference, row.of_reference_low, row.of_reference_high)


def _line(row: Row) -> str:
    if row.note:
        return f"  {row.optimizer:18} {row.note}"
    line = f"  {row.optimizer:18} {row.ms:9.3f}"
    if row.block != FACTOR_BLOCK:
        line += f" {row.of_sgd:9.2f} {row.of_adamw:9.2f} {row.of_forward_backward:9.3f} {row.slope:6.2f}"
    return line if row.reference is None else f"{line}   {row.of_reference:.2f} x {row.reference}"
