"""The project's source files: the imports between them, and fingerprints of the code that a number depends on.

A fingerprint covers syntax, not text: comments, docstrings and formatting do not change it. The files are parsed and
not imported, so this module needs no torch.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from workflow.bench.support.config import ROOT

_CORE, _METHODS = "mkor_core", "baselines"
_DATA, _WORKLOADS = "workflow/bench/data", "workflow/bench/workloads"
_TRAINING = "workflow/bench/training"
_FOLDERS: Final = (_CORE, _METHODS, _DATA, _WORKLOADS, _TRAINING)
"""Folders whose code trains. A run depends on a part of them; a probe, which may measure any method, on all."""

_MEASURING: Final = ("workflow/bench/probes", "workflow/bench/analysis/fits.py", "benchmarks")
"""What measures. A probe's rows depend on its module and what that imports of these."""


def code_fingerprint(specs: Iterable[Mapping[str, Any]], root: Path = ROOT) -> str:
    """Return a hash of the code that a run's numbers depend on.

    specs: the run's spec and those of the runs whose weights it starts from (`Run.lineage`).
    """
    return _hashed(run_files(specs, root), root)


def probe_fingerprint(module: str, root: Path = ROOT) -> str:
    """Return a hash of the code that the rows of a probe or a benchmark depend on; ``module``: its dotted name."""
    file = located(module, root)
    assert file is not None, module
    return _hashed([*_snapshot(root), *reachable([file], _MEASURING, root)], root)


def is_current(summary: Mapping[str, Any], specs: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a run.json was made by today's code alone; ``specs`` as in `code_fingerprint`."""
    return bool(summary.get("code_fingerprint") == code_fingerprint(specs))


def run_files(specs: Iterable[Mapping[str, Any]], root: Path = ROOT) -> frozenset[Path]:
    """Return the source files behind a run's `code_fingerprint`.

    These are mkor_core, workflow/bench/training, the code that builds optimizers, and the files that the specs name:
    the workload, the method and its base optimizer, each with the modules of data, workloads and baselines that it
    imports.
    """
    files: set[Path] = set()
    for spec in specs:
        optimizer = spec["optimizer"]
        names = spec["workload"]["name"], optimizer["name"], optimizer["hyperparameters"].get("base")
        files |= _spec_files(*names, root)
    return frozenset(files)


@cache
def _spec_files(workload: str, method: str, base: str | None, root: Path) -> frozenset[Path]:
    # mkor and mkor_h have no file in baselines: they are part of mkor_core, all of which is included.
    names = (f"{name}.py" for name in (method, base) if name)
    methods = [file for name in names for place in (name, f"*/{name}") for file in (root / _METHODS).glob(place)]
    entries = [*(root / _WORKLOADS).glob(f"{workload}.py"), *methods]
    always = [
        file for file in _snapshot(root) if file.is_relative_to(root / _CORE) or file.is_relative_to(root / _TRAINING)
    ]
    # It builds the optimizers. Its imports are not followed, because it re-exports methods other than the run's.
    builder = root / _METHODS / "__init__.py"
    reached = reachable(entries, [_DATA, _WORKLOADS, _METHODS], root, stop_at=[builder])
    return frozenset([*always, builder, *reached])


def _hashed(files: Iterable[Path], root: Path) -> str:
    # By relative path: a repository's place on the disk changes no number.
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        digest.update(f"{file.relative_to(root).as_posix()}\0{_syntax(file)}\0".encode())
    return digest.hexdigest()[:16]


@cache
def _snapshot(root: Path) -> tuple[Path, ...]:
    """Return all files of `_FOLDERS`, read at the first call.

    Later edits must not enter a process's fingerprints, because it keeps running the code that it loaded.
    """
    # Sorted: the order of a folder's files differs between file systems.
    files = tuple(sorted(file for folder in _FOLDERS for file in (root / folder).rglob("*.py")))
    for file in files:
        _syntax(file)
    return files


def reachable(
    files: Iterable[Path], within: Sequence[str], root: Path = ROOT, stop_at: Iterable[Path] = ()
) -> list[Path]:
    """Return ``files`` and the project's files that they import, directly or not, sorted.

    within: the folders and files, relative to ``root``, that are followed; imports of anything else are left out.
    stop_at: files that are left out with everything that they import.
    """
    folders = [root / folder for folder in within]
    reached: set[Path] = set()
    # A loop with a list, because imports may form circles inside a package.
    left_out = set(stop_at)
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file in reached or file in left_out:
            continue
        reached.add(file)
        waiting += (used for used in _imported(file, root) if any(used.is_relative_to(folder) for folder in folders))
    return sorted(reached)


@cache
def _imported(file: Path, root: Path) -> frozenset[Path]:
    """Return the files under ``root`` that a file names in its import statements.

    ``from package import name`` stands for the module ``package/name.py`` where that exists, and otherwise for the
    package's ``__init__.py``, in which ``name`` is then defined.
    """
    names: list[str] = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(path for name in names if (path := located(name, root)) is not None)


def located(name: str, root: Path) -> Path | None:
    """Return the file of a dotted name: of the module of that name, or of the one in which the name is defined."""
    place = root.joinpath(*name.split("."))
    for path in (place, place.parent):
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if path != root and candidate.is_file():
                return candidate
    return None


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


@cache
def _syntax(file: Path) -> str:
    """Return a hash of a file's syntax tree without docstrings and other string literals that stand alone."""
    parts: list[str] = []
    _append_canonical(_tree(file), parts)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _append_canonical(node: Any, parts: list[str]) -> None:
    """Append a syntax tree as text that is the same under every version of Python that parses the file.

    Fields without content are left out, since newer versions add such fields to old nodes (``type_params``).
    """
    if isinstance(node, ast.AST):
        parts.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            if value not in (None, []) and name not in ("ctx", "kind", "type_comment"):
                parts.append(f" {name}=")
                _append_canonical(value, parts)
        parts.append(")")
    elif isinstance(node, list):
        parts.append("[")
        for item in node:
            # A string literal alone is a docstring, or a comment in that form: it changes no number.
            text = item.value if isinstance(item, ast.Expr) else None
            if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
                _append_canonical(item, parts)
                parts.append(",")
        parts.append("]")
    else:
        parts.append(repr(node))


def read_literals(file: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the values of those of ``names`` that a module assigns at its top level, without importing the module.

    A value is a literal, or a name that the module imports from one of the project's, where it is a literal.

    Raises:
        ValueError: the value of such a name is neither.
    """
    body = ast.parse(file.read_text(encoding="utf-8")).body
    # Only of the top level: what a function imports has no part in a constant.
    imported = [node for node in body if isinstance(node, ast.ImportFrom) and node.module]
    origins = {alias.asname or alias.name: (node.module, alias.name) for node in imported for alias in node.names}
    values: dict[str, Any] = {}
    for node in body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if not isinstance(target, ast.Name) or target.id not in names:
            continue
        module, name = origins.get(node.value.id, ("", "")) if isinstance(node.value, ast.Name) else ("", "")
        source = located(module or "", ROOT) if module else None
        try:
            values[target.id] = read_literals(source, {name})[name] if source else ast.literal_eval(node.value)
        except (KeyError, ValueError):
            raise ValueError(f"{file.name}: {target.id} must be a literal.") from None
    return values
