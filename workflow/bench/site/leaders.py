"""The optimizers that need the fewest iterations on each workload of the field, for the site's first page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workflow.bench.analysis.wording import number

FIELD: Final = "field_results"
"""The table that compares every method of the field with the base of its experiment."""
_FIRST: Final = 5


@dataclass(frozen=True)
class Leader:
    """An optimizer, and its iterations and its time to the targets over the base's, as text with intervals."""

    optimizer: str
    iterations: str
    time: str


def leaders(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], Sequence[Leader]]:
    """Return the leaders by experiment and base optimizer, the first with the fewest iterations.

    Of an experiment these are the methods over the base that most of them have: some wrap each other.

    rows: those of the table `FIELD`.
    """
    found: dict[tuple[str, str], list[tuple[float, Leader]]] = {}
    for row in rows:
        ratio = float(row["steps / base"] or "nan")
        if math.isfinite(ratio):
            leader = Leader(row["optimizer"], _text(row, "steps / base"), _text(row, "time / base"))
            found.setdefault((row["experiment"], row["base"]), []).append((ratio, leader))
    largest: dict[str, tuple[str, str]] = {}
    for key in sorted(found, key=lambda key: len(found[key])):
        largest[key[0]] = key
    return {
        key: [leader for _, leader in sorted(of, key=lambda pair: pair[0])[:_FIRST]]
        for key, of in found.items()
        if key in largest.values()
    }


def _text(row: Mapping[str, str], name: str) -> str:
    value, low, high = (row[key] for key in (name, f"{name}, low", f"{name}, high"))
    if not value:
        return ""
    return number(float(value)) + (f" [{number(float(low))}, {number(float(high))}]" if low and high else "")
