"""English text that comes with the packages: the docstrings of scikit-learn and SciPy, as sentences.

They are read from the installed sources with `ast`, without importing them. The text depends on the packages' versions
alone: tests and files that a build writes are left out, since they differ between distributions.
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

_RULE = re.compile(r"([-=~^\"*+#.])\1{2,}(?:\s+\1{2,})*")  # a heading's underline, or a table's border
_DIRECTIVE = re.compile(r"\.\. [\w-]+::.*|:[\w-]+:(?:\s.*)?|%\(\w+\)s")  # .. math::, :toctree:, %(example)s
_MARKUP = re.compile(r":[a-z]+(?::[a-z]+)?:(?=`)|`~?|`")  # removed, so that :func:`~a.b` becomes a.b
_WORD = re.compile(r"[A-Za-z]{2}")


class Document(NamedTuple):
    """One source file: its docstrings in their order, each a list of sentences."""

    name: str
    """Such as ``scipy/stats/_qmc.py``."""
    docstrings: list[list[str]]


def read(packages: Sequence[str] = PACKAGES) -> list[Document]:
    """Return the documents of all ``packages``, sorted by package and name.

    If a docstring occurs several times, word for word, only the first one is kept, so that the splits share none.

    Raises:
        DataNotFound: a package is not installed, or its sources are not.
    """
    seen: set[tuple[str, ...]] = set()
    documents = []
    for package in packages:
        package_documents = list(_documents(package, seen))
        if not package_documents:
            raise _not_found(package, "no source has a docstring")
        documents.extend(package_documents)
    return documents


def sentences(docstring: str) -> list[str]:
    """Return the sentences of a docstring, in order, as plain text on one line each.

    A full stop, a paragraph, and a line with another indentation (such as a parameter's name and type) end a sentence.
    Headings, code examples, directives and the markup of roles are dropped.
    """
    result: list[str] = []
    block: list[str] = []  # lines that are one running text so far
    indentation = 0
    in_example = False

    def close_block() -> None:
        text = " ".join(" ".join(block).split())
        result.extend(sentence for sentence in END_OF_SENTENCE.split(text) if _WORD.search(sentence))
        block.clear()

    for line in [*docstring.splitlines(), ""]:
        text = line.strip()
        if not text:
            close_block()
            in_example = False
        elif in_example:
            continue
        elif text.startswith(">>>"):
            close_block()
            in_example = True
        elif _RULE.fullmatch(text):
            if len(block) == 1:
                block.clear()  # the underlined line is a heading
            close_block()
        elif _DIRECTIVE.fullmatch(text):
            close_block()
        else:
            margin = len(line) - len(line.lstrip())
            if margin != indentation:
                close_block()
                indentation = margin
            block.append(_MARKUP.sub("", text))
    return result


def _documents(package: str, seen: set[tuple[str, ...]]) -> Iterator[Document]:
    """Yield a package's documents without the docstrings in ``seen``, and add theirs to it."""
    for name, path in _sources(package):
        try:
            source = path.read_bytes()
        except OSError as problem:
            raise _not_found(package, f"{name}: {problem.strerror}") from None
        try:
            docstrings = list(_docstrings(source))
        except (SyntaxError, ValueError) as problem:
            raise _not_found(package, f"{name}: it is not Python: {problem}") from None
        new = []
        for docstring in map(sentences, docstrings):
            if docstring and tuple(docstring) not in seen:
                seen.add(tuple(docstring))
                new.append(docstring)
        if new:
            yield Document(name, new)


def _sources(package: str) -> list[tuple[str, Path]]:
    """Return the names and paths of the package's sources, sorted by name."""
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
        warnings.simplefilter("ignore")  # invalid escapes in other packages' files are not our users' concern
        tree = ast.parse(source)
    documented = [node for node in ast.walk(tree) if isinstance(node, _Documented)]
    for node in sorted(documented, key=lambda node: getattr(node, "lineno", 0)):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring


def _not_found(package: str, reason: str) -> DataNotFound:
    return DataNotFound(
        f"the docstrings of {package}",
        f"this Python's site-packages ({reason})",
        f"install {package} as requirements.lock pins it, with its .py files",
    )
