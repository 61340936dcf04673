"""Numbers of any size and sign for property tests, and a time limit, which turns a hang into a failure."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import strategies as st

_POWERS = st.builds(
    lambda sign, digit, power: sign * digit * 10**power,
    st.sampled_from([1, -1]),
    st.integers(1, 9),
    st.integers(0, 4500),
)
_REALS = st.builds(
    lambda sign, digits, power: float(f"{sign}{digits}e{power}"),
    st.sampled_from(["", "-"]),
    st.integers(1, 99),
    st.integers(-330, 310),
)
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.integers(-3, 40),
    st.integers(-(2**70), 2**70),
    _POWERS,
    _REALS,
    st.floats(),
    st.sampled_from([0, -1, 0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan"), 5e-324, True, False, None, "1"]),
)
"""Values that a program may give for a number."""

WRITTEN: st.SearchStrategy[str] = st.one_of(
    NUMBERS.map(lambda value: str(value) if not isinstance(value, int) or abs(value) < 10**4000 else "9" * 5000),
    st.sampled_from(
        ["1e400", "-1e400", "1e-400", ".inf", "-.inf", ".nan", "1:30:00", "1_000", "010", "0x10", "0b1", "1e", "1e3"]
    ),
    st.sampled_from(["yes", "off", "null", "~", "", "2026-01-01", "١٢", "１", "½", "1,5", "1 2", "[]", "{}", "[1, 2]"]),
)
"""What a user may write in a YAML file or on a command line where a number is due."""


class TooSlowError(BaseException):
    """Raised when a time limit is over. It is no `Exception`, so that the tested code does not catch it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` if the block takes longer."""

    def too_slow(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, too_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
