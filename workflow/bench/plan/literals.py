"""Constants read from a module's source, without importing the module."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any


def read_literals(file: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the values of those of ``names`` that a module assigns at its top level.

    Raises:
        ValueError: the value of such a name is not a literal.
    """
    values: dict[str, Any] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id in names:
            try:
                values[target.id] = ast.literal_eval(node.value)
            except ValueError:
                raise ValueError(f"{file.name}: {target.id} must be a literal.") from None
    return values
