"""The data sets that can be fetched, as ``workflow/datasets.yaml`` lists them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from workflow.bench.data.folder import data_folder
from workflow.bench.support.config import ROOT, check, read_mapping, schema

FILE: Final = ROOT / "workflow" / "datasets.yaml"


@dataclass(frozen=True)
class Source:
    """A file to download."""

    name: str
    urls: tuple[str, ...] = ()
    """Its addresses, tried in this order; none for a file that a user must get."""
    bytes: int | None = None
    """The exact size; None if it was not published."""
    about_bytes: int = 0
    sha256: str | None = None
    """The published checksum."""
    pointer: str | None = None
    """The address of its publisher's Git LFS pointer, which has the checksum."""

    @property
    def size(self) -> int:
        """The size to show."""
        return self.bytes or self.about_bytes

    @property
    def checksum(self) -> str:
        """Where the checksum is from, in words."""
        if not self.urls:
            return "torchvision's"
        return "published" if self.sha256 else "publisher's pointer" if self.pointer else "none published"


@dataclass(frozen=True)
class DownloadableSet:
    """A data set, a vocabulary or weights, and the files that bring it."""

    name: str
    what: str
    """The value of the option ``--what`` that selects it."""
    folder: str
    """Where it lands, in the data folder."""
    holds: tuple[str, ...]
    """Files and folders of its folder, without one of which it is not there."""
    license: str
    files: tuple[Source, ...]
    unpack: str | None = None
    """What `landing` makes of the files; None: they are what is read."""
    by_hand: str | None = None
    """What a user has to do, because the files cannot be downloaded."""

    @property
    def path(self) -> Path:
        """The folder in which it lands."""
        return data_folder() / self.folder

    @property
    def is_here(self) -> bool:
        """Whether its folder holds all that its reader looks for."""
        return is_here(self.path, self.holds)

    @property
    def size(self) -> int:
        """Bytes of all its files, those of unknown ones estimated."""
        return sum(source.size for source in self.files)

    @property
    def by_files(self) -> bool:
        """Whether each file becomes one that its folder holds, in the same order."""
        return self.unpack in (None, "parquet")

    @property
    def bytes_left(self) -> int:
        """Bytes of the files to download, without those that a user must get."""
        if self.by_hand or self.is_here:
            return 0
        if not self.by_files:
            return self.size
        landed = zip(self.files, self.holds, strict=True)
        return sum(source.size for source, name in landed if not is_here(self.path, (name,)))

    @property
    def checksums(self) -> str:
        """Where the checksums are from, in words: that of the largest file, and those of others that have another."""
        kind = max(self.files, key=lambda source: source.size).checksum
        others = [f"{source.name}: {source.checksum}" for source in self.files if source.checksum != kind]
        return "; ".join([kind, *others])


def is_here(folder: Path, holds: tuple[str, ...]) -> bool:
    """Return whether a folder holds files and folders, as far as this user may know."""
    try:
        return all((folder / name).exists() for name in holds)
    except OSError:
        return False


@cache
def sets() -> dict[str, DownloadableSet]:
    """Return all sets by name.

    Raises:
        ConfigError: the first mistake in the file, in one line.
    """
    content = read_mapping(FILE)
    check(content, schema("datasets"), FILE)
    return {name: _set(name, given) for name, given in content["sets"].items()}


def _set(name: str, given: dict[str, Any]) -> DownloadableSet:
    parts = range(given.get("parts", 1))
    holds = tuple(text.format(part=part) for text in given["holds"] for part in parts)
    files = tuple(_source(file, part) for file in given["files"] for part in parts)
    others = {key: value for key, value in given.items() if key not in ("parts", "holds", "files")}
    return DownloadableSet(name=name, holds=holds, files=files, **others)


def _source(given: dict[str, Any], part: int) -> Source:
    filled = dict(given, urls=tuple(url.format(part=part) for url in given.get("urls", ())))
    return Source(**filled | {key: given[key].format(part=part) for key in ("name", "pointer") if key in given})
