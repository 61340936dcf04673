"""Write one table as CSV for programs, Markdown for repositories and HTML for the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from workflow.bench.analysis.captions import as_rst
from workflow.bench.results.sources import Sources
from workflow.bench.support.files import write_atomically
from workflow.bench.support.templates import render

_SENTENCE: Final = 60
"""A cell with more characters is wide, so that its sentence can be read."""
_NUMBER: Final = 28
"""A cell with at most as many characters, such as a number with its interval, stays on one line."""
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")
_FORMULA: Final = re.compile(r"[=@]|[+-][^0-9.\s]")
"""How a text begins that a spreadsheet computes; a negative number is none."""
DATA: Final = "data"
"""The column of `Sources`: the files and runs from which a row's numbers are computed."""


@dataclass(frozen=True)
class Narrow:
    """What Markdown and HTML show in place of a frame with many columns, row by row."""

    table: pd.DataFrame
    """Its first column names the row."""
    details: pd.DataFrame
    """Shown below the table, under the row's name; empty cells are left out."""


def write_table(
    frame: pd.DataFrame, folder: Path, name: str, *, title: str, caption: str, narrow: Narrow | None = None
) -> list[Path]:
    """Write ``folder/name.csv``, ``.md``, ``.html`` and the caption ``.rst``, each whole or not at all; return them.

    The caption follows the table in Markdown and HTML, and the CSV file holds the rows alone. The column `DATA` stands
    in the CSV: the ids of a row's runs are for programs, and would be most of a page.
    """
    shown = narrow.table if narrow else frame.drop(columns=DATA, errors="ignore")
    rows, columns = _cells(shown), [str(column) for column in shown]
    details = _details(narrow) if narrow else []
    sections = []
    for row_name, row in details:
        lines = (f"- {column}: {cell.text}\n" for column, cell in row.items())
        sections.append(f"\n## {row_name}\n\n{''.join(lines)}")
    # A spreadsheet takes a text for a formula unless it has a quote in front: ``=cmd|...``
    texts = frame.map(lambda cell: f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell)
    contents = {
        ".csv": texts.to_csv(index=False),
        ".md": f"# {title}\n\n{_markdown(columns, rows)}\n{caption}\n{''.join(sections)}",
        ".html": render("table.html.j2", title=title, columns=columns, rows=rows, caption=caption, details=details),
        ".rst": as_rst(caption),
    }
    for suffix, content in contents.items():
        write_atomically(folder / f"{name}{suffix}", content)
    return [folder / f"{name}{suffix}" for suffix in contents]


class _Cell(NamedTuple):
    """A cell with its text and its class in the HTML page."""

    text: str
    kind: str = ""


def _cells(frame: pd.DataFrame) -> list[list[_Cell]]:
    cells: list[list[_Cell]] = frame.astype(object).where(frame.notna(), "").map(_cell).to_numpy().tolist()
    return cells


def _details(narrow: Narrow) -> list[tuple[str, dict[str, _Cell]]]:
    """Return for each row its name and the details that it has."""
    columns = [str(column) for column in narrow.details]
    rows = [dict(zip(columns, cells, strict=True)) for cells in _cells(narrow.details)]
    kept = ({column: cell for column, cell in row.items() if cell.text} for row in rows)
    return [(str(name), row) for name, row in zip(narrow.table.iloc[:, 0], kept, strict=True)]


def _cell(value: object) -> _Cell:
    text = str(value)
    if isinstance(value, Sources):
        return _Cell(value.brief())
    return _Cell(text, "long" if len(text) > _SENTENCE else "short" if len(text) <= _NUMBER else "")


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[_Cell]]) -> str:
    """Return the table's lines; pandas would pad every column to its longest sentence, which nobody can read."""

    def escaped(text: str) -> str:
        # A tag that a record brings stays text.
        return _TAG.sub("&lt;", text).replace("|", "\\|").replace("\n", " ")

    lines = [columns, ["---"] * len(columns), *([cell.text for cell in cells] for cells in rows)]
    return "".join(f"| {' | '.join(map(escaped, line))} |\n" for line in lines)
