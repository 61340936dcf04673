"""Data as named arrays: digests that are the same on every machine, and files that keep what was prepared.

Importing this module imports no torch.
"""

from __future__ import annotations

import hashlib
import io
import logging
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.folder import DataDamaged, damaged
from workflow.bench.support.files import write_atomically

# zipfile raises RuntimeError for a member that claims to be encrypted; a file that is not an archive has no `zip`,
# hence AttributeError.
_DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, RuntimeError, AttributeError),
    *(zipfile.BadZipFile, struct.error),
)

_log = logging.getLogger(__name__)

P = TypeVar("P")


class LabelledImages(NamedTuple):
    """Images ``[n, channels, height, width]`` and their labels ``[n]``, in two splits."""

    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    validation: NDArray[np.uint8]
    validation_labels: NDArray[np.int64]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all pixels and labels."""
        return digest(self)


def digest(arrays: Iterable[NDArray]) -> str:
    """Return the SHA-256 of the shapes and contents of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(repr(array.shape).encode())
        total.update(_little_endian(array).tobytes())
    return total.hexdigest()


def named_arrays(data: Any, prefix: str = "") -> dict[str, NDArray]:
    """Return the arrays of a dataclass, and those of dataclasses in it, by names such as ``train_tokens``.

    Their numbers are in little-endian order.
    """
    arrays: dict[str, NDArray] = {}
    for field in fields(data):
        value, name = getattr(data, field.name), f"{prefix}{field.name}"
        arrays |= named_arrays(value, f"{name}_") if is_dataclass(value) else {name: _little_endian(value)}
    return arrays


def fingerprint(data: Any) -> str:
    """Return the SHA-256 of the `named_arrays` of a dataclass."""
    total = hashlib.sha256()
    for name, array in sorted(named_arrays(data).items()):
        total.update(f"{name} {array.dtype.kind}{array.dtype.itemsize} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def load_or_make(path: Path, kind: type[P], make: Callable[[], P]) -> P:
    """Return the data stored at ``path``, or make it and store it there as an NPZ file, for all runs.

    A damaged file is replaced. If the folder cannot be written, a warning is logged and the data is still returned.

    Args:
        path: where the data is kept.
        kind: the dataclass that ``make`` returns, of arrays and of dataclasses of arrays.
        make: returns the data.
    """
    try:
        return _restored(kind, _read(path))
    except FileNotFoundError:
        pass
    except (DataDamaged, KeyError) as problem:
        _log.warning("%s; it is made anew", problem)
    data = make()
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **named_arrays(data))
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as problem:
        _log.warning("%s cannot be kept, each run makes it anew: %s", path, problem.strerror)
    return data


def _read(path: Path) -> dict[str, NDArray]:
    """Return the arrays of an NPZ archive after checking the checksum of every member."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            # NumPy reads only as far as an array's header says, so a damaged header would escape the checksum, which
            # is compared at the end of a member.
            if (member := archive.zip.testzip()) is not None:
                raise damaged("prepared data", path, f"the checksum of {member} does not fit")
            return dict(archive)
    except (FileNotFoundError, DataDamaged):
        raise
    except _DAMAGE as problem:
        raise damaged("prepared data", path, problem) from None


def _restored(kind: type[P], arrays: Mapping[str, NDArray], prefix: str = "") -> P:
    """Return the data of which `named_arrays` are given."""
    values: dict[str, Any] = {}
    for name, part in get_type_hints(kind).items():
        is_data = isinstance(part, type) and is_dataclass(part)
        values[name] = _restored(part, arrays, f"{prefix}{name}_") if is_data else arrays[f"{prefix}{name}"]
    return kind(**values)


def _little_endian(array: NDArray) -> NDArray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
