"""The tasks of the GLUE benchmark (Wang et al., ICLR 2019), from the official TSV files. Imports no torch.

``<data folder>/glue/<task>`` holds the unpacked official archive: ``train.tsv`` and ``dev.tsv`` (``dev_matched.tsv``
for MNLI). The development split is used for validation, as in the paper, since test labels are not public.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from workflow.bench.data import features
from workflow.bench.data.features import HIGHEST_SCORE, Examples, Features, Vocabulary
from workflow.bench.data.folder import DataNotFound, data_folder, versions

_RECIPE: Final = "GLUE v1"
_REMEDY: Final = "download the task from the GLUE benchmark's page and unpack it as glue/{}"


class _Layout(NamedTuple):
    """A task's files and columns; a column is its name in the header, or its number if there is no header."""

    folder: str
    first: str | int
    """The column of the first text."""
    second: str | int | None
    """The column of the second text, if the task has pairs."""
    label: str | int
    classes: tuple[str, ...]
    """The values of the label's column in the order of the classes; none for a score."""
    development: str = "dev.tsv"


_BINARY: Final = ("0", "1")
_ENTAILMENT: Final = ("entailment", "not_entailment")
DATASETS: Final = {
    "mnli": _Layout(
        "MNLI",
        "sentence1",
        "sentence2",
        "gold_label",
        ("contradiction", "entailment", "neutral"),
        "dev_matched.tsv",
    ),
    "qqp": _Layout("QQP", "question1", "question2", "is_duplicate", _BINARY),
    "qnli": _Layout("QNLI", "question", "sentence", "label", _ENTAILMENT),
    "sst2": _Layout("SST-2", "sentence", None, "label", _BINARY),
    "cola": _Layout("CoLA", 3, None, 1, _BINARY),
    "stsb": _Layout("STS-B", "sentence1", "sentence2", "score", ()),
    "mrpc": _Layout("MRPC", "#1 String", "#2 String", "Quality", _BINARY),
    "rte": _Layout("RTE", "sentence1", "sentence2", "label", _ENTAILMENT),
}


def version() -> str:
    """Return the version of the data; the fingerprint covers the files themselves."""
    return versions("tokenizers", recipe=_RECIPE)


def load(task: str, vocabulary: Vocabulary, length: int) -> Examples:
    """Return a task's examples as features, from the data folder if they were made before.

    Raises:
        DataNotFound: a file is missing or does not have the layout of the official one.
    """
    layout = DATASETS[task]
    folder = data_folder() / "glue" / layout.folder
    files = [folder / "train.tsv", folder / layout.development]
    for file in files:
        if not file.is_file():
            raise DataNotFound(f"GLUE's {layout.folder}", file, _REMEDY.format(layout.folder))

    def make() -> Examples:
        return Examples(*(_encode(file, layout, vocabulary, length) for file in files))

    settings = {"task": task, "vocabulary": vocabulary.name, "length": length}
    return features.prepared(f"glue-{task}", Examples, settings, [*files, vocabulary.path], make)


def _encode(file: Path, layout: _Layout, vocabulary: Vocabulary, length: int) -> Features:
    rows = list(_read(file, layout))
    if not rows:
        raise DataNotFound(f"GLUE's {layout.folder}", file, f"it has no example; {_REMEDY.format(layout.folder)}")
    first, second, labels = zip(*rows, strict=True)
    values = (
        np.array([layout.classes.index(label) for label in labels], dtype=np.int64)
        if layout.classes
        else np.array(labels, dtype=np.float32)
    )
    return features.encode(first, None if layout.second is None else second, values, vocabulary, length)


def _read(file: Path, layout: _Layout) -> Iterator[tuple[str, str, str]]:
    """Yield the two texts and the label of every row; without a second text, the first one is repeated.

    Quotation marks are text: the official files quote nothing.
    """
    try:
        # Not splitlines, which also splits at characters that occur inside texts, such as U+2028.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as problem:
        before = file.read_bytes()[: problem.start].count(b"\n")
        raise _wrong(file, layout, before + 1, "it is not UTF-8 text") from None
    columns = _columns(file, layout, lines[0])
    header_lines = 1 if isinstance(layout.first, str) else 0
    for number, line in enumerate(lines[header_lines:], header_lines + 1):
        fields = line.rstrip("\r").split("\t")
        if fields == [""]:
            continue
        # Some rows of QQP's official training file lack their last columns.
        if layout.folder == "QQP" and len(fields) <= max(columns):
            continue
        if len(fields) <= max(columns):
            raise _wrong(file, layout, number, f"{len(fields)} columns")
        first, second, label = (fields[column] for column in columns)
        if not (label in layout.classes if layout.classes else _is_score(label)):
            raise _wrong(file, layout, number, f"the label '{label}'")
        yield first, second, label


def _columns(file: Path, layout: _Layout, header: str) -> list[int]:
    """Return the numbers of the columns of both texts and the label."""
    columns = [layout.first, layout.first if layout.second is None else layout.second, layout.label]
    if not isinstance(layout.first, str):
        return [int(column) for column in columns]
    names = header.rstrip("\r").split("\t")
    missing = [str(column) for column in columns if column not in names]
    if missing:
        raise _wrong(file, layout, 1, f"no column '{missing[0]}'")
    return [names.index(str(column)) for column in columns]


def _is_score(label: str) -> bool:
    """Return whether a label is a similarity score as in the official files."""
    try:
        return 0 <= float(label) <= HIGHEST_SCORE
    except ValueError:
        return False


def _wrong(file: Path, layout: _Layout, line: int, problem: str) -> DataNotFound:
    """Return the error of a file that does not have the layout of the official one."""
    return DataNotFound(f"GLUE's {layout.folder}", f"{file}, line {line}: {problem}", _REMEDY.format(layout.folder))
