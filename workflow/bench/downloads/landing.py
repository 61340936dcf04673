"""Downloaded files in the layout that the readers of `workflow.bench.data` expect.

Everything is unpacked beside its place and renamed, so that a folder is whole or absent.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from workflow.bench.downloads.catalogue import DownloadableSet, is_here
from workflow.bench.downloads.transfer import TransferError
from workflow.bench.support.errors import first_line
from workflow.bench.support.files import sync_folder, write_atomically

INSTALL: Final = "pip install pyarrow==26.0.1"
"""The command that installs the extra ``corpus``."""
_UNPACKED: Final = "unpacked"
_UNFINISHED: Final = ".unfinished"
_DAMAGE: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError)


def unpack(wanted: DownloadableSet, folder: Path) -> None:
    """Unpack the archives of a set, which lie in ``folder``, to where the set is read, and remove the folder.

    Raises:
        TransferError: an archive is damaged, or does not hold what the set's reader looks for.
        OSError: it cannot be written.
    """
    staged = folder / _UNPACKED
    shutil.rmtree(staged, ignore_errors=True)
    made = staged / wanted.path.name
    names = ", ".join(source.name for source in wanted.files)
    try:
        _UNPACK[wanted.unpack or ""](made, [folder / source.name for source in wanted.files])
    except _DAMAGE as problem:
        raise TransferError(f"{names}: cannot be unpacked: {first_line(problem)}") from None
    if not is_here(made, wanted.holds):
        raise TransferError(f"{names}: {wanted.path.name} is not in it, with {', '.join(wanted.holds)}")
    wanted.path.parent.mkdir(parents=True, exist_ok=True)
    made.rename(wanted.path)
    sync_folder(wanted.path.parent)
    shutil.rmtree(folder)


def _untar(made: Path, archives: list[Path]) -> None:
    with tarfile.open(archives[0]) as archive:
        # An attribute, since the first releases of Python 3.11 lack the filter and the argument for it.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(made.parent)


def _unzip(made: Path, archives: list[Path]) -> None:
    with zipfile.ZipFile(archives[0]) as archive:
        archive.extractall(made.parent)


def _split_mrpc(made: Path, archives: list[Path]) -> None:
    """Write MRPC's files as GLUE's own script does: the pairs whose ids are listed are for development."""
    pairs, listed = (file.read_text(encoding="utf-8").splitlines() for file in archives)
    development = {tuple(line.strip().split("\t")) for line in listed}
    header, *rows = pairs
    splits: dict[str, list[str]] = {"train.tsv": [header], "dev.tsv": [header]}
    for row in rows:
        fields = row.strip().split("\t")
        splits["dev.tsv" if tuple(fields[1:3]) in development else "train.tsv"].append("\t".join(fields))
    for name, kept in splits.items():
        write_atomically(made / name, "\n".join(kept) + "\n")


_UNPACK: Final[dict[str, Callable[[Path, list[Path]], None]]] = {
    "tar": _untar,
    "zip": _unzip,
    "mrpc": _split_mrpc,
}


def unpack_imagenet(root: Path) -> None:
    """Unpack ImageNet's archives in ``root`` there, by torchvision, which checks their MD5.

    Raises:
        TransferError: an archive is missing or damaged.
    """
    from workflow.bench.data.vision import datasets

    parts = {"train": datasets.imagenet.parse_train_archive, "val": datasets.imagenet.parse_val_archive}
    try:
        datasets.imagenet.parse_devkit_archive(root)
        for split, parse in parts.items():
            if not (root / split).exists():
                unfinished = root / f"{split}{_UNFINISHED}"
                shutil.rmtree(unfinished, ignore_errors=True)
                parse(root, folder=unfinished.name)
                unfinished.rename(root / split)
    except _DAMAGE as problem:
        raise TransferError(f"ImageNet: {first_line(problem)}") from None
    sync_folder(root)


def write_articles(parquet: Path, text: Path) -> None:
    """Write the texts of a Parquet file's column ``text``, an article a paragraph: blank lines stand between them only.

    Raises:
        TransferError: PyArrow is not installed, or the file is no such file.
    """
    import pandas as pd

    try:
        articles = pd.read_parquet(parquet, columns=["text"])["text"]
    except ImportError:
        raise TransferError(f"{parquet.name}: to read it takes PyArrow: {INSTALL}, then the same command") from None
    except (ValueError, KeyError, OSError) as problem:  # PyArrow's errors are of these types
        raise TransferError(f"{parquet.name}: no Parquet file with a column 'text': {first_line(problem)}") from None
    paragraphs = ("\n".join(line for line in article.splitlines() if line.strip()) for article in articles)
    write_atomically(text, *(part for paragraph in paragraphs if paragraph for part in (paragraph, "\n\n")))
