"""Write one table as CSV for programs, Markdown for repositories and HTML for the report."""

from __future__ import annotations

from html import escape
from pathlib import Path

import pandas as pd

from workflow.bench.files import write_atomically

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 1.5em; }
h1 { font-size: 1.2em; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #ddd; padding: .35em .6em; text-align: left; vertical-align: top; }
th { position: sticky; top: 0; background: #f4f4f4; white-space: nowrap; }
td { max-width: 34em; overflow-wrap: break-word; }
td.long { min-width: 16em; }
p { color: #555; max-width: 60em; }
"""


def write_table(frame: pd.DataFrame, folder: Path, name: str, *, title: str, caption: str) -> list[Path]:
    """Write ``folder/name.csv``, ``.md`` and ``.html``, each whole or not at all, and return their paths.

    The caption stands under the table in Markdown and HTML; the CSV holds the rows alone.
    """
    shown = frame.astype(object).where(frame.notna(), "")
    # Not pandas' to_markdown: it pads every column to its longest sentence, which nobody can read as text.
    rows = [list(map(str, shown.columns)), ["---"] * len(shown.columns), *shown.to_numpy().tolist()]
    lines = [" | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    head = "".join(f"<th>{escape(str(column))}</th>" for column in shown.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in shown.to_numpy().tolist())
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>\n"
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>\n<p>{escape(caption)}</p></body></html>\n"
    )
    markdown = f"# {title}\n\n" + "".join(f"| {line} |\n" for line in lines) + f"\n{caption}\n"
    contents = {".csv": frame.to_csv(index=False), ".md": markdown, ".html": page}
    for suffix, content in contents.items():
        write_atomically(folder / f"{name}{suffix}", content)
    return [folder / f"{name}{suffix}" for suffix in contents]


def _cell(value: object) -> str:
    """A cell of the HTML table; a sentence gets room to be read."""
    text = str(value)
    kind = ' class="long"' if len(text) > 60 else ""
    return f"<td{kind}>{escape(text)}</td>"
