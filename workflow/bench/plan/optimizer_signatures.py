"""Names and hyperparameters of all optimizers, read from their source files.

Snakemake loads the plan at every start, and importing the optimizers would import torch.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

from workflow.bench.plan.literals import read_literals
from workflow.bench.support.config import ROOT, checked_stem

if TYPE_CHECKING:
    from mkor_core import ranges as ranges
    from mkor_core.ranges import Domain


def _load_ranges() -> ModuleType:
    """Return the module mkor_core.ranges, loaded by path: its package would import torch."""
    spec = importlib.util.spec_from_file_location("mkor_core_ranges", ROOT / "mkor_core" / "ranges.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up annotations there
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    ranges = _load_ranges()

REQUIRED: Final = object()
"""The default of a hyperparameter that has none."""
COMPUTED: Final = object()
"""A default that is neither a literal nor a dtype; running the optimizer's code fills it in."""

_FUNCTIONS: Final = ("optimizer", "optimizer_for")
_ROOT_CLASS: Final = ("mkor_core.method", "Method")
# In an experiment file a dtype is its name: the annotation torch.dtype means text, the default torch.float32 "float32".
_DTYPES: Final = {name: name for name in ("float64", "float32", "bfloat16", "float16")}
_NAMES: Final = {**vars(typing), **vars(ranges), "torch": SimpleNamespace(dtype=str, **_DTYPES)}
"""The names that annotations and defaults of optimizers may use, besides builtins."""


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter: the values that it may take, and its default (`REQUIRED`, `COMPUTED` or a value)."""

    name: str
    domain: Domain
    default: Any = REQUIRED
    details: str = ""
    """The docstring of a method's field."""


@dataclass(frozen=True)
class Signature:
    """An optimizer's hyperparameters, and whether it is first-order or wraps a first-order ``base``."""

    name: str
    order: Literal["first", "second"]
    hyperparameters: Mapping[str, Hyperparameter]
    title: str
    """The first line of its file's docstring."""
    text: str
    """The docstring of its function or class."""


def read_signatures(root: Path = ROOT) -> dict[str, Signature]:
    """Return the signatures of all optimizers in the repository at ``root``, by file name.

    The rules by which files define optimizers are those of the package `baselines`.

    Raises:
        ConfigError: the name of a file is not that of a Python module.
    """
    modules: dict[str, str] = {}
    for package in ("baselines", *(f"baselines.{family}" for family in _constant(root, "FAMILIES"))):
        files = sorted(root.joinpath(*package.split(".")).glob("[!_]*.py"))
        modules |= {name: f"{package}.{name}" for name in (checked_stem(file, "module") for file in files)}
    modules |= _constant(root, "CORE")
    signatures = {name: _read_signature(root, name, module) for name, module in modules.items()}
    return {name: signature for name, signature in signatures.items() if signature is not None}


def base_hyperparameter(signatures: Mapping[str, Signature]) -> Hyperparameter:
    """Return the hyperparameter ``base`` of second-order optimizers: the name of a first-order one."""
    names = sorted(name for name, signature in signatures.items() if signature.order == "first")
    return Hyperparameter(
        "base",
        ranges.Domain(limit=ranges.OneOf(tuple(names))),
        _constant(ROOT, "DEFAULT_BASE"),
        "The first-order optimizer that steps with the updates",
    )


@cache
def _constant(root: Path, name: str) -> Any:
    """Return a constant of the package `baselines`."""
    return read_literals(root / "baselines" / "__init__.py", {name})[name]


def _read_signature(root: Path, name: str, module: str) -> Signature | None:
    tree = _parse(_file(root, module))
    body, title = tree.body, (ast.get_docstring(tree) or "").partition("\n")[0]
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name in _FUNCTIONS:
            return Signature(name, "first", _read_parameters(node), title, ast.get_docstring(node) or "")
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    methods = [node for node in classes if _is_method(root, module, node.name)]
    if not methods:
        return None
    *_, last = methods
    return Signature(name, "second", _read_fields(root, module, last.name), title, ast.get_docstring(last) or "")


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def _file(root: Path, module: str) -> Path:
    path = root / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _read_parameters(function: ast.FunctionDef) -> dict[str, Hyperparameter]:
    parameters = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {node.arg: _hyperparameter(node.arg, node.annotation, default) for node, default in parameters}


def _read_fields(root: Path, module: str, class_name: str) -> dict[str, Hyperparameter]:
    """Return the dataclass fields of a class, those of its bases first, in the order of `dataclasses.fields`."""
    definition = _find_class(root, module, class_name)
    if definition is None:
        return {}
    module, node = definition
    fields: dict[str, Hyperparameter] = {}
    for base in reversed(_base_names(node)):
        fields |= _read_fields(root, module, base)
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return fields  # a mixin: its annotations are no fields
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            if "ClassVar" not in ast.unparse(statement.annotation):
                fields[name] = _hyperparameter(name, statement.annotation, statement.value, _text_alone(following))
    return fields


def _is_method(root: Path, module: str, class_name: str) -> bool:
    definition = _find_class(root, module, class_name)
    if definition is None:
        return False
    module, node = definition
    return (module, node.name) == _ROOT_CLASS or any(_is_method(root, module, base) for base in _base_names(node))


def _base_names(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def _find_class(root: Path, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """Return the module and definition of the class that ``name`` means in ``module``; None if outside ``root``."""
    file = _file(root, module)
    if not file.is_file():
        return None
    for node in _parse(file).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
    for source, alias in _imported_names(_parse(file)):
        if (alias.asname or alias.name) == name and source != module:
            return _find_class(root, source, alias.name)
    return None


def _imported_names(tree: ast.Module) -> Iterator[tuple[str, ast.alias]]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.module, alias


def _text_alone(statement: ast.stmt | None) -> str:
    """Return the text of a statement that is a string literal: the docstring of the field before it; else ""."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _hyperparameter(
    name: str, annotation: ast.expr | None, default: ast.expr | None, details: str = ""
) -> Hyperparameter:
    return Hyperparameter(
        name,
        ranges.Domain.of(_evaluate(annotation, Any)),
        REQUIRED if default is None else _evaluate(default, COMPUTED),
        details,
    )


def _evaluate(node: ast.expr | None, fallback: Any) -> Any:
    """Return the value of an expression, or ``fallback`` if it needs more than `_NAMES` and builtins."""
    if node is None:
        return fallback
    try:
        return eval(compile(ast.Expression(node), "<annotation or default>", "eval"), dict(_NAMES))
    except (NameError, AttributeError, TypeError):
        return fallback
