"""What all data sets share: where files lie, how versions are named, what is said of data that is not there."""

from __future__ import annotations

import os
import struct
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workflow.bench.support.config import ROOT, ConfigError


class DataNotFound(Exception):
    """A data set is not on this machine; the message is the reason that a skipped run carries."""

    def __init__(self, name: str, path: Path | str, remedy: str) -> None:
        super().__init__(f"{name} not found at {path}; {remedy}")


class DataDamaged(ConfigError):
    """What a data set holds is not what it should be; the message is one line that names the place."""


def damaged(name: str, path: Path | str, what: object) -> DataDamaged:
    """Return the error that says where a data set is damaged, and how."""
    return DataDamaged(" ".join(f"{name}: {path} is damaged: {what}".split()))


def data_folder() -> Path:
    """Return the folder of data sets and prepared data: ``MKOR_DATA``, or ``data`` in the repository."""
    return Path(os.environ.get("MKOR_DATA") or ROOT / "data")


def versions(*packages: str, recipe: str) -> str:
    """Return ``package x.y, ..., recipe``: what fixes data that packages carry.

    recipe: the version of the code that prepares the data; raise it when that code makes other data.
    """
    return ", ".join([*(f"{package} {version(package)}" for package in packages), recipe])


def read_arrays(path: Path) -> dict[str, NDArray]:
    """Return the arrays of an NPZ archive, once every member's checksum fits.

    Raises `FileNotFoundError` where there is none, `DataDamaged` where it is no whole one.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            # NumPy reads as far as a header says, and would not meet the checksum that tells a wrong header.
            if (wrong := archive.zip.testzip()) is not None:
                raise damaged("prepared data", path, f"the checksum of {wrong} does not fit")
            return dict(archive)
    except FileNotFoundError:
        raise
    # RuntimeError is zipfile's for a member that claims to be encrypted, AttributeError for what is no archive.
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, AttributeError) as problem:
        if isinstance(problem, DataDamaged):
            raise
        raise damaged("prepared data", path, problem) from None
    except (zipfile.BadZipFile, struct.error) as problem:
        raise damaged("prepared data", path, problem) from None
