r"""What names and folders may consist of before they reach a path, a shell, a regular expression or a scheduler.

Quoting at the point of use makes each of them one argument of one command. These rules refuse the texts for which
quoting is not enough: Snakemake reads braces as wildcards and ``<name>`` as a path variable, a name may become an
option, and a file system limits the length of names. Schemas use the same rules as formats (``format: folder``).

Imports only the standard library, because scripts that a cluster calls every minute use it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

LONGEST_NAME: Final = 100
"""The most characters of a name: with every suffix and prefix that files get, fewer than a file system's 255 bytes."""
_LONGEST_COMPONENT: Final = 255
"""The most bytes of one part of a path, on every common file system."""
_LONGEST_FOLDER: Final = 1024
"""The most bytes of a folder's absolute path: the folders and files below it stay within Linux's 4,096, and a command
that names a hundred of them within the 128 KiB of one argument."""

_TAKEN: Final = {
    "experiment": ("compare", "figures", "logs", "probes", "report", "runs", "specs", "tables"),
    "hardware": ("hardware", "partial", "reference"),
}
"""Names of other files and folders, next to those of the experiments in ``<results>/<hardware>/<tier>`` and next to
those of the machines in ``<results>``."""

_FILE_NAME: Final = ("[A-Za-z0-9_][A-Za-z0-9_.-]*", "letters, digits, '_', '.' and '-', without '.' or '-' in front")
_NAME: Final = ("[A-Za-z0-9_][A-Za-z0-9_-]*", "letters, digits, '_' and '-', without '-' in front")
_NAMES: Final = {
    "account": _FILE_NAME,
    "experiment": _NAME,
    "hardware": ("[a-z0-9][a-z0-9-]*", "lowercase letters, digits and dashes, without a dash in front"),
    "label": ("[a-z0-9_]+", "lowercase letters, digits and underscores"),
    "module": ("[A-Za-z_][A-Za-z0-9_]*", "letters, digits and underscores, without a digit in front"),
    "queue": ("[A-Za-z0-9_][A-Za-z0-9_.,@-]*", "letters, digits and '_.,@-', without one of '.,@-' in front"),
    "tier": _NAME,
}
"""The pattern of each kind of name, and the pattern in words."""

FORMATS: Final = ("folder", *_NAMES)
"""The formats that schemas may use."""


def name_rule(kind: str, text: str) -> str | None:
    """Return the rule that a name breaks, such as ``must consist of ...``; None if it is valid.

    Args:
        kind: account, experiment, hardware, label, module (of Python),
            queue or tier.
        text: the name.
    """
    pattern, words = _NAMES[kind]
    if not re.fullmatch(pattern, text):
        return f"must consist of {words}"
    if len(text) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters, and has {len(text)}"
    if text in _TAKEN.get(kind, ()):
        return "must be another name, because the results use this one for other files"
    return None


def path_rule(text: str) -> str | None:
    """Return the rule that the path of a file or folder breaks; None if it can be printed, passed on and opened."""
    if not text:
        return "must not be empty"
    for character in text:
        if not character.isprintable():
            return f"must not contain {_shown(character)}, which cannot be printed"
    # In bytes, as file systems count: a letter may take four.
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if longest > _LONGEST_COMPONENT:
        return f"must have at most {_LONGEST_COMPONENT} bytes between two slashes, and has {longest}"
    length = len(os.fsencode(Path(text).absolute()))
    if length > _LONGEST_FOLDER:
        return f"must have at most {_LONGEST_FOLDER} bytes as an absolute path, and has {length}"
    return None


def folder_rule(text: str) -> str | None:
    """Return the rule that a folder breaks whose files Snakemake makes or reads; None if it is valid.

    Spaces, quotes and other characters with a meaning for a shell are valid, because every command quotes them.
    """
    if rule := path_rule(text):
        return rule
    if odd := re.search(r"[{}]", text):
        return f"must not contain {_shown(odd.group())}, which Snakemake reads as part of a wildcard"
    if odd := re.search(r"<[a-z][a-z0-9_]*>", text):
        return f"must not contain {_shown(odd.group())}, which Snakemake reads as a path variable"
    if text[0] == " " or text[-1] == " ":
        return "must not begin or end with a space"
    if text[0] == "-":
        return "must not begin with '-', which commands read as an option"
    if text[0] == "~":
        return "must not begin with '~', which is not expanded here; write the folder in full"
    return None


def portable_rule(text: str) -> str | None:
    """Return the rule that a folder breaks which a batch scheduler gets; None if it is valid.

    Schedulers and Snakemake's plugins for them pass paths through shells of their own and split them at commas and
    colons.
    """
    rule, odd = folder_rule(text), re.search(r"[^\w./+=@-]", text)
    if rule is None and odd:
        return f"must not contain {_shown(odd.group())}, which batch schedulers do not pass on safely"
    return rule


def rule_of_format(kind: str, text: str) -> str | None:
    """Return the rule that a text breaks with the format ``kind`` of a schema: ``folder``, or a kind of name."""
    return folder_rule(text) if kind == "folder" else name_rule(kind, text)


def _shown(text: str) -> str:
    """Return a text between quotes, or a character's number if it has no visible form of its own."""
    return f"'{text}'" if text.isprintable() and text != " " else f"U+{ord(text):04X}"
