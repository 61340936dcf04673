"""Tables as a page shows them: without columns that say nothing, rows in groups, each interval below its value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workflow.bench.results.sources import NamedRows, read_sources
from workflow.bench.site.prose import name_of, named

SOURCES: Final = "data"
"""The column with the files and runs that a row is computed from."""
_SIDES: Final = {"here": "here", "in the paper": "paper"}
_COMPARED: Final = re.compile(r"(?P<what>.+) (?P<side>here|in the paper)(?P<unit>( \(.*\))?)")
"""The name of a column that says which side it shows: ``F1 here (%)``."""
_INTERVAL: Final = re.compile(r"(?P<value>[-+]?\d[^\[\]]*|∞|not reached) (?P<interval>\[[^\[\]]*\][^\[\]]*)")
_NUMBER: Final = re.compile(r"[-+]?\d[\d.,e+-]*")
_WORD: Final = re.compile(r"[^\d,;]{1,12}")
"""A text that may stand in place of a number, such as ``not reached``."""
_TRUTH: Final = {"True": "yes", "False": "no"}
_NAMED: Final = 8
"""The most texts that tell what is in a closed group."""
_WIDE: Final = 45
"""A column with a longer text has room for sentences."""


@dataclass(frozen=True)
class Column:
    """A column with its heading; ``side`` is empty, ``here`` or ``paper``, in tables that compare the two."""

    key: str
    heading: str
    side: str = ""
    is_number: bool = False
    """Whether it holds numbers, with or without intervals, and words in their place, and is aligned so."""
    is_wide: bool = False

    @property
    def label(self) -> str:
        """The heading with its side, for a row that is shown as a card."""
        return f"{self.heading}, {self.side}" if self.side else self.heading


@dataclass(frozen=True)
class Cell:
    """A text, and the interval that follows its value; in place of an identifier its name."""

    text: str
    interval: str = ""
    identifier: str = ""


@dataclass(frozen=True)
class Row:
    """The cells of a row, in the order of the columns, and the files that it is computed from."""

    cells: tuple[Cell, ...]
    sources: tuple[NamedRows, ...] = ()


@dataclass(frozen=True)
class RunGroup:
    """The rows with a common heading; without one where the rows of a table are not grouped."""

    heading: tuple[Cell, ...]
    rows: tuple[Row, ...]

    @property
    def inside(self) -> str:
        """What its first column has, for a group that is closed."""
        texts = list(dict.fromkeys(row.cells[0].text for row in self.rows if row.cells))
        more = len(texts) - _NAMED
        return ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class RunGrid:
    """A table on a page."""

    columns: tuple[Column, ...]
    groups: tuple[RunGroup, ...]
    shared: tuple[tuple[str, Cell], ...] = ()
    """Columns with the same text in every row, and that text."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(len(group.rows) for group in self.groups)


def grid(rows: Sequence[Mapping[str, str]], *, most_leading: int = 4) -> RunGrid:
    """Return a table's page from its rows as texts.

    Leading columns, at most so many, that repeat their texts become headings of groups, in the order of their first
    rows. An empty column is left out, and one with the same text everywhere is stated once. The columns ``x, low`` and
    ``x, high`` become the interval of ``x``, and the column `SOURCES` each row's sources.
    """
    rows = [_with_intervals(row) for row in rows]
    keys = [key for key in (rows[0] if rows else {}) if key != SOURCES and any(row[key] for row in rows)]
    shared = tuple(
        (key, _cell(key, rows[0][key])) for key in keys if len(rows) > 2 and len({row[key] for row in rows}) == 1
    )
    keys = [key for key in keys if key not in dict(shared)]
    leading = keys[: _grouping(rows, keys[: most_leading + 1])]
    sides = {match["side"] for key in keys if (match := _COMPARED.fullmatch(key))}
    columns = tuple(_column(key, rows, compares=len(sides) == len(_SIDES)) for key in keys[len(leading) :])
    by_heading: dict[tuple[Cell, ...], list[Row]] = {}
    for row in rows:
        cells = tuple(_cell(column.key, row[column.key]) for column in columns)
        heading = tuple(_cell(key, row[key]) for key in leading if row[key])
        by_heading.setdefault(heading, []).append(Row(cells, read_sources(row.get(SOURCES, ""))))
    groups = tuple(RunGroup(heading, tuple(of_group)) for heading, of_group in by_heading.items())
    return RunGrid(columns, groups, shared)


def _with_intervals(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row in which the bounds that stand in columns of their own follow their value in brackets."""
    merged = dict(row)
    for key in row:
        if f"{key}, low" in row and f"{key}, high" in row:
            low, high = merged.pop(f"{key}, low"), merged.pop(f"{key}, high")
            if low or high:
                merged[key] = f"{row[key]} [{low}, {high}]"
    return merged


def _grouping(rows: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    """Return the number of leading columns that form groups of three rows or more, on average."""
    # The most columns that still form groups: fewer rows than three under a heading are easier to read in one table.
    for length in range(len(keys) - 1, 0, -1):
        groups = {tuple(row[key] for key in keys[:length]) for row in rows}
        if 3 * len(groups) <= len(rows):
            return length
    return 0


def _column(key: str, rows: Iterable[Mapping[str, str]], *, compares: bool) -> Column:
    match = _COMPARED.fullmatch(key) if compares else None
    texts = [_cell(key, row[key]).text for row in rows if row[key]]
    numbers = [text for text in texts if _NUMBER.fullmatch(text)]
    return Column(
        key,
        named(match["what"] + match["unit"] if match else key.replace("_", " ")).striptags(),
        _SIDES[match["side"]] if match else "",
        is_number=bool(numbers) and all(_WORD.fullmatch(text) for text in texts if text not in numbers),
        is_wide=any(len(text) > _WIDE for text in texts),
    )


def _cell(key: str, text: str) -> Cell:
    if name := name_of(key, text):
        return Cell(name, identifier=text)
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return Cell(_TRUTH.get(text, text))
    # No line break inside the brackets.
    return Cell(match["value"], re.sub(r" (?=[^\[]*\])", "\u00a0", match["interval"]))
