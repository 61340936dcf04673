"""Texts as HTML: marks of reStructuredText and Markdown, and names in place of identifiers.

Each optimizer, workload and experiment has one name, that of figures; its identifier is the tooltip.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import yaml
from markupsafe import Markup, escape

from workflow.bench.analysis.styles import STYLES, WORKLOADS
from workflow.bench.support.config import CONFIG
from workflow.bench.support.reading import read_text
from workflow.bench.support.templates import breakable

_LONG: Final = 12
"""A longer word may break, where a column is narrow."""
_WORDS: Final = frozenset(("copy", "width", "ladder", "krona"))
"""Identifiers that are words too: text has the words."""


def experiment_name(experiment: str) -> str:
    """Return the title of an experiment's file; the identifier in words if this repository has no such file."""
    return _titles().get(experiment, experiment.replace("_", " "))


def name_of(column: str, identifier: str) -> str | None:
    """Return the name of what a column of a table identifies; None where the text is no identifier."""
    if column.startswith("experiment"):
        return _titles().get(identifier)
    if column.startswith(("workload", "model")):
        return WORKLOADS.get(identifier)
    return STYLES[identifier].name if identifier in STYLES else None


def named(text: str) -> Markup:
    """Return a text as HTML in which names stand for identifiers, which are their tooltips.

    Other long words with underscores or slashes may break there. Names of files stay as they are.
    """
    parts = _identifier().split(text)
    # The pattern has one group, so that identifiers have the odd places.
    return Markup("").join(_titled(part) if place % 2 else _breakable(part) for place, part in enumerate(parts))


def inline(text: str) -> Markup:
    """Return a paragraph as HTML: **bold**, *italic*, literals between one or two backticks, and names (`named`).

    Of a link in Markdown the text remains.
    """
    parts = re.split(r"``?(.+?)``?", re.sub(r"\[([^\]]+)\]\([^)\s]+\)", r"\1", text))
    html = ""
    for place, part in enumerate(parts):
        # A literal that is an identifier is its name, without the look of code.
        is_code = place % 2 and named(part) == _breakable(part)
        html += f"<code>{escape(part)}</code>" if is_code else str(named(part))
    for pattern, tag in ((r"\*\*(.+?)\*\*", "b"), (r"(?<![\w*])\*(\S.*?)\*(?![\w*])", "i")):
        html = re.sub(pattern, rf"<{tag}>\1</{tag}>", html)
    return Markup(html)


def _breakable(text: str) -> Markup:
    words = re.split(r"(\s+)", text)
    return Markup("").join(breakable(word) if len(word) > _LONG else escape(word) for word in words)


def _titled(identifier: str) -> Markup:
    if identifier in _titles():
        return Markup('“<span title="{}">{}</span>”').format(identifier, _titles()[identifier])
    name = STYLES[identifier].name if identifier in STYLES else WORKLOADS[identifier]
    return Markup('<span title="{}">{}</span>').format(identifier, name)


@cache
def _titles() -> dict[str, str]:
    titles = {}
    for file in sorted((CONFIG / "experiments").glob("*.yaml")):
        # The whole file takes YAML long, and its first line has the title.
        first = yaml.safe_load(read_text(file).partition("\n")[0])
        titles[file.stem] = str(first["title"])
    return titles


@cache
def _identifier() -> re.Pattern[str]:
    known = {*STYLES, *_titles(), *(name for name in WORKLOADS if "_" in name)} - _WORDS
    longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    # Neither a part of a longer name, nor the beginning of a file's.
    return re.compile(rf"(?<![\w.-])({longest_first})(?![\w-]|\.\w|/\w+\.)")
