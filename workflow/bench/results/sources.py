"""The sources of a table's numbers: the files, and in them the runs or rows, from which a row is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd


@dataclass(frozen=True)
class Source:
    """Rows of one file: those of some runs, or those in which columns have given values; else the whole file."""

    file: str
    """The file's path seen from the results folder, or from the repository for the paper's numbers."""
    runs: tuple[str, ...] = ()
    where: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if self.runs:
            return f"{self.file}: runs {', '.join(self.runs)}"
        values = ", ".join(f"{column}={value}" for column, value in self.where)
        return f"{self.file}: {values}" if values else self.file

    def brief(self) -> str:
        """Return the text with the number of runs in place of their ids."""
        count = len(self.runs)
        return f"{self.file} ({count} run{'s' if count > 1 else ''})" if count else str(self)


@dataclass(frozen=True)
class Sources:
    """All sources of a table's row, each once: the value of its column ``data``, which files show as text."""

    parts: tuple[Source, ...] = ()

    def __add__(self, other: Sources) -> Sources:
        return Sources(tuple(dict.fromkeys(self.parts + other.parts)))

    def __str__(self) -> str:
        return "; ".join(map(str, self.parts))

    def brief(self) -> str:
        """Return the text with numbers of runs in place of their ids."""
        return "; ".join(source.brief() for source in self.parts)


NO_SOURCES: Final = Sources()


def from_runs(file: str, rows: pd.DataFrame) -> Sources:
    """Return the runs of ``rows``, which have the column ``run``, as a source; no source if ``rows`` is empty."""
    runs = tuple(dict.fromkeys(rows["run"].astype(str)))
    return Sources((Source(file, runs),)) if runs else NO_SOURCES


def from_rows(file: str, **values: object) -> Sources:
    """Return a file's rows with these values as a source, for files without runs: probes and the paper's numbers."""
    return Sources((Source(file, where=tuple((column, str(value)) for column, value in values.items())),))


@dataclass(frozen=True)
class NamedRows:
    """Rows of one file, as a cell of a written column ``data`` names them."""

    file: str
    runs: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    """Further rows, in words: ``optimizer=mkor, part=factor``."""


def read_sources(text: str) -> tuple[NamedRows, ...]:
    """Return the files that a cell of a written column ``data`` names, each once with all of its rows."""
    by_file: dict[str, NamedRows] = {}
    for part in filter(None, text.split("; ")):
        file, _, rows = part.partition(": ")
        known = by_file.get(file, NamedRows(file))
        runs = tuple(rows.removeprefix("runs ").split(", ")) if rows.startswith("runs ") else ()
        where = (rows,) if rows and not runs else ()
        merged = tuple(dict.fromkeys(known.runs + runs)), tuple(dict.fromkeys(known.where + where))
        by_file[file] = NamedRows(file, *merged)
    return tuple(by_file.values())


def files_in(text: str) -> set[str]:
    """Return the files that a cell of a written column ``data`` names."""
    return {source.file for source in read_sources(text)}
