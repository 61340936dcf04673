"""What the audit says of a property."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """What was found of one property."""

    found: Literal["held", "failed", "not applicable"]
    statement: str = ""
    """What was measured, or the reason for which the property does not apply."""
    reproducer: str = ""
    """A script that ends with the failure; empty unless the property failed."""
    seconds: float = 0.0


def held(statement: str = "") -> Verdict:
    """Return the verdict of a property that holds."""
    return Verdict("held", statement)


def inapplicable(reason: str) -> Verdict:
    """Return the verdict of a property that does not apply."""
    return Verdict("not applicable", reason)
