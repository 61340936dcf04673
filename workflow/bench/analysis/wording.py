"""Numbers as text: significant digits, and ranges of integers."""

from __future__ import annotations

import math
from collections.abc import Iterable


def spans(numbers: Iterable[float]) -> str:
    """Whole numbers as ranges: ``[0, 1, 2, 5]`` gives ``0-2, 5``."""
    ordered = sorted({int(number) for number in numbers})
    parts: list[str] = []
    start = 0
    for index, number in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != number + 1:
            first = ordered[start]
            parts.append(str(number) if first == number else f"{first}-{number}")
            start = index + 1
    return ", ".join(parts)


def number(value: float, digits: int = 3) -> str:
    """A number with ``digits`` significant digits, as tables show it; infinity as ``not reached``."""
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "not reached" if value > 0 else "0"
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
