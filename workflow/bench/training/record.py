"""The files of a run: its folder, metrics.csv while it trains, and run.json at its end. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from workflow.bench.plan.runs import Run, run_id
from workflow.bench.support.config import ConfigError, check, error, schema
from workflow.bench.support.errors import DamagedFileError, FileWarning, UnreadableError
from workflow.bench.support.files import name_in_errors, write_json
from workflow.bench.support.names import name_rule
from workflow.bench.support.reading import open_regular, read_bytes, read_json
from workflow.bench.training.checkpoint import newest_first, open_checkpoint

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
_HEADER: Final = ",".join(METRIC_COLUMNS)

_METRICS_DIGEST: Final = "metrics_sha256"
"""The key in run.json for the SHA-256 of metrics.csv."""
_SEAL: Final = "record_sha256"
"""The key in run.json for the SHA-256 of its other keys and values."""


class RunFolder:
    """The files of one run, in ``<results>/runs/<id>``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.csv"
        """One row per evaluation and metric, with `METRIC_COLUMNS`."""
        self.summary = path / "run.json"
        """The run's outcome, cost and provenance, as JSON."""
        self.checkpoint = path / "checkpoint.pt"
        """The state of an unfinished run."""
        self.weights = path / "weights.pt"
        """The final weights, if other runs start from them."""
        self.lock = path / "lock"
        """The lock file of the process that trains the run."""
        self.origin = path / "origin.json"
        """The name of the machine that trained the run, as JSON; only if its record was adopted (`origin_of`)."""

    @classmethod
    def of(cls, results: Path, run: str) -> RunFolder:
        """Return the folder of a run by its id, under ``results/<hardware>/<tier>``."""
        return cls(results / "runs" / run)

    def require_files(self) -> None:
        """Raise `UnreadableError` on the first path of the run's files that is not a file that may be read."""
        for path in (
            *(self.lock, self.summary, self.metrics, self.origin),
            *(*newest_first(self.checkpoint), self.weights),
        ):
            with suppress(FileNotFoundError):
                open_regular(path).close()


@dataclass(frozen=True)
class Record:
    """What a run left behind so far, as `read_record` accepts it."""

    summary: Mapping[str, Any]
    """The content of run.json; empty if there is none."""
    rows: list[dict[str, str]]
    """The rows of metrics.csv as text, in order."""

    @property
    def status(self) -> Status | None:
        """The status in run.json; None if there is none."""
        return self.summary.get("status")

    @property
    def has_ended(self) -> bool:
        """Whether the run has a final status."""
        return self.status in ENDED

    @property
    def last_step(self) -> int:
        """The step of the last evaluation; 0 without evaluations."""
        return int(self.rows[-1]["step"]) if self.rows else 0


def read_record(folder: RunFolder, run: Run | str) -> Record:
    """Return the record of a run: run.json and metrics.csv, of which either may be absent.

    run: the planned run, or its id, which is that of its specification.

    Raises:
        UnreadableError: a file is there but cannot be read, so nobody knows what it contains.
        DamagedFileError: a file has content that this run cannot have written: values out of range, another run's
            id or specification, a final status without the rows of that time, or values that were changed later.
    """
    own_id, steps = (run, None) if isinstance(run, str) else (run.id, run.spec["steps"])
    try:
        summary: dict[str, Any] = read_json(folder.summary)
    except FileNotFoundError:
        summary = {}
    else:
        _require_own(folder.summary, summary, own_id)
        steps = summary["spec"]["steps"]
    content = _content(folder.metrics)
    # While a run trains, no digest tells what its rows are.
    if summary.get("status") in ENDED:
        _require_digest(folder.metrics, content, summary)
    return Record(summary, _parsed_rows(folder.metrics, content, steps))


