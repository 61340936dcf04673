"""What a run of the tests did not check, in one line, from pytest's own reasons of skipped tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

_LONGEST: Final = 90
_MOST: Final = 8
"""The most reasons that are named."""


def reason_of(report: Any) -> str:
    """Return the reason of a skipped test or file."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(reason).removeprefix("Skipped: ")


def unchecked(skipped: Iterable[Any], declared: str, apart: Sequence[str] = ()) -> str:
    """Return the line; an empty text if everything was checked.

    skipped: pytest's reports of skipped tests and files.
    declared: a part of the names of tests that are skipped on every machine, by declaration; they are counted together.
    apart: the targets of make whose tests no other target runs.
    """
    counts: Counter[str] = Counter()
    for report in skipped:
        counts["limits that methods declare" if declared in report.nodeid else reason_of(report)] += 1
    parts = [f"{number} x {shortened(reason)}" for reason, number in counts.most_common(_MOST)]
    if rest := sum(counts.values()) - sum(number for _, number in counts.most_common(_MOST)):
        parts.append(f"{rest} for other reasons")
    if apart:
        parts.append(f"all of {', '.join(f'make {target}' for target in apart)}")
    return f"not checked: {'; '.join(parts)}" if parts else ""


def shortened(reason: str) -> str:
    """Return a reason on one line, cut if it is long."""
    text = " ".join(reason.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
