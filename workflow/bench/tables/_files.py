"""Write one table as CSV for programs, Markdown for repositories and HTML for the report."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

import pandas as pd

from workflow.bench.analysis.captions import as_rst
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.wording import number
from workflow.bench.results.sources import Sources
from workflow.bench.support.files import write_atomically

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 1.5em; }
h1 { font-size: 1.2em; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #ddd; padding: .35em .6em; text-align: left; vertical-align: top; }
th { position: sticky; top: 0; z-index: 1; background: #f4f4f4; vertical-align: bottom; }
td { max-width: 34em; overflow-wrap: break-word; }
td:first-child { position: sticky; left: 0; background: #fff; }
td.short { white-space: nowrap; }
td.data { min-width: 24em; font-size: .85em; color: #555; }
td.long { min-width: 16em; }
p { color: #555; max-width: 60em; }
"""

_SENTENCE: Final = 60  # characters
_NUMBER: Final = 28  # with its interval
DATA: Final = "data"
"""The column of `Sources`, the files and runs that a row's numbers come from."""


def write_table(frame: pd.DataFrame, folder: Path, name: str, *, title: str, caption: str) -> list[Path]:
    """Write ``folder/name.csv``, ``.md``, ``.html`` and the caption ``.rst``, each whole or not at all; return them.

    The caption stands under the table in Markdown and HTML; the CSV holds the rows alone.  Of where a row's numbers
    come from (`DATA`), Markdown has the files and how many runs, HTML their ids too, folded away.
    """
    shown = frame.astype(object).where(frame.notna(), "")
    brief = shown.assign(data=shown[DATA].map(Sources.brief)) if DATA in shown else shown
    # Not pandas' to_markdown: it pads every column to its longest sentence, which nobody can read as text.
    rows = [list(map(str, brief.columns)), ["---"] * len(brief.columns), *brief.to_numpy().tolist()]
    lines = [" | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    head = "".join(f"<th>{escape(str(column))}</th>" for column in shown.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in shown.to_numpy().tolist())
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>\n"
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>\n<p>{escape(caption)}</p></body></html>\n"
    )
    markdown = f"# {title}\n\n" + "".join(f"| {line} |\n" for line in lines) + f"\n{caption}\n"
    contents = {".csv": frame.to_csv(index=False), ".md": markdown, ".html": page, ".rst": as_rst(caption)}
    for suffix, content in contents.items():
        write_atomically(folder / f"{name}{suffix}", content)
    return [folder / f"{name}{suffix}" for suffix in contents]


def estimated(estimate: Estimate, digits: int = 3) -> str:
    """A number as a cell: with its interval, where it has one."""
    if not estimate.has_interval:
        return number(estimate.value, digits)
    return f"{number(estimate.value, digits)} [{number(estimate.low, digits)}, {number(estimate.high, digits)}]"


def _cell(value: object) -> str:
    """A cell of the HTML table: numbers stay on one line, a sentence gets room to be read."""
    text = str(value)
    if isinstance(value, Sources):
        brief = value.brief()
        folded = (
            f"<details><summary>{escape(brief)}</summary>{escape(text)}</details>" if brief != text else escape(text)
        )
        return f'<td class="data">{folded}</td>'
    kind = ' class="long"' if len(text) > _SENTENCE else ' class="short"' if len(text) <= _NUMBER else ""
    return f"<td{kind}>{escape(text)}</td>"
