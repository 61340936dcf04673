"""A cache of prepared data in NPZ files, so that many runs share one preparation. Imports no torch."""

from __future__ import annotations

import io
import logging
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.folder import DataDamaged, damaged
from workflow.bench.support.files import write_atomically

_log = logging.getLogger(__name__)


class Prepared(Protocol):
    """Data that can be stored as named arrays."""

    def arrays(self) -> dict[str, NDArray]:
        """Return the arrays that `from_arrays` takes."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> Self:
        """Return the data that `arrays` returned."""


P = TypeVar("P", bound=Prepared)


def load_or_make(path: Path, kind: type[P], make: Callable[[], P]) -> P:
    """Return the data stored at ``path``, or make it and store it there.

    A damaged file is replaced. If the folder cannot be written, a warning is logged and the data is still returned.
    """
    try:
        return kind.from_arrays(read_arrays(path))
    except FileNotFoundError:
        pass
    except (DataDamaged, KeyError) as problem:
        _log.warning("%s; it is made anew", problem)
    data = make()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **data.arrays())
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as problem:
        _log.warning("%s cannot be kept, each run makes it anew: %s", path, problem.strerror)
    return data


def read_arrays(path: Path) -> dict[str, NDArray]:
    """Return the arrays of an NPZ archive after checking the checksum of every member.

    Raises:
        FileNotFoundError: no file is at ``path``.
        DataDamaged: the file is not a complete archive.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            # NumPy reads only as far as an array's header says, so a damaged header would escape the checksum, which
            # is compared at the end of a member.
            if (member := archive.zip.testzip()) is not None:
                raise damaged("prepared data", path, f"the checksum of {member} does not fit")
            return dict(archive)
    except (FileNotFoundError, DataDamaged):
        raise
    # zipfile raises RuntimeError for a member that claims to be encrypted; a file that is not an archive has no `zip`,
    # hence AttributeError.
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        RuntimeError,
        AttributeError,
        zipfile.BadZipFile,
        struct.error,
    ) as problem:
        raise damaged("prepared data", path, problem) from None
