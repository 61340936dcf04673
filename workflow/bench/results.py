"""Read the tidy CSVs that figures, tables and claims are made from; nothing here writes or trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

PUBLISHED = Path(__file__).resolve().parents[1] / "paper"

METRIC_COLUMNS = (
    "experiment",
    "optimizer",
    "method",
    "update_rule",
    "inverse_update_period",
    "seed",
    "workload",
    "run",
    "status",
    "step",
    "split",
    "metric",
    "value",
    "train_seconds",
)
RUN_COLUMNS = (
    "run",
    "experiment",
    "optimizer",
    "update_rule",
    "inverse_update_period",
    "seed",
    "workload",
    "tier",
    "hardware",
    "status",
    "reason",
    "hyperparameters",
    "start_from",
    "steps_done",
    "steps_to_target",
    "seconds_to_target",
    "train_seconds",
    "dataset",
    "parameters",
    "target",
)


#: Statuses of runs that ended badly of their own.
BROKEN_DOWN = ("diverged", "out_of_memory")

#: Columns of any CSV that hold numbers; text in one of them would go far before it fails.
_NUMBERS: Final = frozenset(
    {
        *("seed", "step", "epoch", "value", "lr", "train_seconds", "wall_seconds", "inverse_update_period"),
        *("steps", "steps_done", "steps_to_target", "seconds_to_target", "parameters", "bytes_sent", "switch_step"),
        *("preconditioner_bytes", "peak_memory_bytes", "train_examples", "validation_examples", "threads"),
        *("repeat", "iteration_ms", "median_ms", "dimension", "trial", "bound", "updates", "batch_size"),
        *("encoder_parameters", "pretraining_parameters", "ms", "refresh_ms", "other_ms", "workers", "cores", "batch"),
        *("bytes", "computed_bytes", "predicted_bytes", "paper_bytes", "rows", "rank", "calls", "iterations", "error"),
        *("smallest", "largest", "condition_number", "resolution", "start_weight", "largest_entry"),
    }
)
#: Those of probes that may be infinite: what overflowed, and what has no inverse.
_MAY_BE_INFINITE: Final = frozenset({"value", "bound", "condition_number", "largest_entry"})
#: Columns that hold text, even where all of it looks like numbers.
_TEXTS: Final = dict.fromkeys(
    ("run", "experiment", "optimizer", "method", "workload", "status", "split", "metric", "model", "dataset"), "str"
)


class NoDataError(Exception):
    """There is nothing to make an artefact from; the message is one line for the user."""


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The CSV at ``path``, or an empty frame with ``columns`` where there is none; NoDataError where it is broken."""
    if not path.exists():
        return pd.DataFrame(columns=list(columns))
    try:
        frame = pd.read_csv(path, dtype=_TEXTS, keep_default_na=False, na_values=[""], low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise NoDataError(f"{path} is no readable CSV: {error}. Delete it and run again.") from error
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise NoDataError(f"{path} lacks the columns {', '.join(missing)}. Delete it and run again.")
    for column in _NUMBERS.intersection(frame.columns):
        _refuse_text(path, frame[column], infinite=path.parent.name == "probes" and column in _MAY_BE_INFINITE)
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
        return _read(self.root / "probes" / f"{name}.csv", columns)

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


def last_common_values(metrics: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """One row a run at the last step that every finished run of ``metrics`` was evaluated at, and that step.

    "At equal iterations" means this.  A run that broke down is kept with an infinite value, so that it counts as the
    worst and is never dropped in silence; one that was skipped or stopped, or is missing, says nothing, and the
    caption names it.  NoDataError where no run finished.
    """
    finished = metrics[(metrics["status"] == "finished") & metrics["step"].notna()]
    if finished.empty:
        raise NoDataError("No run finished, so there is no last evaluation to compare.")
    step = float(finished.groupby("run")["step"].max().min())
    rows = finished[finished["step"] == step].drop_duplicates("run")
    others = metrics[metrics["status"].isin(BROKEN_DOWN)].drop_duplicates("run").assign(value=float("inf"))
    kept = [frame for frame in (rows, others) if not frame.empty]
    return pd.concat(kept, ignore_index=True), step


def by_seed(rows: pd.DataFrame, column: str = "value") -> Mapping[int, float]:
    """``{seed: value}`` of rows that hold one row a seed."""
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows[column], strict=True)}
