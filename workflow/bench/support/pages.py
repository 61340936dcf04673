"""Tables of measurements inside a page that is written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workflow.bench.support.config import ConfigError
from workflow.bench.support.files import write_atomically


def fill(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace what a page has between ``<!-- name -->`` and ``<!-- end of name -->``.

    Raises:
        ConfigError: the page lacks one of them.
    """
    write_atomically(page, filled(page, page.read_text(encoding="utf-8"), name, lines))


def filled(page: Path, text: str, name: str, lines: Iterable[str]) -> str:
    """Return the text of a page with other lines between its marks; see `fill`."""
    first, last = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    if first not in text or last not in text:
        raise ConfigError(f"{page}: must contain '{first.strip()}' and '{last.strip()}'")
    before, rest = text.split(first, 1)
    return "".join((before, first, "\n".join(lines), last, f"\n{rest}".split(last, 1)[1]))
