"""The glossary, docs/glossary.md, and its links: in each page of the site a term is linked where it is first used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from markupsafe import escape

from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.support.reading import read_text

_FILE: Final = ROOT / "docs" / "glossary.md"
_ENTRY: Final = re.compile(r"- \*\*(?P<name>[^*]+)\*\*(?: \((?P<others>[^)]*)\))?: (?P<meaning>.+)")
_UNLINKED: Final = (
    "a",
    "button",
    "code",
    "dt",
    "h1",
    "label",
    "nav",
    "option",
    "script",
    "select",
    "style",
    "summary",
    "svg",
    "th",
)
"""Elements that hold a link or a control, or are none of a page's text."""
_TOKEN: Final = re.compile(r"(<!--.*?-->|<[^>]+>)", re.DOTALL)


@dataclass(frozen=True)
class Term:
    """A term with the forms in which pages use it, and its meaning as Markdown."""

    name: str
    others: tuple[str, ...]
    meaning: str
    group: str
    """The heading that it stands below."""

    @property
    def id(self) -> str:
        """The id of its entry in the site."""
        return "glossary-" + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def plain(self) -> str:
        """Its meaning without marks, for a tooltip."""
        return re.sub(r"[*`]", "", self.meaning)


@dataclass(frozen=True)
class Glossary:
    """All terms, in the page's order."""

    terms: tuple[Term, ...]

    def linked(self, page: str) -> str:
        """Return a page of HTML in which terms are links where its text first uses them."""
        used: set[str] = set()
        return "".join(self._link(text, used) if is_text else text for is_text, text in _texts(page))

    def _link(self, text: str, used: set[str]) -> str:
        def link(match: re.Match[str]) -> str:
            term = self._by_form[_folded(match[0])]
            if term.id in used:
                return match[0]
            used.add(term.id)
            return f'<a class="term" href="#{term.id}" title="{escape(term.plain)}">{match[0]}</a>'

        return self._pattern.sub(link, text)

    @cached_property
    def _by_form(self) -> dict[str, Term]:
        return {_folded(str(escape(form))): term for term in self.terms for form in (term.name, *term.others)}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._by_form, key=len, reverse=True)
        # Names of optimizers keep their case: "Eva" is one, "eva" an identifier, whose tooltip says so.
        return re.compile(
            "|".join(
                rf"(?<![\w-]){re.escape(form) if form != form.lower() else f'(?i:{re.escape(form)})'}(?![\w-])"
                for form in longest_first
            )
        )


def read_glossary() -> Glossary:
    """Return the glossary.

    Raises:
        ConfigError: a line of its lists is no entry.
    """
    terms, group = [], ""
    for number, line in enumerate(read_text(_FILE).splitlines(), 1):
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif line.startswith("- "):
            match = _ENTRY.fullmatch(line)
            if match is None:
                raise ConfigError(f"docs/glossary.md, line {number}: must be '- **term** (other forms): meaning'")
            others = tuple(filter(None, (match["others"] or "").split(", ")))
            terms.append(Term(match["name"], others, match["meaning"], group))
    return Glossary(tuple(terms))


def _folded(form: str) -> str:
    """Return the form by which a term is found: names with capitals as they are, all others in small letters."""
    return form if form[1:] != form[1:].lower() else form.lower()


def _texts(page: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a page, and whether each is text outside of `_UNLINKED`."""
    depth = 0
    for part in _TOKEN.split(page):
        if not part.startswith("<"):
            yield depth == 0, part
            continue
        name = re.match(r"</?([a-z0-9]+)", part)
        if name and name[1] in _UNLINKED:
            depth += -1 if part.startswith("</") else 0 if part.endswith("/>") else 1
        yield False, part
