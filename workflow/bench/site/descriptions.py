"""Titles and readings of figures and tables, from their descriptions in ``workflow/report/<name>.rst``.

A description begins with a title in bold, and two sentences on what is shown and how to read it. Further paragraphs are
for those who want to know more. A figure or table without a description has its name as the title.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup, escape

from workflow.bench.analysis.descriptions import described


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
        ConfigError: it does not begin with a title in bold.
    """
    text = described(name)
    if text is None:
        return Description(name, Markup())
    title = re.sub(r"\((Figure|Table) (\d+)\)", "(\\1\u00a0\\2)", text.title)
    reading, *more = map(inline, text.paragraphs)
    return Description(title, reading, tuple(more))


def inline(text: str) -> Markup:
    """Return a paragraph of reStructuredText as HTML: ``**bold**``, ``*italic*`` and literals; all else is text."""
    html = str(escape(text))
    for pattern, tag in ((r"``(.+?)``", "code"), (r"\*\*(.+?)\*\*", "b"), (r"(?<![\w*])\*(\S.*?)\*(?![\w*])", "i")):
        html = re.sub(pattern, rf"<{tag}>\1</{tag}>", html)
    return Markup(html)
