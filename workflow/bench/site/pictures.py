"""Pictures of intervals: where the measured values of a claim lie, seen from its bound and the published value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workflow.bench.analysis.wording import number

WIDTH: Final = 100.0
"""The picture's width: positions are percentages of it, so that marks have one size however wide it is drawn."""
_MARGIN: Final = 5.0
"""Room at both ends for markers and arrows."""
_PADDING: Final = 0.06
"""Room between the outermost value and the margin, as a share of the axis."""


@dataclass(frozen=True)
class Line:
    """One part of a claim: its text, and the positions of its marks; None for a mark that it lacks."""

    name: str
    text: str
    verdict: str
    published_text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None
    bound: float | None = None
    """Where the claim begins to hold: the threshold, or the end of its margin in a claim of no worse."""
    holds_above: bool = False
    """Whether the claim holds to the right of the bound."""
    beyond: bool = False
    """Whether the value is infinite, and drawn at the right edge."""


def lines(parts: Iterable[Mapping[str, str]]) -> list[Line]:
    """Return the lines of a claim's picture, on one axis, from its rows of ``claim_parts.csv``."""
    rows = list(parts)
    keys = ("value", "low", "high", "published", "bound")
    numbers = [{key: float(row[key]) if row[key] else None for key in keys} for row in rows]
    axis = Axis.around(
        [value for row in numbers for value in row.values() if value is not None],
        logarithmic=all(row["is_ratio"] == "True" for row in rows if row["value"]),
    )
    return [_line(row, values, axis) for row, values in zip(rows, numbers, strict=True)]


def _line(row: Mapping[str, str], values: Mapping[str, float | None], axis: Axis) -> Line:
    value, low, high, published = (values[key] for key in ("value", "low", "high", "published"))
    text = "" if value is None else number(value, infinity="infinite")
    if low is None or high is None or low >= high:
        low = high = None  # a range of one value is no interval
    else:
        text += f" [{number(low)}, {number(high, infinity='infinite')}]"
    return Line(
        name=row["part"],
        text=text or row["verdict"],
        verdict=row["verdict"],
        published_text="" if published is None else number(published),
        value=axis.place(value),
        low=axis.place(low),
        high=axis.place(high),
        published=axis.place(published),
        bound=axis.place(values["bound"]),
        holds_above=row["comparison"].startswith(">"),
        beyond=value is not None and math.isinf(value),
    )


@dataclass(frozen=True)
class Axis:
    """A horizontal axis over ``[first, last]``, of logarithms where ``logarithmic``."""

    first: float
    last: float
    logarithmic: bool

    @classmethod
    def around(cls, values: Sequence[float], *, logarithmic: bool) -> Axis:
        """Return an axis that shows all finite values; it is linear if one of them is not positive."""
        finite = [value for value in values if math.isfinite(value)]
        logarithmic = logarithmic and bool(finite) and min(finite) > 0
        scaled = [math.log(value) if logarithmic else value for value in finite] or [0.0]
        room = _PADDING * (max(scaled) - min(scaled)) or 1.0
        return cls(min(scaled) - room, max(scaled) + room, logarithmic)

    def place(self, value: float | None) -> float | None:
        """Return the position of a value; an infinite one is at the edge, and None has none."""
        if value is None:
            return None
        if math.isinf(value):
            return WIDTH - _MARGIN if value > 0 else _MARGIN
        scaled = math.log(value) if self.logarithmic else value
        share = (scaled - self.first) / (self.last - self.first)
        return round(_MARGIN + share * (WIDTH - 2 * _MARGIN), 1)
