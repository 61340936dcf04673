"""Titles and readings of figures and tables, from their descriptions in ``workflow/report/<name>.rst``.

A description begins with a title in bold, and two sentences on what is shown and how to read it. Further paragraphs are
for those who want to know more. A figure or table without a description has its name as the title.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from workflow.bench.support.config import ROOT
from workflow.bench.support.reading import read_text

REPORT = ROOT / "workflow" / "report"


@dataclass(frozen=True)
class Description:
    """What a figure or table shows."""

    title: str
    reading: Markup
    """How to read it, in two sentences."""
    more: tuple[Markup, ...] = ()
    """Further paragraphs."""


def describe(name: str) -> Description:
    """Return the description of a figure or table.

    Raises:
        ValueError: it does not begin with a title in bold.
    """
    file = REPORT / f"{name}.rst"
    if not file.is_file():
        return Description(name, Markup())
    title, paragraphs = parse(read_text(file), name)
    return Description(title, paragraphs[0], tuple(paragraphs[1:]))


def parse(text: str, name: str) -> tuple[str, list[Markup]]:
    """Return the title and the paragraphs of a description.

    Raises:
        ValueError: it does not begin with a title in bold.
    """
    first, *others = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip())]
    match = re.fullmatch(r"\*\*(.+?)\.\*\* (.+)", first)
    if match is None:
        raise ValueError(f"workflow/report/{name}.rst must begin with '**<title>.**' and how to read it.")
    title = re.sub(r"\((Figure|Table) (\d+)\)", "(\\1\u00a0\\2)", match[1])
    return title, [inline(paragraph) for paragraph in (match[2], *others)]


def inline(text: str) -> Markup:
    """Return a paragraph of reStructuredText as HTML: ``**bold**``, ``*italic*`` and literals; all else is text."""
    html = str(escape(text))
    for pattern, tag in ((r"``(.+?)``", "code"), (r"\*\*(.+?)\*\*", "b"), (r"(?<![\w*])\*(\S.*?)\*(?![\w*])", "i")):
        html = re.sub(pattern, rf"<{tag}>\1</{tag}>", html)
    return Markup(html)
