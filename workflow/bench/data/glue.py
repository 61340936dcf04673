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
from workflow.bench.data.folder import DataNotFound, data_folder


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

    def not_found(self, where: Path | str, reason: str = "") -> DataNotFound:
        """Return the error of a file that is missing, or does not have the layout of the official one."""
        remedy = f"download the task from the GLUE benchmark's page and unpack it as glue/{self.folder}"
        return DataNotFound(f"GLUE's {self.folder}", where, f"{reason}{remedy}")

    def allows(self, label: str) -> bool:
        """Return whether a text is a class or a similarity score as in the official files."""
        if self.classes:
            return label in self.classes
        try:
            return 0 <= float(label) <= HIGHEST_SCORE
        except ValueError:
            return False


_BINARY: Final = ("0", "1")
_ENTAILMENT: Final = ("entailment", "not_entailment")
_NLI: Final = ("contradiction", "entailment", "neutral")
TASKS: Final = {
    "mnli": _Layout("MNLI", "sentence1", "sentence2", "gold_label", _NLI, "dev_matched.tsv"),
    "qqp": _Layout("QQP", "question1", "question2", "is_duplicate", _BINARY),
    "qnli": _Layout("QNLI", "question", "sentence", "label", _ENTAILMENT),
    "sst2": _Layout("SST-2", "sentence", None, "label", _BINARY),
    "cola": _Layout("CoLA", 3, None, 1, _BINARY),
    "stsb": _Layout("STS-B", "sentence1", "sentence2", "score", ()),
    "mrpc": _Layout("MRPC", "#1 String", "#2 String", "Quality", _BINARY),
    "rte": _Layout("RTE", "sentence1", "sentence2", "label", _ENTAILMENT),
}


def load(task: str, vocabulary: Vocabulary, length: int) -> Examples:
    """Return a task's examples as features, from the data folder if they were made before.

    Raises:
        DataNotFound: a file is missing or does not have the layout of the official one.
    """
    layout = TASKS[task]
    folder = data_folder() / "glue" / layout.folder
    files = [folder / "train.tsv", folder / layout.development]
    for file in files:
        if not file.is_file():
            raise layout.not_found(file)

    def make() -> Examples:
        return Examples(*(_encode(file, layout, vocabulary, length) for file in files))

    return features.prepared(f"glue-{task}", Examples, vocabulary, length, files, make)


def _encode(file: Path, layout: _Layout, vocabulary: Vocabulary, length: int) -> Features:
    rows = list(_read(file, layout))
    if not rows:
        raise layout.not_found(file, "it has no example; ")
    first, second, labels = zip(*rows, strict=True)
    if layout.classes:
        values = np.array([layout.classes.index(label) for label in labels], dtype=np.int64)
    else:
        values = np.array(labels, dtype=np.float32)
    return features.encode(first, None if layout.second is None else second, values, vocabulary, length)


def _read(file: Path, layout: _Layout) -> Iterator[tuple[str, str, str]]:
    """Yield the two texts and the label of every row; without a second text, the first one is repeated.

    Quotation marks are text: the official files quote nothing.
    """
    try:
        # Not splitlines, which also splits at characters that occur inside texts, such as U+2028.
        lines = [line.rstrip("\r").split("\t") for line in file.read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError as problem:
        before = file.read_bytes()[: problem.start].count(b"\n")
        raise layout.not_found(f"{file}, line {before + 1}: it is not UTF-8 text") from None
    wanted = (layout.first, layout.first if layout.second is None else layout.second, layout.label)
    header = lines[0]
    missing = [column for column in wanted if isinstance(column, str) and column not in header]
    if missing:
        raise layout.not_found(f"{file}, line 1: no column '{missing[0]}'")
    columns = [header.index(column) if isinstance(column, str) else column for column in wanted]
    start = int(isinstance(layout.first, str))  # the lines of the header
    for number, fields in enumerate(lines[start:], start + 1):
        if fields == [""]:
            continue
        if len(fields) <= max(columns):
            if layout.folder == "QQP":
                continue  # some rows of its official training file lack their last columns
            raise layout.not_found(f"{file}, line {number}: {len(fields)} columns")
        first, second, label = (fields[column] for column in columns)
        if not layout.allows(label):
            raise layout.not_found(f"{file}, line {number}: the label '{label}'")
        yield first, second, label
