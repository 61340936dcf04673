"""What all data sets share: where files lie, how versions are named, what is said of data that is not there."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from workflow.bench.config import ROOT


class DataNotFound(Exception):
    """A data set is not on this machine; the message is the reason that a skipped run carries."""

    def __init__(self, name: str, path: Path | str, remedy: str) -> None:
        super().__init__(f"{name} not found at {path}; {remedy}")


def folder() -> Path:
    """Return the folder of data sets and prepared data: ``MKOR_DATA``, or ``data`` in the repository."""
    return Path(os.environ.get("MKOR_DATA") or ROOT / "data")


def versions(*packages: str, recipe: str) -> str:
    """Return ``package x.y, ..., recipe``: what fixes data that packages carry.

    recipe: the version of the code that prepares the data; raise it when that code makes other data.
    """
    return ", ".join([*(f"{package} {version(package)}" for package in packages), recipe])
