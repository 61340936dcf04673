"""The errors and warnings that a user can put right; each is one line."""

from __future__ import annotations

import re


def one_line(message: str) -> str:
    """Return a message in one line, with characters that cannot be printed escaped.

    It may quote names of files, which may contain any character.
    """
    return printable(re.sub(r"\s*[\r\n]+\s*", " ", message))


def printable(text: str) -> str:
    """Return a text with characters that cannot be printed escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class ConfigError(ValueError):
    """Faulty input from a user; the message is one line with the file, the key, the value and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class DamagedFileError(ConfigError):
    """A file with content that its writer cannot have written; the message is one line that names it."""


class UnreadableError(OSError):
    """A path that is there but cannot be opened as a file; the message is one line that names it and the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class FileWarning(UserWarning):
    """A file, named in one line, without which a command goes on."""


def first_line(problem: BaseException) -> str:
    """Return the first line of an exception's message, or its type if the message is empty."""
    return str(problem).strip().partition("\n")[0] or type(problem).__name__
