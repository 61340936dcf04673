"""Archives of runs that are kept in the repository: what `keep` writes and `adopt` reads.

``results/reference/<hardware>/<tier>/<experiment>.records.json.gz`` holds run.json and metrics.csv of an experiment's
runs that one machine trained. Weights are not kept.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from workflow.bench.support.config import ConfigError, check, refuse_odd_values, schema
from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.files import write_atomically
from workflow.bench.support.reading import parse_json, read_bytes

SUFFIX: Final = ".records.json.gz"
MOST_BYTES: Final = 2**28
"""The most that an archive unpacks to: seven times the largest that is kept here."""


class Kept(NamedTuple):
    """The two files of one run."""

    summary: Mapping[str, Any]
    """The content of run.json."""
    metrics: str
    """The text of metrics.csv."""


class Archive(NamedTuple):
    """Runs of one experiment that one machine trained, by id."""

    experiment: str
    tier: str
    hardware: str
    runs: Mapping[str, Kept]

    def file_in(self, reference: Path) -> Path:
        """Return the archive's file below ``results/reference``."""
        return reference / self.hardware / self.tier / f"{self.experiment}{SUFFIX}"


def write_archive(archive: Archive, reference: Path) -> Path:
    """Write an archive, the same bytes for the same runs, and return its file.

    Raises:
        ConfigError: it would unpack to more than `MOST_BYTES`, which `read_archive` refuses.
        OSError: the file cannot be written.
    """
    runs = {run: {"run.json": kept.summary, "metrics.csv": kept.metrics} for run, kept in sorted(archive.runs.items())}
    content = json.dumps({**archive._asdict(), "runs": runs}, separators=(",", ":"), allow_nan=False).encode()
    file = archive.file_in(reference)
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{file}: not written: it would unpack to {len(content)} bytes, more than {MOST_BYTES}")
    packed = BytesIO()
    # A gzip file states its name and the time, unless these are given.
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream:
        stream.write(content)
    write_atomically(file, packed.getvalue())
    return file


def read_archive(file: Path) -> Archive:
    """Return the content of an archive. The records in it are not checked here.

    Raises:
        UnreadableError: the file cannot be read, or is a link.
        ConfigError: it is not an archive, or not that of its folder and name, or a text in a run.json is not plain.
    """
    content = read_bytes(file, within=file.parents[2])
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as stream:
            # A few kilobytes can unpack to gigabytes.
            unpacked = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise DamagedFileError(f"{file}: damaged: not a gzip file: {problem}") from None
    if len(unpacked) > MOST_BYTES:
        raise DamagedFileError(f"{file}: damaged: it unpacks to more than {MOST_BYTES} bytes")
    value = parse_json(file, unpacked)
    check(value, schema("archive"), file)
    runs = {run: Kept(kept["run.json"], kept["metrics.csv"]) for run, kept in value["runs"].items()}
    # Texts of a record reach captions, pages and the terminal.
    for run, kept in runs.items():
        refuse_odd_values(file, ("runs", run, "run.json"), kept.summary)
    archive = Archive(value["experiment"], value["tier"], value["hardware"], runs)
    if archive.file_in(file.parents[2]) != file:
        of = f"{archive.experiment} at tier {archive.tier} on {archive.hardware}"
        raise DamagedFileError(f"{file}: damaged: it contains runs of {of}, unlike its name")
    return archive
