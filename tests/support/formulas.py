"""Formulas of the tables of costs in docs, as numbers."""

from __future__ import annotations

import re


def value(formula: str, **letters: int) -> int:
    """Evaluate a cell, such as ``2mn(m + n)``, for the values of its letters."""
    powers = formula.replace("²", "**2").replace("³", "**3")
    return eval(re.sub(r"(?<=[\w)])(?=[A-Za-z(])", "*", powers), {}, letters)
