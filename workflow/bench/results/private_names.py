"""Take the names of this machine's folders, and of its user, out of texts that are published.

The texts may be JSON, HTML, reStructuredText, shell commands or addresses, and one in another: a character of a name
may be escaped in any of their ways.
"""

from __future__ import annotations

import getpass
import html
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

PICTURES: Final = (".pdf", ".png")
"""Files that are no text."""
_USER: Final = "user"
"""What stands in place of the user's name."""
_LONGEST: Final = 300
"""The most characters in front of a user's name, in a path."""
_START: Final = r"(?:(?<![\w./-])|(?<=//)|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
"""Where a path may start: not in a word or an address, whose slashes are two, but behind an escaped character."""
_EMBEDDED: Final = re.compile(r"(data:(?:text/|application/json)[^\s\"'<>,]*;base64,)([A-Za-z0-9+/]+=*)")
"""A file of text in a page, as Snakemake's report embeds tables."""


class PrivateNames:
    """Names of this machine, and what is published in their place.

    Args:
        folders: the place of each folder for a reader. Of two that contain each other, the inner one counts.
        user: the user's name; it is private as a part of an absolute path.
    """

    def __init__(self, folders: Mapping[Path, str], user: str | None) -> None:
        # With and without links. The root of all files is none.
        places = {name: place for folder, place in folders.items() for name in (folder.resolve(), folder.absolute())}
        longest = sorted(places, key=lambda folder: len(str(folder)), reverse=True)
        named = {f"folder{number}": folder for number, folder in enumerate(longest) if folder != Path(folder.anchor)}
        self._places = {group: places[folder] for group, folder in named.items()}
        patterns = "|".join(f"(?P<{group}>{_folder_pattern(folder)})" for group, folder in named.items())
        self._of_folders = re.compile(patterns or "(?!)")
        self._of_user: re.Pattern[str] | None = None
        if user and user != _USER:
            slash = _spelled("/")
            before = rf"{_START}{slash}(?!{slash})(?:[^\s\"'<>|:;,=]{{0,{_LONGEST}}}?{slash})?"
            self._of_user = re.compile(rf"({before}){''.join(map(_spelled, user))}(?![\w-]|\.\w)")

    @classmethod
    def of(cls, folders: Mapping[Path, str]) -> PrivateNames:
        """Return the names of these folders, of the home folder, which becomes ``~``, and of the user."""
        user = None
        with suppress(OSError, KeyError):  # neither the environment nor the system names the user
            user = getpass.getuser()
        with suppress(RuntimeError):  # nor the home folder
            folders = {Path.home(): "~", **folders}
        return cls(folders, user)

    def hidden(self, name: str, content: bytes) -> bytes:
        """Return the content of a file without these names; pictures stay as they are."""
        if name.endswith(PICTURES):
            return content
        return self._hidden(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def _hidden(self, text: str) -> str:
        # First the files inside, in which base64 hides names from the patterns.
        text = _EMBEDDED.sub(self._hidden_inside, text)
        text = self._of_folders.sub(lambda match: self._places[str(match.lastgroup)], text)
        if self._of_user is not None:
            # A path may name the user more than once, and a match ends at the first time.
            while (less := self._of_user.sub(rf"\1{_USER}", text)) != text:
                text = less
        return text

    def _hidden_inside(self, match: re.Match[str]) -> str:
        inner = b64decode(match[2]).decode(errors="surrogateescape")
        hidden = self._hidden(inner)
        # A page keeps its bytes if there is nothing to hide.
        return match[0] if hidden == inner else match[1] + b64encode(hidden.encode(errors="surrogateescape")).decode()


def _folder_pattern(folder: Path) -> str:
    """Return a pattern of the name of a folder, and not of one whose name begins with it.

    The name of a folder below the root of all files, such as ``/work``, must not follow a letter as in an address.
    """
    start = _START if len(folder.parts) == 2 else ""
    return rf"{start}{''.join(map(_spelled, str(folder)))}(?![\w-])"


def _spelled(character: str) -> str:
    """Return a pattern of a character in all its spellings."""
    if character.isascii() and character.isalnum():
        return character
    code = ord(character)
    # JSON writes a character beyond U+FFFF as two.
    in_json = re.findall("....", character.encode("utf-16-be", "surrogatepass").hex())
    spellings = {
        re.escape(character),
        re.escape(html.escape(character)),
        "".join(rf"\\+u(?i:{unit})" for unit in in_json),
        f"(?i:&#0*{code};)",
        f"(?i:&#x0*{code:x};)",
        f"(?i:{re.escape(quote(character, safe='', errors='surrogateescape'))})",
    }
    if character == "'":
        spellings.add(r"""'\\*"'\\*"'""")  # between quotes in a shell
    return rf"\\*(?:{'|'.join(sorted(spellings, key=len, reverse=True))})"
