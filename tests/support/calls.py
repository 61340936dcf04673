"""The work of a function as its number of calls, which a slow or busy machine does not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from cProfile import Profile
from pstats import Stats


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Count calls of Python and built-in functions in the block; the function it gives tells how many there were.

    A million calls take between 0.2 and 0.7 seconds.
    """
    profile = Profile()
    with profile:
        yield lambda: Stats(profile).total_calls  # type: ignore[attr-defined]
