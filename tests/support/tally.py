"""What tests of faults counted; ``tests/conftest.py`` prints it at the end."""

from __future__ import annotations

from collections import Counter

counted: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Add to a figure, which is shown even if it is 0."""
    counted[what] += number
