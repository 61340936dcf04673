"""Names and hyperparameters of all optimizers, read from their source files, and checks of values given for them.

Snakemake loads the plan at every start, and importing the optimizers would import torch.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

from workflow.bench.support.config import ROOT, checked_stem, did_you_mean, error
from workflow.bench.support.source_code import read_literals

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

TUNED: Final = "tuned"
"""The word in an experiment file that stands for the value that ``tune`` found."""

Key = tuple[str | int, ...]

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
    # As `baselines.module_of` finds them, which this module may not import.
    modules: dict[str, str] = {}
    for package in ("baselines", *(f"baselines.{family}" for family in _constant(root, "FAMILIES"))):
        files = sorted(root.joinpath(*package.split(".")).glob("[!_]*.py"))
        modules |= {name: f"{package}.{name}" for name in (checked_stem(file, "module") for file in files)}
    # MKOR and MKOR-H are no files of baselines.
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
    tree = _parse(root, module)
    title = (ast.get_docstring(tree) or "").partition("\n")[0]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in _FUNCTIONS:
            parameters = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            read = [_hyperparameter(given.arg, given.annotation, default) for given, default in parameters]
            return Signature(name, "first", {one.name: one for one in read}, title, ast.get_docstring(node) or "")
    # A file may define several methods, each of which builds on the one before: the last is the optimizer's.
    for node in reversed(tree.body):
        if isinstance(node, ast.ClassDef):
            family = _with_bases(root, module, node.name)
            if any((origin, cls.name) == _ROOT_CLASS for origin, cls in family):
                fields = {field.name: field for _, cls in family for field in _fields(cls)}
                return Signature(name, "second", fields, title, ast.get_docstring(node) or "")
    return None


@cache
def _parse(root: Path, module: str) -> ast.Module:
    """Return the syntax tree of a module; an empty one if it is not a file below ``root``."""
    path = root.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "", filename=str(file))


def _with_bases(root: Path, module: str, name: str) -> list[tuple[str, ast.ClassDef]]:
    """Return the class that ``name`` means in ``module``, after its bases: each with the module that defines it."""
    for node in _parse(root, module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            # The last base comes first, as in `dataclasses.fields`, which goes through the bases from the root on.
            bases = [base.id for base in reversed(node.bases) if isinstance(base, ast.Name)]
            return [*(found for base in bases for found in _with_bases(root, module, base)), (module, node)]
        if isinstance(node, ast.ImportFrom) and node.module not in (None, module):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _with_bases(root, str(node.module), alias.name)
    return []


def _fields(node: ast.ClassDef) -> Iterator[Hyperparameter]:
    """Yield the fields that a class itself adds, each with its docstring. A mixin's annotations are no fields."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            details = " ".join(str(text.value).split()) if isinstance(text, ast.Constant) else ""
            if "ClassVar" not in ast.unparse(statement.annotation):
                yield _hyperparameter(statement.target.id, statement.annotation, statement.value, details)


def _hyperparameter(
    name: str, annotation: ast.expr | None, default: ast.expr | None, details: str = ""
) -> Hyperparameter:
    domain = ranges.Domain.of(_evaluated(annotation, Any) if annotation else Any)
    return Hyperparameter(name, domain, _evaluated(default, COMPUTED) if default else REQUIRED, details)


def _evaluated(node: ast.expr, fallback: Any) -> Any:
    """Return the value of an expression, or ``fallback`` if it needs more than `_NAMES` and builtins."""
    try:
        # The project's own files, as trusted as an import of them; only these names are known here.
        return eval(compile(ast.Expression(node), "<annotation or default>", "eval"), dict(_NAMES))
    except (NameError, AttributeError, TypeError):
        return fallback


def accepted(name: str, base: object, signatures: Mapping[str, Signature]) -> dict[str, Hyperparameter]:
    """Return the hyperparameters of the optimizer ``name``.

    A second-order optimizer also takes ``base`` and the hyperparameters of that base; an unknown base has none.
    """
    signature = signatures[name]
    if signature.order == "first":
        return dict(signature.hyperparameters)
    choice = base_hyperparameter(signatures)
    # An unknown base is refused by its own domain; here it has no hyperparameters.
    wrapped = signatures.get(str(base or choice.default))
    return {
        choice.name: choice,
        **(wrapped.hyperparameters if wrapped and wrapped.order == "first" else {}),
        **signature.hyperparameters,
    }


def check_value(
    file: Path, key: Key, optimizer: str, known: Mapping[str, Hyperparameter], name: str, value: Any
) -> None:
    """Raise `ConfigError` unless the optimizer takes ``name``, and ``value`` has its type and lies in its range."""
    if name not in known:
        raise error(file, key, value, f"unknown hyperparameter of {optimizer}; {did_you_mean(name, known)}")
    if must := known[name].domain.refusal(value, none="null"):
        raise error(file, key, value, must)


def check_space(
    file: Path,
    key: Key,
    optimizer: str,
    known: Mapping[str, Hyperparameter],
    space: Mapping[str, Mapping[str, Sequence[Any]]],
) -> None:
    """Raise `ConfigError` unless the optimizer takes every end and choice of a tuning space."""
    for name, intervals in space.items():
        for kind, values in intervals.items():
            for index, value in enumerate(values):
                check_value(file, (*key, name, kind, index), optimizer, known, name, value)
            # A range needs two real ends, in order; its trials would round an integer to another value.
            if kind in ("choices", "grid"):
                continue
            if not known[name].domain.is_real:
                raise error(file, (*key, name, kind), values, "needs real numbers; give 'choices'")
            if not values[0] < values[1]:
                raise error(file, (*key, name, kind), values, "the first end must be less than the second")


def resolved(given: Mapping[str, Any], name: str, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return checked hyperparameters with defaults filled in, and integers as floats where a real number is meant."""
    known = accepted(name, given.get("base"), signatures)
    return {
        parameter: hyperparameter.domain.converted(given.get(parameter, hyperparameter.default))
        for parameter, hyperparameter in known.items()
        if parameter in given or hyperparameter.default not in (REQUIRED, COMPUTED)
    }
