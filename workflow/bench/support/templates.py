"""HTML pages from the Jinja templates in workflow/report."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from workflow.bench.support.config import ROOT


def render(template: str, **values: Any) -> str:
    """Return the page that ``workflow/report/<template>`` makes of ``values``; text is escaped for HTML."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ROOT / "workflow" / "report"),
        autoescape=True,
        # A name that the template misspells is an error, not an empty place in the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Templates mark what may break; the texts themselves stay plain for captions and terminals.
    environment.filters["breakable"] = breakable
    environment.filters["numbered"] = numbered
    return environment


def numbered(text: str) -> Markup:
    """Return a text as HTML in which a name stays on one line with its number, such as ResNet-50."""
    return Markup(re.sub(r"\w+-\d+\b", r'<span class="whole">\g<0></span>', str(escape(text))))


def breakable(text: str) -> Markup:
    """Return a text as HTML in which long names may break after an underscore or a slash."""
    return Markup(re.sub(r"([_/])(?=\w)", r"\1<wbr>", str(escape(text))))