def is_done(folder: RunFolder, run: Run, *, needs_weights: bool) -> bool:
    """Return whether a run has a final status, and its weights if other runs start from them.

    A damaged record is a warning.

    Raises:
        UnreadableError: a file of the record cannot be read. Training again would replace what may be a good record.
    """
    record = read_undamaged(folder, run)
    return record.has_ended and (not needs_weights or has_weights(folder, run, record))


def read_undamaged(folder: RunFolder, run: Run) -> Record:
    """Return the record of a run, an empty one with a warning if it is damaged. Raises what `is_done` does."""
    try:
        return read_record(folder, run)
    except DamagedFileError as problem:
        _warn_of(problem)
        return Record({}, [])


def origin_of(folder: RunFolder) -> str | None:
    """Return the name of the machine whose record of a run was adopted; None if the run was trained here.

    An adopted record comes without weights.

    Raises:
        UnreadableError: the file cannot be read.
        DamagedFileError: it does not contain the name of a machine.
    """
    try:
        name = read_json(folder.origin)
    except FileNotFoundError:
        return None
    if not isinstance(name, str) or name_rule("hardware", name):
        raise DamagedFileError(f"{folder.origin}: damaged: it does not contain the name of a machine")
    return name


def has_weights(folder: RunFolder, run: Run, record: Record) -> bool:
    """Return whether a run that has ended left its final weights; one that broke down has none to leave.

    Damaged ones are a warning. Only their first line and length are looked at; `checkpoint.load` compares the checksum.
    """
    if record.status != "finished":
        return True
    try:
        with open_checkpoint(folder.weights, run.id) as (header, _):
            return bool(header.step == record.summary["steps_done"])
    except FileNotFoundError:
        return False
    except DamagedFileError as problem:
        _warn_of(problem)
        return False


def _warn_of(problem: Exception) -> None:
    warnings.warn(FileWarning(f"{problem}; the run counts as not done"), stacklevel=3)


def _require_own(file: Path, summary: dict[str, Any], own_id: str) -> None:
    """Raise `DamagedFileError` unless a run.json is that of the run with an id, as the run wrote it."""
    try:
        check(summary, schema("run"), file)
        spec = summary["spec"]
        if summary["id"] != own_id:
            raise error(file, ("id",), summary["id"], f"must be {own_id}, as its folder")
        if run_id(spec) != own_id or not isinstance(spec.get("steps"), int):
            raise error(file, ("spec",), spec, f"must be that of run {own_id}")
        if summary[_SEAL] != (seal := sealed(summary)[_SEAL]):
            raise error(file, (_SEAL,), summary[_SEAL], f"must be {seal}, or another value was changed")
        steps, done = spec["steps"], summary.get("steps_done", 0)
        if done > steps or (summary["status"] == "finished" and done < steps):
            raise error(file, ("steps_done",), done, f"must be {steps} or, unless the run finished, less")
    except ConfigError as problem:
        raise DamagedFileError(f"{problem}; the record is damaged") from None
    except RecursionError:
        raise DamagedFileError(f"{file}: damaged: it is nested too deeply") from None


def _content(metrics: Path) -> bytes:
    try:
        return read_bytes(metrics)
    except FileNotFoundError:
        return b""


def _require_digest(file: Path, content: bytes, summary: Mapping[str, Any]) -> None:
    """Raise `DamagedFileError` unless metrics.csv is the one that a run with a final status left."""
    if _METRICS_DIGEST in summary:
        if summary[_METRICS_DIGEST] != hashlib.sha256(content).hexdigest():
            raise DamagedFileError(f"{file}: damaged: it differs from the file that the run left")
        return
    # A rank other than the first writes the record if it fails alone. On a shared disk it may not have seen all of
    # metrics.csv yet, so it states no digest.
    ranks = [report["rank"] for report in summary["by_rank"]]
    if summary["status"] == "finished" or summary["world_size"] < 2 or len(ranks) != 1 or ranks[0] == 0:
        raise DamagedFileError(f"{file}: damaged: run.json does not state its digest ({_METRICS_DIGEST})")


