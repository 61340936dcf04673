"""The data folder, and the errors of missing and damaged data."""

from __future__ import annotations

import os
from pathlib import Path

from workflow.bench.support.config import ROOT, ConfigError


class DataNotFound(Exception):
    """A data set is not on this machine; the message is the reason recorded for a skipped run."""

    def __init__(self, name: str, path: Path | str, remedy: str) -> None:
        super().__init__(f"{name} not found at {path}; {remedy}")


class DataDamaged(ConfigError):
    """A file of a data set is damaged; the message is one line that names the file."""


def damaged(name: str, path: Path | str, reason: object) -> DataDamaged:
    """Return the error that names a damaged file of a data set and the damage."""
    return DataDamaged(" ".join(f"{name}: {path} is damaged: {reason}".split()))


def data_folder() -> Path:
    """Return the folder of data sets and prepared data: ``MKOR_DATA``, or ``data`` in the repository."""
    return Path(os.environ.get("MKOR_DATA") or ROOT / "data")
