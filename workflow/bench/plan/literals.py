"""Constants read from a module's source, without importing the module."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any

from workflow.bench.support.config import ROOT
from workflow.bench.support.source_code import located


def read_literals(file: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the values of those of ``names`` that a module assigns at its top level.

    A value is a literal, or a name that the module imports from one of the project's, where it is a literal.

    Raises:
        ValueError: the value of such a name is neither.
    """
    values: dict[str, Any] = {}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for node in body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id in names:
            try:
                values[target.id] = _value(node.value, body)
            except (KeyError, ValueError):
                raise ValueError(f"{file.name}: {target.id} must be a literal.") from None
    return values


def _value(node: ast.expr, body: Collection[ast.stmt]) -> Any:
    """Return the value of an expression of a module with this ``body``.

    Raises:
        KeyError, ValueError: the expression is not a literal, nor a name that is imported from where it is one.
    """
    origins = {
        alias.asname or alias.name: (imported.module, alias.name)
        for imported in body
        if isinstance(imported, ast.ImportFrom) and imported.module
        for alias in imported.names
    }
    if isinstance(node, ast.Name) and node.id in origins:
        module, name = origins[node.id]
        if file := located(module, ROOT):
            return read_literals(file, {name})[name]
    return ast.literal_eval(node)