def sealed(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run.json with the SHA-256 of its other values, without which it counts as damaged."""
    others = {key: value for key, value in summary.items() if key != _SEAL}
    canonical = json.dumps(others, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return {**summary, _SEAL: hashlib.sha256(canonical.encode()).hexdigest()}


def write_summary(folder: RunFolder, summary: Mapping[str, Any], *, with_digest: bool = True) -> None:
    """Write a run's run.json, with digests that reveal values and rows that were changed or lost later.

    with_digest: whether to state the SHA-256 of metrics.csv.
    """
    complete = dict(summary)
    if with_digest:
        complete[_METRICS_DIGEST] = hashlib.sha256(_content(folder.metrics)).hexdigest()
    write_json(folder.summary, sealed(complete))


def write_spec(results: Path, run: Run) -> None:
    """Write ``specs/<id>.json``, the specification that a run's id is the hash of, unless it is there intact."""
    path = results / "specs" / f"{run.id}.json"
    try:
        is_intact = read_json(path) == run.spec
    except (FileNotFoundError, UnreadableError, DamagedFileError):
        is_intact = False
    if not is_intact:
        write_json(path, run.spec)


class MetricsLog:
    """Writes metrics.csv, appending and flushing row by row.

    kept: the size and SHA-256 of the part to keep, as `secure` returned them in an earlier slice; None starts a new
        file.

    Raises:
        DamagedFileError: the file does not begin with the part to keep.
        UnreadableError: it is not a file.
    """

    def __init__(self, path: Path, kept: tuple[int, str] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._digest = hashlib.sha256()
        with suppress(FileNotFoundError), open_regular(path) as earlier:
            if kept is not None:
                self._digest.update(earlier.read(kept[0]))
        if kept is not None and self._digest.hexdigest() != kept[1]:
            raise DamagedFileError(f"{path}: differs from the file at the time of the checkpoint")
        # Unbuffered: on a full disk, closing a buffered file would try to write again, and fail again.
        self._file = path.open("wb" if kept is None else "r+b", buffering=0)
        if kept is None:
            self._write([_HEADER])
        else:
            self._file.seek(kept[0])
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
            # A system may write a part only, and the next attempt then says why.
            while content:
                written = self._file.write(content)
                self._digest.update(content[:written])
                content = content[written:]


def _parsed_rows(file: Path, content: bytes, steps: int | None) -> list[dict[str, str]]:
    """Return the rows in the content of a metrics.csv as text, in order.

    An incomplete last line is left out: the run is still writing, or was killed while writing.

    steps: those of the run, if they are known; no row is of a later one.

    Raises:
        DamagedFileError: a line cannot be a row of a run.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise DamagedFileError(f"{file}: damaged: it is not UTF-8 text") from None
    if "\n" not in text:
        return []
    header, *lines = text[: text.rfind("\n")].split("\n")
    if header != _HEADER:
        raise DamagedFileError(f"{file}: damaged: its first line is not {_HEADER}")
    rows: list[dict[str, str]] = []
    last = 0
    for number, line in enumerate(lines, start=2):
        cells = line.split(",")
        if len(cells) != len(METRIC_COLUMNS) or not all(map(_is_valid, METRIC_COLUMNS.values(), cells)):
            raise DamagedFileError(f"{file}: damaged: line {number} is not a row of a run")
        row = dict(zip(METRIC_COLUMNS, cells, strict=True))
        if not last <= (step := int(row["step"])) <= (step if steps is None else steps):
            raise DamagedFileError(f"{file}: damaged: line {number} has step {step}, after step {last} of {steps}")
        last = step
        rows.append(row)
    return rows


def _is_valid(kind: type, cell: str) -> bool:
    """Return whether a cell of metrics.csv can be a value of its column."""
    if kind is str:
        return cell.isidentifier()
    try:
        return math.isfinite(kind(cell))
    except ValueError:
        return False
