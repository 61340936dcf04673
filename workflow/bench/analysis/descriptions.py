"""Descriptions of figures and tables: ``workflow/report/<name>.rst``, which begin with a title in bold."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.support.reading import read_text

REPORT: Final = ROOT / "workflow" / "report"


class Described(NamedTuple):
    """The title of a figure or table, and paragraphs of reStructuredText on what it shows, each on one line."""

    title: str
    paragraphs: tuple[str, ...]


def described(name: str) -> Described | None:
    """Return the description of a figure or table; None without one.

    Raises:
        ConfigError: it does not begin with a title in bold.
    """
    file = REPORT / f"{name}.rst"
    if not file.is_file():
        return None
    first, *others = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", read_text(file).strip())]
    match = re.fullmatch(r"\*\*(.+?)\.\*\* (.+)", first)
    if match is None:
        raise ConfigError(f"workflow/report/{name}.rst must begin with '**<title>.**' and how to read it.")
    return Described(match[1], (match[2], *others))
