"""The progress of a download: a bar on a terminal, a line every ten seconds in a log."""

from __future__ import annotations

import sys
import time
from typing import Final, Self

from tqdm import tqdm

_SECONDS: Final = 10.0
"""Seconds between two lines in a log."""


class Meter:
    """Shows the bytes of a file as they arrive, from ``start`` to ``total``, None if the size is not known."""

    def __init__(self, name: str, start: int, total: int | None) -> None:
        self._name, self._total, self._arrived = name, total, start
        self._shown = time.monotonic()
        self._bar = tqdm(
            desc=name, initial=start, total=total, unit="B", unit_scale=True, disable=not sys.stderr.isatty()
        )
        if start and self._bar.disable:
            self._print("going on from ")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.close()

    def add(self, number: int) -> None:
        """Count bytes that have arrived."""
        self._arrived += number
        self._bar.update(number)
        if self._bar.disable and time.monotonic() - self._shown >= _SECONDS:
            self._print("")

    def _print(self, what: str) -> None:
        self._shown = time.monotonic()
        of = f" of {in_words(self._total)}" if self._total else ""
        print(f"{self._name}: {what}{in_words(self._arrived)}{of}", file=sys.stderr, flush=True)


def in_words(number: int) -> str:
    """Return bytes as text, such as ``84.1 MB``, with decimal prefixes."""
    size, units = float(number), iter(("B", "kB", "MB", "GB"))
    unit = next(units)
    for larger in units:
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
