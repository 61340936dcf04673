"""Where the numbers of a table's row come from: files, runs, selected rows."""

from __future__ import annotations

import pandas as pd


def traced(file: str, frame: pd.DataFrame) -> str:
    """Where a table's numbers come from, for its column ``data``: ``<file>: runs <id>, <id>``; empty without rows.

    ``file`` is seen from the results folder (``bert_glue.runs.csv``), ``frame`` has a column ``run``.
    """
    runs = dict.fromkeys(frame["run"].astype(str))
    return f"{file}: runs {', '.join(runs)}" if runs else ""


def chosen(file: str, **values: object) -> str:
    """The same for rows without runs, ``<file>: <column>=<value>, ...``: probes' and the paper's."""
    return f"{file}: {', '.join(f'{column}={value}' for column, value in values.items())}"


def joined(*sources: str) -> str:
    """Several of what `traced` and `chosen` give as one, each once."""
    return "; ".join(dict.fromkeys(filter(None, sources)))
