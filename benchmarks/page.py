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
    text = page.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    if first not in text or last not in text:
        raise ConfigError(f"--page: must contain '{first.strip()}' and '{last.strip()}'")
    before, rest = text.split(first, 1)
    write_atomically(page, before, first, "\n".join(lines), last, f"\n{rest}".split(last, 1)[1])
