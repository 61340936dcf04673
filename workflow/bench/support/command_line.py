"""The frame that every command shares: parse the options, do the work, report expected failures in one line."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from workflow.bench.support.config import ConfigError, refuse_folder
from workflow.bench.support.errors import FileWarning
from workflow.bench.support.files import LONGEST_FILE_NAME
from workflow.bench.support.names import path_rule

FAILURES: Final[tuple[type[Exception], ...]] = (ConfigError, OSError)
"""What may go wrong in any command: faulty input, or a file that cannot be read or written."""


def whole(text: str) -> int:
    """Return the integer that an option gives; for ``add_argument``'s ``type``."""
    if not re.fullmatch(r"[-+]?[0-9]{1,40}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at most 40 digits, not {text[:40]!r}")
    return int(text)


def real(text: str) -> float:
    """Return the number that an option gives, which may be infinite or NaN; for ``add_argument``'s ``type``."""
    # Without the pattern, Python would also read 1_000 and digits of other scripts.
    with suppress(ValueError):
        if re.fullmatch(r"[-+.0-9a-zA-Z]{1,40}", text):
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number, not {text[:40]!r}")


def check_option(name: str, value: float, at_least: float, at_most: float) -> None:
    """Raise `ConfigError` if the value of an option such as ``--threads`` is out of its range."""
    if not at_least <= value <= at_most:
        raise ConfigError(f"{name} = {value}: must be from {at_least} to {at_most}")


def run_command(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None = None,
    *,
    failures: tuple[type[Exception], ...] = FAILURES,
) -> int:
    """Do a command's ``work`` with its parsed options, and return the exit status.

    work: takes the parsed options and returns an exit status, or None for success.
    arguments: the command line, by default that of the process.
    failures: exceptions that are printed to stderr without a traceback; the exit status is then 1.
    """
    # Outside of the try: argparse prints its own line and exits with 2.
    options = parser.parse_args(arguments)
    try:
        # Python would print the line of code under each.
        with one_line_warnings():
            return work(options) or 0
    except failures as problem:
        print(problem, file=sys.stderr)
        return 1


def show(lines: Iterable[str]) -> None:
    """Print lines to standard output, the last thing that a command does.

    Where the reader has closed the pipe, as ``head`` does, the rest is dropped without an error.
    """
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print a warning about a user's file as its message alone, without the line of code that gave it."""
    before = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return f"{message}\n" if category is FileWarning else before(message, category, filename, lineno, line)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = before


def refuse_unwritable(key: str, file: Path) -> None:
    """Raise `ConfigError` if a file cannot be written: to be called before hours of work that end with writing it.

    Creates nothing: not the file, and not the folders on the way to it.
    """
    refuse_folder(key, file, path_rule)
    problem = None
    try:
        # The folder itself may still be missing; writing will make it.
        folder = next(parent for parent in file.absolute().parents if parent.exists())
        if file.is_dir():
            problem = "is a folder; give the name of a file"
        elif file.exists() and not file.is_file():
            problem = "is not a regular file, and would be replaced by one"
        elif len(os.fsencode(file.name)) > LONGEST_FILE_NAME:
            problem = f"the file's name must have at most {LONGEST_FILE_NAME} bytes"
        elif not folder.is_dir():
            problem = f"{folder} is not a folder"
        else:
            # To make a file and remove it is the one test that also sees a disk that is mounted read-only.
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as failure:
        problem = f"cannot be written: {failure.strerror}"
    if problem:
        # The whole path: a value would be cut, and the file's name stands at its end.
        raise ConfigError(f'{key} = "{file}": {problem}')


def aligned(rows: Sequence[Sequence[str]], names: int, *, remarks: int = 0, indent: str = "  ") -> Iterator[str]:
    """Yield rows of cells as lines of a table, the heads first.

    The first ``names`` columns and the last ``remarks`` are aligned at the left, the others at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        is_left = [index < names or index >= len(row) - remarks for index in range(len(row))]
        each = zip(row, widths, is_left, strict=True)
        cells = [cell.ljust(width) if left else cell.rjust(width) for cell, width, left in each]
        yield (indent + "  ".join(cells)).rstrip()
