"""The data sets: where the files lie, how they are read and checked, and how batches are drawn from them.

Importing this package imports no torch.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


def module_of(dataset: str) -> str:
    """Return the dotted name of the module that reads a data set and whose ``version()`` is that of the data.

    Raises:
        ValueError: no module lists this data set.
    """
    modules = _modules()
    if dataset not in modules:
        raise ValueError(f"{dataset=} must be one of {', '.join(sorted(modules))}.")
    return modules[dataset]


@cache
def _modules() -> dict[str, str]:
    """Return {data set: dotted name of its module}, such as ``{"cifar10": "workflow.bench.data.cifar"}``.

    A module lists its data sets in the literal ``DATASETS``, a tuple or the keys of a mapping. It is read from the
    source, since importing every module of the folder would import torch.
    """
    found = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "DATASETS":
                literal = statement.value
                names = literal.keys if isinstance(literal, ast.Dict) else getattr(literal, "elts", [])
                found.update({ast.literal_eval(name): f"{__name__}.{file.stem}" for name in names if name})
    return found
