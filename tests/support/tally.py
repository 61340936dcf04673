"""Counts of what the fault tests tried and of what went wrong. `tests/conftest.py` adds them up and prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

KILLS = "kill -9, moments tried: {}"
"""The name of a method's count of kills."""

LEAST: Mapping[str, int] = {
    "configurations": 1000,
    "damaged files": 500,
    "library misuses": 200,
    "shell characters: strings tried": 500,
}
"""Counts that ``make test-faults`` must reach, besides `LEAST_KILLS` for every optimizer."""
LEAST_KILLS = 20
NONE = ("bytes lost", "tracebacks", "shell characters: commands run")
"""Counts that must be 0; tests count them with 0 too, so that a test that is left out is noticed."""

counted: Counter[str] = Counter()
"""The counts of this process since the last test that was reported."""


def count(what: str, number: int = 1) -> None:
    """Add to a counter, which is printed even if it is 0."""
    counted[what] += number


def shortfalls(total: Mapping[str, int], methods: tuple[str, ...]) -> list[str]:
    """Return one line for each count that is too small, too large or missing after all fault tests have run."""
    least = {**{KILLS.format(method): LEAST_KILLS for method in methods}, **LEAST}
    return [
        *(f"{what}: {total.get(what, 0)}, not {n} or more" for what, n in least.items() if total.get(what, 0) < n),
        *(f"{what}: {total.get(what, 'not counted')}, not 0" for what in NONE if total.get(what) != 0),
    ]
