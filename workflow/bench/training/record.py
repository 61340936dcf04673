"""The files of a run: its folder, metrics.csv while it trains, and run.json at its end. Imports no torch."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ConfigError, check, schema
from workflow.bench.support.files import name_in_errors, write_json

Status = Literal["finished", "diverged", "out_of_memory", "interrupted", "skipped", "failed"]
ENDED: Final = ("finished", "diverged", "out_of_memory")
"""Statuses that another attempt with the same code on the same machine would only repeat."""

METRIC_COLUMNS: Final[Mapping[str, type]] = {
    "step": int,
    "epoch": float,
    "split": str,
    "metric": str,
    "value": float,
    "lr": float,
    "train_seconds": float,
    "wall_seconds": float,
}
"""The columns of metrics.csv in their order, with the type of each."""

_METRICS_DIGEST: Final = "metrics_sha256"
"""The key in run.json for the SHA-256 of metrics.csv."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one run, in ``<results>/runs/<id>``."""

    path: Path

    @classmethod
    def of(cls, results: Path, run: str) -> RunFolder:
        """Return the folder of a run by its id, under ``results/<hardware>/<tier>``."""
        return cls(results / "runs" / run)

    @property
    def metrics(self) -> Path:
        """One row per evaluation and metric, with `METRIC_COLUMNS`."""
        return self.path / "metrics.csv"

    @property
    def summary(self) -> Path:
        """The run's outcome, cost and provenance, as JSON."""
        return self.path / "run.json"

    @property
    def checkpoint(self) -> Path:
        """The state of an unfinished run."""
        return self.path / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """The final weights, if other runs start from them."""
        return self.path / "weights.pt"

    @property
    def lock(self) -> Path:
        """The lock file of the process that trains the run."""
        return self.path / "lock"


class DamagedRecordError(ConfigError):
    """A metrics.csv that no run can have written; the message is one line that names the file."""


def read_summary(folder: RunFolder) -> dict[str, Any] | None:
    """Return the content of a run's run.json; None if it is absent, or damaged, which is a warning."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        check(summary, schema("run"), folder.summary)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as problem:
        warnings.warn(f"{folder.summary}: damaged ({problem}); the run counts as not done", stacklevel=2)
        return None
    return dict(summary)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def is_done(folder: RunFolder, *, needs_weights: bool) -> bool:
    """Return whether a run has a final status, intact metrics, and its weights if other runs start from them."""
    summary = read_summary(folder)
    if summary is None or summary["status"] not in ENDED:
        return False
    try:
        read_metrics(folder, summary)
    except DamagedRecordError as problem:
        warnings.warn(f"{problem}; the run counts as not done", stacklevel=2)
        return False
    return folder.weights.is_file() or not needs_weights or summary["status"] != "finished"


def write_summary(folder: RunFolder, summary: Mapping[str, Any], *, with_digest: bool = True) -> None:
    """Write a run's run.json, with the SHA-256 of metrics.csv, which reveals rows lost later."""
    digest = {_METRICS_DIGEST: _digest(folder.metrics)} if with_digest else {}
    write_json(folder.summary, {**summary, **digest})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


def write_spec(results: Path, run: Run) -> None:
    """Write ``specs/<id>.json``, the specification that a run's id is the hash of, unless it is there intact."""
    path = results / "specs" / f"{run.id}.json"
    try:
        is_intact = json.loads(path.read_bytes()) == run.spec
    except (FileNotFoundError, ValueError, RecursionError):
        is_intact = False
    if not is_intact:
        write_json(path, run.spec)


class MetricsLog:
    """Writes metrics.csv, appending and flushing row by row.

    kept: the size and SHA-256 of the part to keep, as `secure` returned them in an earlier slice; None starts a new
        file.

    Raises:
        ValueError: the file does not begin with the part to keep.
    """

    def __init__(self, path: Path, kept: tuple[int, str] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._digest = hashlib.sha256()
        if kept is not None:
            size, digest = kept
            with path.open("rb") if path.exists() else io.BytesIO() as earlier:
                self._digest.update(earlier.read(size))
            if self._digest.hexdigest() != digest:
                raise ValueError(f"{path}: differs from the file at the time of the checkpoint")
        # Unbuffered: on a full disk, closing a buffered file would try to write again, and fail again.
        self._file = path.open("wb" if kept is None else "r+b", buffering=0)
        if kept is None:
            self._write([",".join(METRIC_COLUMNS)])
        else:
            self._file.seek(size)
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
        """Append one row for each value of (split, metric)."""
        self._write(
            f"{step},{epoch:.6g},{split},{metric},{value!r},{lr:.9g},{train_seconds:.6f},{wall_seconds:.6f}"
            for (split, metric), value in values.items()
        )

    def secure(self) -> tuple[int, str]:
        """Make all rows survive a power cut, and return the file's size in bytes and its SHA-256."""
        with name_in_errors(self._path):
            os.fsync(self._file.fileno())
        return self._file.tell(), self._digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, lines: Iterable[str]) -> None:
        content = "".join(f"{line}\n" for line in lines).encode()
        with name_in_errors(self._path):
            while content:
                written = self._file.write(content)
                self._digest.update(content[:written])
                content = content[written:]


def read_metrics(folder: RunFolder, summary: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
    """Return a run's rows as text, in order; an empty list if it has no metrics.csv.

    An incomplete last line is left out: the run is still writing, or was killed while writing.

    summary: the run's run.json; if it is final, metrics.csv must have the digest that it states.

    Raises:
        DamagedRecordError: a line cannot be a row of a run, or the file differs from the one that the run left.
    """
    if summary and summary["status"] in ENDED and summary.get(_METRICS_DIGEST) not in (None, _digest(folder.metrics)):
        raise DamagedRecordError(f"{folder.metrics}: damaged: it differs from the file that the run left")
    try:
        text = folder.metrics.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise DamagedRecordError(f"{folder.metrics}: damaged: it is not text") from None
    if "\n" not in text:
        return []
    header, *lines = text[: text.rfind("\n")].split("\n")
    if header != ",".join(METRIC_COLUMNS):
        raise DamagedRecordError(f"{folder.metrics}: damaged: its first line is not {','.join(METRIC_COLUMNS)}")
    rows = []
    for number, line in enumerate(lines, start=2):
        cells = line.split(",")
        if len(cells) != len(METRIC_COLUMNS) or not all(map(_is_valid, METRIC_COLUMNS, cells)):
            raise DamagedRecordError(f"{folder.metrics}: damaged: line {number} is not a row of a run")
        rows.append(dict(zip(METRIC_COLUMNS, cells, strict=True)))
    return rows


def _is_valid(column: str, cell: str) -> bool:
    """Return whether a cell of metrics.csv can be a value of its column."""
    kind = METRIC_COLUMNS[column]
    if kind is str:
        return cell.isidentifier()
    try:
        return math.isfinite(kind(cell))
    except ValueError:
        return False


def first_line(problem: BaseException) -> str:
    """Return the first line of an exception's message, or its type if the message is empty."""
    return str(problem).strip().partition("\n")[0] or type(problem).__name__
