"""The optimizers that need the fewest iterations or the least time on each workload of the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
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


def own_base(rows: Iterable[Mapping[str, str]], experiment: str) -> str:
    """Return the base that most methods of an experiment are compared with: some wrap each other.

    rows: those of the table `FIELD`.
    """
    bases = sorted(row["base"] for row in rows if row["experiment"] == experiment)
    return max(bases, key=bases.count)


def leaders(
    rows: Sequence[Mapping[str, str]], quantity: str = "steps", most: int = _FIRST
) -> dict[tuple[str, str], Sequence[Leader]]:
    """Return the leaders over each experiment's `own_base`, by both, the first with the lowest ratio.

    rows: those of the table `FIELD`; quantity: ``steps`` or ``time``; most: of an experiment.
    """
    bases = {experiment: own_base(rows, experiment) for experiment in dict.fromkeys(row["experiment"] for row in rows)}
    found: dict[tuple[str, str], list[tuple[float, Leader]]] = {}
    for row in rows:
        key, ratio = (row["experiment"], row["base"]), float(row[f"{quantity} / base"] or "nan")
        if key in bases.items() and math.isfinite(ratio):
            leader = Leader(row["optimizer"], _text(row, "steps / base"), _text(row, "time / base"))
            found.setdefault(key, []).append((ratio, leader))
    return {key: [leader for _, leader in sorted(of, key=itemgetter(0))[:most]] for key, of in found.items()}


def _text(row: Mapping[str, str], name: str) -> str:
    value, low, high = (row[key] for key in (name, f"{name}, low", f"{name}, high"))
    if not value:
        return ""
    return number(float(value)) + (f" [{number(float(low))}, {number(float(high))}]" if low and high else "")
