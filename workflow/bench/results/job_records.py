"""What Snakemake recorded of the jobs that made a results folder: commands, times, inputs and outputs.

It keeps a record for each output file in ``.snakemake/metadata``, in a file whose name is the output's path in base64.
Snakemake writes the records for itself and has no public way to read them, so records of an unknown version are left
out. The module imports neither torch nor Snakemake.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.reading import read_json

METADATA: Final = Path(".snakemake", "metadata")
_VERSION: Final = 6
"""The ``record_format_version`` of Snakemake 9."""


@dataclass(frozen=True)
class JobRecord:
    """One job of the pipeline that has ended. Paths are as Snakemake saw them, from its working folder."""

    rule: str
    command: str
    started: datetime
    ended: datetime
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    logs: tuple[str, ...]


def job_records(folder: Path, place: Path = Path()) -> list[JobRecord]:
    """Return the jobs that made files of ``folder``, by start and first output.

    folder: the results' folder, as Snakemake was given it.
    place: the working folder of Snakemake.

    Raises:
        UnreadableError: a record cannot be read.
    """
    outputs: dict[tuple[Any, ...], list[str]] = {}
    records: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for output, record in _records(place / METADATA):
        if Path(output).is_relative_to(folder):
            job = record["rule"], record["shellcmd"], record["starttime"], record["endtime"]
            outputs.setdefault(job, []).append(output)
            records[job] = record
    jobs = [_job(records[job], outputs[job]) for job in records]
    return sorted(jobs, key=lambda job: (job.started, job.outputs))


def _records(metadata: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the outputs of complete jobs, and their records."""
    for file in sorted(path for path in metadata.rglob("*") if path.is_file()):
        # A long name is split into folders, whose names begin with "@".
        encoded = "".join(part.removeprefix("@") for part in file.relative_to(metadata).parts)
        try:
            output = urlsafe_b64decode(encoded).decode()
            record = read_json(file)
        except (binascii.Error, UnicodeDecodeError, DamagedFileError):
            continue
        if isinstance(record, dict) and record.get("record_format_version") == _VERSION and _is_complete(record):
            yield output, record


def _is_complete(record: Mapping[str, Any]) -> bool:
    named = isinstance(record.get("rule"), str) and isinstance(record.get("shellcmd"), str)
    timed = all(isinstance(record.get(name), int | float) for name in ("starttime", "endtime"))
    return named and timed and not record.get("incomplete")


def _job(record: Mapping[str, Any], outputs: list[str]) -> JobRecord:
    return JobRecord(
        record["rule"],
        " ".join(record["shellcmd"].split()),
        datetime.fromtimestamp(record["starttime"], UTC),
        datetime.fromtimestamp(record["endtime"], UTC),
        tuple(record.get("input") or ()),
        tuple(sorted(outputs)),
        tuple(record.get("log") or ()),
    )
