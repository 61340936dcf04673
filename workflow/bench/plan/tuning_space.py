"""Tuning spaces: the same trials for the same space, always."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

Space = Mapping[str, Mapping[str, Sequence[Any]]]

#: Bases of the Halton sequence, one a dimension.
_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19)
_DIGITS: Final = 3
"""Significant digits of a trial's value: more would suggest a precision that a few trials do not have."""


def trial_values(space: Space, trials: int) -> list[dict[str, Any]]:
    """Return ``trials`` points of a space, spread evenly and the same at every call.

    One dimension is an even grid that holds both ends; several are a Halton sequence (Halton 1960), which
    covers each dimension evenly at any number of points.  ``log`` is even in the logarithm.

    Raises ValueError for more than 8 dimensions.
    """
    if len(space) > len(_PRIMES):
        raise ValueError(f"a space of {len(space)} hyperparameters must have at most {len(_PRIMES)}.")
    if len(space) == 1:
        points = [[index / (trials - 1)] for index in range(trials)] if trials > 1 else [[0.5]]
    else:
        points = [[_radical_inverse(index, base) for base in _PRIMES[: len(space)]] for index in range(1, trials + 1)]
    return [
        {name: _at(ranges, share) for (name, ranges), share in zip(space.items(), point, strict=True)}
        for point in points
    ]


def _radical_inverse(index: int, base: int) -> float:
    """Return the digits of ``index`` mirrored at the point, in [0, 1)."""
    value, scale = 0.0, 1.0
    while index:
        scale /= base
        index, digit = divmod(index, base)
        value += digit * scale
    return value


def _at(ranges: Mapping[str, Sequence[Any]], share: float) -> Any:
    ((kind, values),) = ranges.items()
    if kind == "choices":
        return values[min(int(share * len(values)), len(values) - 1)]
    low, high = values
    if kind == "log":
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return float(f"{value:.{_DIGITS}g}")
