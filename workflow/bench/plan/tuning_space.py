"""Tuning spaces, and the values that trials take from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

Space = Mapping[str, Mapping[str, Sequence[Any]]]
"""A hyperparameter's name, and its values: the two ends of a ``log`` or ``linear`` range, or ``choices``."""

_DIGITS: Final = 3
"""Significant digits of a trial's value: more would suggest a precision that a few trials do not have."""


def trial_values(space: Space, trials: int) -> list[dict[str, Any]]:
    """Return the values of ``trials`` trials: an even grid that includes both ends; one trial takes the middle.

    ``log`` is even in the logarithm.
    """
    ((name, interval),) = space.items()  # the schema allows one hyperparameter
    shares = [index / (trials - 1) for index in range(trials)] if trials > 1 else [0.5]
    return [{name: _value_at(interval, share)} for share in shares]


def _value_at(interval: Mapping[str, Sequence[Any]], share: float) -> Any:
    """Return the value at a share in [0, 1] of the way through an interval."""
    ((kind, values),) = interval.items()
    if kind == "choices":
        return values[min(int(share * len(values)), len(values) - 1)]
    low, high = values
    if kind == "log":
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return float(f"{value:.{_DIGITS}g}")
