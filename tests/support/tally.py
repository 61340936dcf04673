"""Counters of the fault tests; ``tests/conftest.py`` prints them at the end."""

from __future__ import annotations

from collections import Counter

counted: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Add to a counter, which is printed even if it is 0."""
    counted[what] += number
