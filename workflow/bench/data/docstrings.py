"""English text that comes with the packages: the docstrings of scikit-learn and SciPy, as sentences.

They are read from the installed sources with `ast`; no module of theirs is imported.  Everything here is a
function of the packages' versions alone: tests and what a build writes are left out, since distributions differ in
them.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from workflow.bench.data.folder import DataNotFound

PACKAGES = ("scikit-learn", "scipy")
END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(\[])")
"""The space between two sentences."""

_WRITTEN_BY_BUILDS = frozenset({"__config__.py", "_distributor_init.py", "version.py"})
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_RULE = re.compile(r"([-=~^\"*+#.])\1{2,}(?:\s+\1{2,})*")  # under a heading, or a table's edge
_DIRECTIVE = re.compile(r"\.\. [\w-]+::.*|:[\w-]+:(?:\s.*)?|%\(\w+\)s")  # .. math::, :toctree:, %(example)s
_MARKUP = re.compile(r":[a-z]+(?::[a-z]+)?:(?=`)|`~?|`")  # :func:`~a.b` reads a.b
_WORD = re.compile(r"[A-Za-z]{2}")


class Document(NamedTuple):
    """One source file: its docstrings in their order, each a list of sentences."""

    name: str  # such as scipy/stats/_qmc.py
    docstrings: list[list[str]]


def read(packages: Sequence[str] = PACKAGES) -> list[Document]:
    """Return the documents of all ``packages``, sorted by package and name.

    A docstring that stands twice, word by word, is kept where it stands first, so that no split shares it.
    Raises `DataNotFound` where a package, or its sources, are not installed.
    """
    seen: set[tuple[str, ...]] = set()
    documents = []
    for package in packages:
        found = list(_of_package(package, seen))
        if not found:
            raise _not_found(package, "no source has a docstring")
        documents.extend(found)
    return documents


def sentences(docstring: str) -> list[str]:
    """Return the sentences of a docstring, in order, as plain text on one line each.

    A paragraph, and a line that is set off by its indentation (a parameter's name and type), ends a sentence, and
    so does a full stop.  Headings, examples of code, directives and roles of markup are dropped.
    """
    found: list[str] = []
    block: list[str] = []
    indentation = 0
    in_example = False

    def close() -> None:
        text = " ".join(" ".join(block).split())
        found.extend(sentence for sentence in END_OF_SENTENCE.split(text) if _WORD.search(sentence))
        block.clear()

    for line in [*docstring.splitlines(), ""]:
        text = line.strip()
        if not text:
            close()
            in_example = False
        elif in_example:
            continue
        elif text.startswith(">>>"):
            close()
            in_example = True
        elif _RULE.fullmatch(text):
            if len(block) == 1:
                block.clear()  # it was a heading
            close()
        elif _DIRECTIVE.fullmatch(text):
            close()
        else:
            margin = len(line) - len(line.lstrip())
            if margin != indentation:
                close()
                indentation = margin
            block.append(_MARKUP.sub("", text))
    return found


def _of_package(package: str, seen: set[tuple[str, ...]]) -> Iterator[Document]:
    """Yield a package's documents; ``seen`` holds the docstrings met so far."""
    for name, path in _sources(package):
        try:
            source = path.read_bytes()
        except OSError as problem:
            raise _not_found(package, f"{name}: {problem.strerror}") from None
        try:
            found = list(_docstrings(source))
        except (SyntaxError, ValueError) as problem:
            raise _not_found(package, f"{name}: it is no Python: {problem}") from None
        kept = []
        for docstring in map(sentences, found):
            if docstring and tuple(docstring) not in seen:
                seen.add(tuple(docstring))
                kept.append(docstring)
        if kept:
            yield Document(name, kept)


def _sources(package: str) -> list[tuple[str, Path]]:
    """Return name and path of the package's sources, sorted by name."""
    try:
        installed: Distribution = distribution(package)
    except PackageNotFoundError:
        raise _not_found(package, "it is not installed") from None
    names = sorted(
        str(file)
        for file in installed.files or ()
        if file.suffix == ".py" and "tests" not in file.parts and file.name not in _WRITTEN_BY_BUILDS
    )
    return [(name, Path(str(installed.locate_file(name)))) for name in names]


def _docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a source file, in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a foreign file's doubtful escapes are not ours to report
        tree = ast.parse(source)
    documented = [node for node in ast.walk(tree) if isinstance(node, _Documented)]
    for node in sorted(documented, key=lambda node: getattr(node, "lineno", 0)):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring


def _not_found(package: str, why: str) -> DataNotFound:
    return DataNotFound(
        f"the docstrings of {package}",
        f"this Python's site-packages ({why})",
        f"install {package} as requirements.lock pins it, with its .py files",
    )
