"""Numbers, estimates, sentences and the names of optimizers as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from workflow.bench.analysis.estimates import Estimate

_PAPER_NAMES: Final[Mapping[str, str]] = {
    "sgd": "SGD",
    "lamb": "LAMB",
    "kaisa": "KAISA",
    "kaisa_no_clip": "KAISA",
    "eva": "Eva",
    "hylo": "HyLo",
    "mkor": "MKOR",
    "mkor_bfloat16": "MKOR",
    "mkor_released": "MKOR",
    "mkor_h": "MKOR-H",
}
"""The paper has one MKOR, which is compared with each of our update rules, and one KAISA."""

FEW: Final = 3
"""The most runs that a table lists in place of an interval."""


def integer_ranges(numbers: Iterable[float]) -> str:
    """Return whole numbers as ranges: ``[0, 1, 2, 5]`` gives ``0-2, 5``."""
    ordered = enumerate(sorted({int(number) for number in numbers}))
    # Consecutive numbers are equally far from their places in the order.
    ranges = [[number for _, number in run] for _, run in groupby(ordered, lambda place: place[1] - place[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges)


def named_seeds(seeds: Iterable[float]) -> str:
    """Return seeds with their word: ``seed 0``, ``seeds 0-2, 5``."""
    distinct = {int(seed) for seed in seeds}
    return f"seed{'' if len(distinct) == 1 else 's'} {integer_ranges(distinct)}"


def number(value: float, digits: int = 3, *, infinity: str = "not reached") -> str:
    """Return a number with significant digits, as tables show it.

    ``infinity`` is the text for infinity, by default that of a time to a target; NaN gives nothing.
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return infinity if value == math.inf else "0"
    # 1234 and not 1.23e+03: numbers of steps and seconds are read as they are.
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"


def estimated(estimate: Estimate | None, runs: Sequence[float] = ()) -> str:
    """Return the text of an estimate, with its interval if it has one; empty without an estimate.

    runs: the values behind it. Two or three stand in parentheses in place of an interval, which is so wide that it says
    less than they do.
    """
    if estimate is None:
        return ""
    if estimate.has_interval and 2 <= len(runs) <= FEW:
        return f"{number(estimate.value)} ({', '.join(map(number, runs))})"
    interval = f" [{number(estimate.low)}, {number(estimate.high)}]" if estimate.has_interval else ""
    return f"{number(estimate.value)}{interval}"


def in_words(parts: Iterable[str]) -> str:
    """Return parts as a list in words: ``a, b and c``."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def paper_name(label: str) -> str | None:
    """Return the paper's name of the optimizer with this label, or None if the paper has no such optimizer.

    A number of steps at the end of a label does not count: ``mkor_released_600`` is ``MKOR``.
    """
    name, _, steps = label.rpartition("_")
    return _PAPER_NAMES.get(name if steps.isdigit() else label)


def signed(per_cent: float) -> str:
    """Return a change in per cent with its sign, such as ``−27 %``; an infinite one is that of a run that diverged."""
    if math.isinf(per_cent):
        return "diverged"
    digits = 1 if abs(per_cent) < 10 else 0
    return f"{per_cent:+.{digits}f} %".replace("-", "\u2212")


def bound(value: float) -> str:
    """Return a number that may be infinite, such as a bound of an interval or a difference to a run that diverged."""
    return f"{'-' if value < 0 else ''}infinite" if math.isinf(value) else number(value)
