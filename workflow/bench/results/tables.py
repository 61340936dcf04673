"""Read the tidy CSVs that figures, tables and claims are made from; nothing here writes or trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from workflow.bench.results.columns import MAY_BE_INFINITE, METRIC_COLUMNS, NUMBERS, RUN_COLUMNS, TEXTS
from workflow.bench.support.config import ROOT

PUBLISHED = ROOT / "workflow" / "paper"


class NoDataError(Exception):
    """There is nothing to make an artefact from; the message is one line for the user."""


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The CSV at ``path``, or an empty frame with ``columns`` where there is none; NoDataError where it is broken."""
    if not path.exists():
        return pd.DataFrame(columns=list(columns))
    try:
        frame = pd.read_csv(path, dtype=TEXTS, keep_default_na=False, na_values=[""], low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise NoDataError(f"{path} is no readable CSV: {error}. Delete it and run again.") from error
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise NoDataError(f"{path} lacks the columns {', '.join(missing)}. Delete it and run again.")
    for column in NUMBERS.intersection(frame.columns):
        _refuse_text(path, frame[column], infinite=path.parent.name == "probes" and column in MAY_BE_INFINITE)
    for column, is_one in _MAPPINGS.items():
        for row, text in frame[column].dropna().items() if column in frame else ():
            if not is_one(text):
                raise _odd(path, row, column, text, f"no {column}")
    return frame


def _odd(path: Path, row: object, column: object, value: object, what: str) -> NoDataError:
    place = f"{path}, line {int(str(row)) + 2}"
    return NoDataError(f"{place}: {column} = {str(value)!r:.40} is {what}. Delete it and run again.")


def _parsed(text: object) -> dict[str, Any]:
    """The mapping that ``text`` is in JSON; empty where it is none."""
    try:
        found = json.loads(str(text), parse_constant=str)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_target(text: object) -> bool:
    found = _parsed(text)
    limits = [limit for name, limit in found.items() if name in ("below", "above")]
    named = isinstance(found.get("split"), str) and isinstance(found.get("metric"), str)
    return named and len(limits) == 1 and isinstance(limits[0], int | float) and not isinstance(limits[0], bool)


_MAPPINGS: Final[Mapping[str, Callable[[object], bool]]] = {
    "target": _is_target,
    "hyperparameters": lambda text: bool(_parsed(text)) or text == "{}",
}


def _refuse_text(path: Path, column: pd.Series, *, infinite: bool) -> None:
    """NoDataError where a column of numbers, or of nothing, holds anything else; infinities only where allowed."""
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    wrong = column[column.notna() & (np.isnan(numbers) if infinite else ~np.isfinite(numbers))]
    if not wrong.empty:
        raise _odd(path, wrong.index[0], column.name, wrong.iloc[0], "no number")


_FORMER_MODELS: Final[Mapping[str, Mapping[str, str]]] = {"iteration_time": {"bert_pretraining": "bert"}}
"""Models that results of earlier versions, such as those in results/reference, name differently, by probe."""


@dataclass(frozen=True)
class Results:
    """The results of one machine at one tier: the folder ``results/<hardware>/<tier>``.

    ``tier_title`` is what captions say of the tier, where the caller knows it; ``compared`` are other machines'
    folders at the same tier, for what compares hardware.
    """

    root: Path
    tier_title: str | None = None
    compared: tuple[Path, ...] = ()

    @property
    def tier(self) -> str:
        """The tier's name."""
        return self.root.resolve().name

    @property
    def hardware(self) -> str:
        """The machine's name."""
        return self.root.resolve().parent.name

    def metrics(self, experiment: str) -> pd.DataFrame:
        """Rows of ``<experiment>.csv``: one per evaluation, or one per run that has none; empty where not run."""
        return _read(self.root / f"{experiment}.csv", METRIC_COLUMNS)

    def runs(self, experiment: str) -> pd.DataFrame:
        """Rows of ``<experiment>.runs.csv``: one per run; empty where the experiment has not run."""
        return _read(self.root / f"{experiment}.runs.csv", RUN_COLUMNS)

    def probe(self, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
        """Rows of ``probes/<name>.csv``, which must have ``columns``; empty where the probe has not run."""
        rows = _read(self.root / "probes" / f"{name}.csv", columns)
        return rows.replace({"workload": _FORMER_MODELS.get(name, {})}) if "workload" in rows else rows

    def experiments(self) -> list[str]:
        """Names of the experiments that have a table of runs."""
        return sorted(path.name.removesuffix(".runs.csv") for path in self.root.glob("*.runs.csv"))

    def skipped(self, experiments: Iterable[str]) -> pd.DataFrame | None:
        """The runs of these experiments (``*``: of all) where there are any and every one was skipped, else None."""
        chosen = self.experiments() if tuple(experiments) == ("*",) else list(experiments)
        frames = [frame for name in chosen if not (frame := self.runs(name)).empty]
        runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["status"])
        return runs if frames and (runs["status"] == "skipped").all() else None


def published(name: str, *, as_text: bool = False) -> pd.DataFrame:
    """A file of the paper's own numbers, ``workflow/paper/<name>.csv``; as text, with the digits that were printed."""
    file = PUBLISHED / f"{name}.csv"
    return pd.read_csv(file, dtype=str, keep_default_na=False) if as_text else pd.read_csv(file)
