"""What a run leaves behind: its folder, metrics.csv as it goes, and run.json at its end.  Imports no torch."""

from __future__ import annotations

import csv
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from workflow.bench.files import write_json
from workflow.bench.runs import Run

Status = Literal["finished", "diverged", "out_of_memory", "interrupted", "skipped", "failed"]
#: Statuses that another attempt with the same code on the same machine would only repeat.
FINAL: Final = ("finished", "diverged", "out_of_memory")

METRIC_COLUMNS: Final = (
    "step",
    "epoch",
    "split",
    "metric",
    "value",
    "lr",
    "train_seconds",
    "wall_seconds",
)


@dataclass(frozen=True)
class RunFolder:
    """The files of one run, in ``<results>/runs/<id>``."""

    path: Path

    @classmethod
    def of(cls, results: Path, run: str) -> RunFolder:
        """Return the folder of a run's id under ``results/<hardware>/<tier>``."""
        return cls(results / "runs" / run)

    @property
    def metrics(self) -> Path:
        """One row an evaluation and metric, `METRIC_COLUMNS`."""
        return self.path / "metrics.csv"

    @property
    def summary(self) -> Path:
        """How the run ended and where it comes from, as JSON."""
        return self.path / "run.json"

    @property
    def checkpoint(self) -> Path:
        """The state of an unfinished run."""
        return self.path / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """The final weights of a run that others start from."""
        return self.path / "weights.pt"

    @property
    def lock(self) -> Path:
        """Held by the process that trains the run."""
        return self.path / "lock"


def read_summary(folder: RunFolder) -> dict[str, Any] | None:
    """Return a run's run.json, None where there is none; a damaged one counts as none, with a warning."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
        if not isinstance(summary["status"], str):
            raise ValueError("no status")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as problem:
        warnings.warn(f"{folder.summary}: damaged ({problem}); the run counts as not done", stacklevel=2)
        return None
    return summary


def is_done(folder: RunFolder, *, needs_weights: bool) -> bool:
    """Tell whether a run has ended for good, with its weights kept where others start from it."""
    summary = read_summary(folder)
    if summary is None or summary["status"] not in FINAL:
        return False
    return folder.weights.is_file() or not needs_weights or summary["status"] != "finished"


def write_spec(results: Path, run: Run) -> None:
    """Write ``specs/<id>.json``, what the run's id stands for."""
    path = results / "specs" / f"{run.id}.json"
    if not path.exists():
        write_json(path, run.spec)


class MetricsLog:
    """metrics.csv, appended to and flushed row by row.

    position: the size in bytes up to which an earlier part of the run is kept; None starts a new file.
    Raises ValueError where less than ``position`` is there.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if position is not None and (not path.exists() or path.stat().st_size < position):
            raise ValueError(f"{path}: shorter than its checkpoint says")
        self._file = path.open("wb" if position is None else "r+b")
        if position is None:
            self._write([",".join(METRIC_COLUMNS)])
        else:
            self._file.seek(position)
            self._file.truncate()

    def append(
        self,
        *,
        step: int,
        epoch: float,
        lr: float,
        train_seconds: float,
        wall_seconds: float,
        values: Mapping[tuple[str, str], float],
    ) -> None:
        """Append one row for every value of (split, metric)."""
        self._write(
            f"{step},{epoch:.6g},{split},{metric},{value!r},{lr:.9g},{train_seconds:.6f},{wall_seconds:.6f}"
            for (split, metric), value in values.items()
        )

    def secure(self) -> int:
        """Make all rows survive a power cut, and return the file's size in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, lines: Iterable[str]) -> None:
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._file.flush()


def read_metrics(folder: RunFolder) -> list[dict[str, str]]:
    """Return a run's rows as text, in their order; none where it has no metrics.csv."""
    if not folder.metrics.is_file():
        return []
    with folder.metrics.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def first_line(problem: BaseException) -> str:
    """Return the first line of what an exception says, its type where it says nothing."""
    return str(problem).strip().partition("\n")[0] or type(problem).__name__
