"""The frame that every command shares: parse the options, do the work, report expected failures in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from workflow.bench.support.config import ConfigError

FAILURES: Final[tuple[type[Exception], ...]] = (ConfigError, OSError)
"""What may go wrong in any command: faulty input, or a file that cannot be read or written."""


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
    options = parser.parse_args(arguments)
    try:
        return work(options) or 0
    except failures as problem:
        print(problem, file=sys.stderr)
        return 1
