"""Printed numbers: the range that one stands for, and comparison with a number derived from others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final

VERDICTS: Final = {
    "yes": "the implied number rounds to the stated one",
    "within rounding": "unrounded inputs could give the stated number",
    "no, cut off": "the stated number is the implied one, truncated instead of rounded",
    "no": "no rounding explains the stated number",
}
"""Values of the column ``agrees`` and their meaning."""


@dataclass(frozen=True)
class Printed:
    """A number as printed, which stands for all numbers that round to it; a whole number is exact."""

    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)

    @property
    def digits(self) -> int:
        """Number of digits after the decimal point."""
        return len(self.text.partition(".")[2])

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number that round to it."""
        half = 0.5 * 10**-self.digits if self.digits else 0.0
        return self.value - half, self.value + half


@dataclass(frozen=True)
class Derived:
    """A number computed from printed ones, and its range over all inputs that round to them."""

    value: float
    low: float
    high: float

    def shown(self, digits: int) -> tuple[str, str]:
        """Return the texts of the number and of its range, with this many digits."""
        return f"{self.value:.{digits}f}", f"[{self.low:.{digits}f}, {self.high:.{digits}f}]"


def derive(formula: Callable[..., float], *inputs: Printed) -> Derived:
    """Return ``formula`` of printed numbers, with its range over their ranges.

    The formula must be monotonic in each number, so that the corners of their ranges bound it.
    """
    corners = [formula(*corner) for corner in product(*(printed.range for printed in inputs))]
    return Derived(formula(*(printed.value for printed in inputs)), min(corners), max(corners))


def compare(stated: Printed, implied: Derived) -> str:
    """Return which of `VERDICTS` a stated number gets."""
    unit = 10**stated.digits
    # Ties are rounded up, as by hand. 1e-9 is for ties that binary fractions miss, such as (0.8022 + 0.8023) / 2.
    if math.isclose(math.floor(implied.value * unit + 0.5 + 1e-9), stated.value * unit):
        return "yes"
    low, high = stated.range
    # Ranges that only touch have no number in common, since the number between them rounds up into one of them.
    if min(high, implied.high) - max(low, implied.low) > 1e-9:
        return "within rounding"
    return "no, cut off" if math.isclose(math.floor(implied.value * unit + 1e-9), stated.value * unit) else "no"


def compare_bound(stated: Printed, implied: Derived) -> str:
    """Return which of `VERDICTS` an upper bound gets."""
    return "yes" if implied.value <= stated.range[1] else "within rounding" if implied.low <= stated.range[1] else "no"
