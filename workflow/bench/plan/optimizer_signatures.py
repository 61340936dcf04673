"""The optimizers' names and hyperparameters, read from their sources without importing torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from workflow.bench.support.config import ROOT

REQUIRED: Final = object()
#: A default that only running the code would tell, such as the result of a call: left to the code.
COMPUTED: Final = object()

DTYPES: Final = ("float32", "bfloat16", "float16")
_FIRST_ORDER: Final = ("optimizer", "optimizer_for")
_ROOT_CLASS: Final = ("mkor_core.method", "Method")


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter: what its annotation allows, and its default (`REQUIRED`, `COMPUTED` or a value)."""

    name: str
    kinds: tuple[str, ...]
    choices: tuple[Any, ...] = ()
    default: Any = REQUIRED

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of its type."""
        if self.choices:
            return {"enum": [*self.choices, *([None] if "null" in self.kinds else [])]}
        return {"type": list(self.kinds)} if self.kinds else {}


@dataclass(frozen=True)
class Signature:
    """An optimizer file: its hyperparameters, and whether it wraps a first-order ``base``."""

    name: str
    order: Literal["first", "second"]
    hyperparameters: Mapping[str, Hyperparameter] = field(default_factory=dict)


def read_signatures(root: Path = ROOT) -> dict[str, Signature]:
    """Return every optimizer of ``root``'s baselines and mkor_core, by file name.

    A file of baselines with a function ``optimizer`` or ``optimizer_for`` is first-order; one with a class that
    descends from `mkor_core.method.Method` is second-order, and so are the like in mkor_core.
    """
    found: dict[str, Signature] = {}
    for package in ("baselines", "mkor_core"):
        for file in sorted((root / package).glob("[!_]*.py")):
            module = f"{package}.{file.stem}"
            tree = _parse(file)
            function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in _FIRST_ORDER), None)
            if function is not None and package == "baselines":
                found[file.stem] = Signature(file.stem, "first", _arguments(function))
                continue
            classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
            methods = [
                node
                for name, node in classes.items()
                if not name.startswith("_") and (module, name) != _ROOT_CLASS and _descends(root, module, name)
            ]
            # Where one method of a file refines another, the file is about the refined one.
            bases = {base for node in methods for base in _base_names(node)}
            methods = [node for node in methods if node.name not in bases]
            if methods:
                found[file.stem] = Signature(file.stem, "second", _fields(root, module, methods[-1].name))
    return found


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def _arguments(function: ast.FunctionDef) -> dict[str, Hyperparameter]:
    arguments = function.args
    return {
        argument.arg: _hyperparameter(argument.arg, argument.annotation, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }


def _fields(root: Path, module: str, name: str) -> dict[str, Hyperparameter]:
    """Return the dataclass fields of a class, its bases' first, as `dataclasses.fields` orders them."""
    location = _locate(root, module, name)
    if location is None:
        return {}
    module, node = location
    found: dict[str, Hyperparameter] = {}
    for base in reversed(_base_names(node)):
        found |= _fields(root, module, base)
    for statement in node.body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and not ast.unparse(statement.annotation).startswith(("ClassVar", "typing.ClassVar"))
        ):
            found[statement.target.id] = _hyperparameter(statement.target.id, statement.annotation, statement.value)
    return found


def _descends(root: Path, module: str, name: str) -> bool:
    location = _locate(root, module, name)
    if location is None:
        return False
    home, node = location
    return (home, node.name) == _ROOT_CLASS or any(_descends(root, home, base) for base in _base_names(node))


def _base_names(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def _locate(root: Path, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """Return the module and node of the class that ``name`` means in ``module``; None outside ``root``."""
    path = root / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    for node in _parse(file).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
    for imported, alias in _imports(_parse(file)):
        if (alias.asname or alias.name) == name and imported != module:
            return _locate(root, imported, alias.name)
    return None


def _imports(tree: ast.Module) -> Iterator[tuple[str, ast.alias]]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.module, alias


def _hyperparameter(name: str, annotation: ast.expr | None, default: ast.expr | None) -> Hyperparameter:
    kinds: list[str] = []
    choices: list[Any] = []
    for part in _union(annotation):
        text = ast.unparse(part)
        if text in _KINDS:
            kinds.append(_KINDS[text])
        elif isinstance(part, ast.Subscript) and text.startswith(("Literal", "typing.Literal")):
            literal = ast.literal_eval(part.slice)
            choices += literal if isinstance(literal, tuple) else (literal,)
        elif text.endswith("dtype"):
            choices += DTYPES
    return Hyperparameter(name, tuple(kinds), tuple(choices), _default(default))


_KINDS: Final = {
    "float": "number",
    "int": "integer",
    "bool": "boolean",
    "str": "string",
    "None": "null",
}


def _union(annotation: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        yield from _union(annotation.left)
        yield from _union(annotation.right)
    elif annotation is not None:
        yield annotation


def _default(node: ast.expr | None) -> Any:
    if node is None:
        return REQUIRED
    try:
        return ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node).rpartition(".")[2]
        return text if text in DTYPES else COMPUTED
