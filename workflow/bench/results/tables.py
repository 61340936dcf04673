"""Read the tidy CSV files that figures, tables and claims are made from."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import (
    EVALUATION_COLUMNS,
    MAY_BE_INFINITE,
    RUN_COLUMNS,
    TRIAL_COLUMNS,
    Columns,
    probe_columns,
)
from workflow.bench.support.config import ROOT
from workflow.bench.support.errors import DamagedFileError, UnreadableError, one_line
from workflow.bench.support.reading import read_bytes

PUBLISHED = ROOT / "workflow" / "paper"


class NoDataError(Exception):
    """Raised when an artefact has no data, or no readable data; the message is one line for the user."""


_NAMED: Final = 5
"""The most columns that a message names."""


def _read(path: Path, columns: Columns, *, may_be_infinite: Collection[str] = ()) -> pd.DataFrame:
    """Return the rows of the CSV file at ``path``, with values of the types in ``columns``.

    An empty field is missing (NaN, or None in a column of objects). A file that does not exist has no rows.

    Raises:
        NoDataError: the file cannot be read, is not a CSV file, lacks a column, or holds a value of another type.
    """
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return pd.DataFrame(columns=list(columns))
    except (UnreadableError, DamagedFileError) as problem:
        raise NoDataError(str(problem)) from None
    # Types of numbers are left to pandas, which then reads a column of whole numbers as such.
    texts = {column: "str" for column, kind in columns.items() if kind not in (int, float)}
    try:
        frame = pd.read_csv(io.BytesIO(content), dtype=texts, keep_default_na=False, na_values=[""], low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        # Pandas ends some of its messages with a new line.
        reason = one_line(str(error).strip())
        raise NoDataError(f"{path} is not a readable CSV file: {reason}. Delete it and run again.") from error
    # Pandas takes the first fields of rows that are longer than the header for an index.
    if not isinstance(frame.index, pd.RangeIndex):
        raise NoDataError(f"{path}: its rows are longer than its header. Delete it and run again.")
    if lacking := [column for column in columns if column not in frame]:
        named = ", ".join(lacking[:_NAMED]) + (f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else "")
        raise NoDataError(f"{path} lacks the columns {named}. Delete it and run again.")
    for column, kind in columns.items():
        try:
            if kind in (int, float):
                _check_numbers(frame[column], infinite=column in may_be_infinite)
            elif kind is not str:
                frame[column] = _parsed(frame[column], kind)
        except _BadValueError as bad:
            row, wrong = bad.args
            # Lines count from 1, and the first is the header.
            where, value = f"{path}, line {row + 2}: {column}", str(frame[column][row])
            raise NoDataError(f"{where} = {value!r:.40} is {wrong}. Delete it and run again.") from None
    return frame


class _BadValueError(Exception):
    """The row of a value that its column cannot have, and what is wrong with it."""


def _check_numbers(column: pd.Series, *, infinite: bool) -> None:
    """Raise `_BadValueError` if a column holds no number somewhere, or an infinity that is not allowed."""
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    wrong = column.notna() & (np.isnan(numbers) if infinite else ~np.isfinite(numbers))
    if wrong.any():
        row = int(wrong.argmax())
        raise _BadValueError(row, "not a number" if np.isnan(numbers[row]) else "not finite")


def _parsed(column: pd.Series, kind: type) -> pd.Series:
    """Return a column of text with its values parsed, or raise `_BadValueError`; missing values stay missing."""
    parse, values = _PARSERS[kind], []
    for row, text in column.items():
        try:
            values.append(None if pd.isna(text) else parse(text))
        except ValueError as error:
            raise _BadValueError(row, error) from None
    return pd.Series(values, column.index, "boolean" if kind is bool else object)


def is_true(column: pd.Series) -> pd.Series:
    """Return whether the truth values of a column are true; a missing one is not."""
    return column.astype("boolean").fillna(False).astype(bool)


def _truth_value(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def _mapping(text: str) -> dict[str, Any]:
    try:
        mapping = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        mapping = None
    if not isinstance(mapping, dict):
        raise ValueError("not a JSON object")
    return mapping


def _target(text: str) -> Target:
    fields = _mapping(text)
    limits = [fields[name] for name in ("below", "above") if name in fields]
    is_named = isinstance(fields.get("split"), str) and isinstance(fields.get("metric"), str)
    if not is_named or len(limits) != 1 or not all(map(_is_finite, (*limits, fields.get("trivial", 0)))):
        raise ValueError("not a target")
    return Target.parse(fields)


def _is_finite(value: object) -> bool:
    # math.isfinite raises an error for an integer that is too large for a float.
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


_PARSERS: Final[Mapping[type, Callable[[str], object]]] = {bool: _truth_value, dict: _mapping, Target: _target}


@dataclass(frozen=True)
class Results:
    """The results of one machine at one tier."""

    root: Path
    """The folder ``results/<hardware>/<tier>``."""
    tier_title: str | None = None
    """The tier's name in captions; None: the folder's name."""
    compared: tuple[Path, ...] = ()
    """Folders of other machines at the same tier, for the artefacts that compare hardware."""
    look: int = 1
    """How often verdicts have been made from results of this folder that grew in between, this time included."""
    looks: int = 1
    """The most looks that the tier allows, for which intervals are made (`analysis.estimates.looks`)."""
    trial_tables: tuple[Path, ...] = ()
    """The files ``config/tuned/<tier>/<experiment>.trials.csv``."""

    @property
    def tier(self) -> str:
        """Name of the tier."""
        return self.root.resolve().name

    @property
    def hardware(self) -> str:
        """Name of the machine."""
        return self.root.resolve().parent.name

    def metrics(self, experiment: str) -> pd.DataFrame:
        """Return the rows of ``<experiment>.csv``: one per evaluated metric, or one per run that has none.

        An experiment that has not run has no rows.
        """
        return _read(self.root / f"{experiment}.csv", EVALUATION_COLUMNS)

    def runs(self, experiment: str) -> pd.DataFrame:
        """Return the rows of ``<experiment>.runs.csv``, one per run; none if the experiment has not run.

        The column ``target`` holds a `Target` or None, ``hyperparameters`` a dict.
        """
        return _read(self.root / f"{experiment}.runs.csv", RUN_COLUMNS)

    def trials(self) -> pd.DataFrame:
        """Return the rows of all tables of trials, one for every trial of tuning.

        Raises:
            NoDataError: as in `_read`, or a row does not say which search it is part of.
        """
        frames = [_read(path, TRIAL_COLUMNS) for path in self.trial_tables]
        for path, frame in zip(self.trial_tables, frames, strict=True):
            cut_off = frame[["experiment", "workload", "optimizer", "study"]].isna().any(axis=1)
            if cut_off.any():
                line = int(cut_off.argmax()) + 2
                raise NoDataError(f"{path}, line {line}: lacks its optimizer or study. Delete it and run again.")
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(TRIAL_COLUMNS))

    def probe(self, name: str) -> pd.DataFrame:
        """Return the rows of ``probes/<name>.csv``; none if the probe has not run."""
        path = self.root / "probes" / f"{name}.csv"
        return _read(path, probe_columns(name), may_be_infinite=MAY_BE_INFINITE)

    def some_runs(self, experiment: str) -> pd.DataFrame:
        """Return the `runs` of an experiment.

        Raises:
            NoDataError: it has none.
        """
        return _not_empty(self.runs(experiment), self.root / f"{experiment}.runs.csv", f"experiment {experiment}")

    def some_rows(self, probe: str) -> pd.DataFrame:
        """Return the rows of a `probe`.

        Raises:
            NoDataError: it has none.
        """
        return _not_empty(self.probe(probe), self.root / "probes" / f"{probe}.csv", f"probe {probe}")

    def experiments(self) -> list[str]:
        """Return the names of the experiments that have a table of runs."""
        return sorted(path.name.removesuffix(".runs.csv") for path in self.root.glob("*.runs.csv"))

    def skipped(self, experiments: Iterable[str]) -> pd.DataFrame | None:
        """Return the runs of these experiments (``*``: all) if there are any and all were skipped, else None."""
        names = self.experiments() if tuple(experiments) == ("*",) else list(experiments)
        frames = [frame for name in names if not (frame := self.runs(name)).empty]
        runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["status"])
        return runs if frames and (runs["status"] == "skipped").all() else None


def _not_empty(rows: pd.DataFrame, path: Path, source: str) -> pd.DataFrame:
    """Return the rows of a file, or raise `NoDataError`, which tells what to run."""
    if rows.empty:
        raise NoDataError(f"no rows in {path}: run the {source} first.")
    return rows


def published(name: str, *, as_text: bool = False) -> pd.DataFrame:
    """Return the paper's numbers in ``workflow/paper/<name>.csv``; ``as_text`` keeps the digits as printed."""
    file = PUBLISHED / f"{name}.csv"
    return pd.read_csv(file, dtype=str, keep_default_na=False) if as_text else pd.read_csv(file)
