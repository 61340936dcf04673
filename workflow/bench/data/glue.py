"""The GLUE benchmark's tasks (Wang et al., ICLR 2019), from the official TSV files.  Imports no torch.

``<data folder>/glue/<task>`` holds what the official archives unpack to: ``train.tsv`` and ``dev.tsv``
(``dev_matched.tsv`` for MNLI).  The development split is validated on, as the paper does: test labels are not public.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import features
from workflow.bench.data.features import Examples, Features, Vocabulary
from workflow.bench.data.folder import DataNotFound, data_folder, versions

_RECIPE: Final = "GLUE v1"
_HIGHEST_SCORE: Final = 5.0


class _Layout(NamedTuple):
    """Where a task's files and columns are; a column is named in the header, or by its number where there is none."""

    folder: str
    first: str | int
    second: str | int | None
    label: str | int
    classes: tuple[str, ...]
    """What stands in the label's column, by class; none for a score."""
    development: str = "dev.tsv"


_BINARY: Final = ("0", "1")
_ENTAILMENT: Final = ("entailment", "not_entailment")
_LAYOUTS: Final = {
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

TASKS: Final = tuple(_LAYOUTS)


def version() -> str:
    """Return what fixes the data, but for the files themselves, which the fingerprint tells."""
    return versions("tokenizers", recipe=_RECIPE)


def load(task: str, vocabulary: Vocabulary, length: int) -> Examples:
    """Return a task's examples as features, from the data folder if they were made before.

    Raises `DataNotFound` where a file is missing or is not laid out as the task's official one.
    """
    layout = _LAYOUTS[task]
    folder = data_folder() / "glue" / layout.folder
    files = [folder / "train.tsv", folder / layout.development]
    for file in files:
        if not file.is_file():
            raise DataNotFound(f"GLUE's {layout.folder}", file, _REMEDY.format(layout.folder))

    def make() -> dict[str, NDArray]:
        found = [_encode(file, layout, vocabulary, length) for file in files]
        return Examples(*found).arrays()

    settings = {"task": task, "vocabulary": vocabulary.name, "length": length}
    return Examples.from_arrays(features.cached(f"glue-{task}", settings, [*files, vocabulary.path], make))


_REMEDY: Final = "download the task from the GLUE benchmark's page and unpack it as glue/{}"


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
    """Yield texts and label of every row.  Quotes are text: the official files quote nothing."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: texts hold odd line ends
    except UnicodeDecodeError as problem:
        before = file.read_bytes()[: problem.start].count(b"\n")
        raise _odd(file, layout, before + 1, "it is no text in UTF-8") from None
    wanted = [layout.first, layout.first if layout.second is None else layout.second, layout.label]
    skipped = 0
    if isinstance(layout.first, str):
        header = lines[0].rstrip("\r").split("\t")
        skipped = 1
        missing = [str(name) for name in wanted if name not in header]
        if missing:
            raise _odd(file, layout, 1, f"no column '{missing[0]}'")
        columns = [header.index(str(name)) for name in wanted]
    else:
        columns = [int(name) for name in wanted]
    for number, line in enumerate(lines[skipped:], skipped + 1):
        fields = line.rstrip("\r").split("\t")
        if fields == [""]:
            continue
        # Some rows of QQP's official training file lack their last columns.
        if layout.folder == "QQP" and len(fields) <= max(columns):
            continue
        if len(fields) <= max(columns):
            raise _odd(file, layout, number, f"{len(fields)} columns")
        first, second, label = (fields[column] for column in columns)
        if not (label in layout.classes if layout.classes else _is_score(label)):
            raise _odd(file, layout, number, f"the label '{label}'")
        yield first, second, label


def _is_score(label: str) -> bool:
    """Tell whether a label is a similarity as the official files give it."""
    try:
        return 0 <= float(label) <= _HIGHEST_SCORE
    except ValueError:
        return False


def _odd(file: Path, layout: _Layout, line: int, what: str) -> DataNotFound:
    return DataNotFound(f"GLUE's {layout.folder}", f"{file}, line {line}: {what}", _REMEDY.format(layout.folder))
