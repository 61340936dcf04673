"""SQuAD v1.1 (Rajpurkar et al., EMNLP 2016), from the official JSON files.  Imports no torch.

``<data folder>/squad`` holds ``train-v1.1.json`` and ``dev-v1.1.json``.  The development split is validated on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import features
from workflow.bench.data.corpus import PAD
from workflow.bench.data.features import Features, Vocabulary
from workflow.bench.data.folder import DataNotFound, data_folder, versions
from workflow.bench.data.questions import Questions

LONGEST_ANSWER: Final = 30
"""Tokens of an answer, at most, as in BERT's own script."""
LONGEST_QUESTION: Final = 64
"""Tokens of a question, at most; the rest of it is cut off."""

_RECIPE: Final = "SQuAD v1.1, v1"
_FILES: Final = ("train-v1.1.json", "dev-v1.1.json")
_REMEDY: Final = "put the official file of the Stanford Question Answering Dataset there"
_STRIDE: Final = 128  # tokens that a window of a long context starts after the one before, at least


class _Asked(NamedTuple):
    """A question of a file."""

    question: str
    context: str
    answers: list[str]
    place: tuple[int, int]
    """Where the first answer stands in the context: first character, and the one after the last."""


def version() -> str:
    """Return what fixes the data, but for the files themselves, which the fingerprint tells."""
    return versions("tokenizers", recipe=_RECIPE)


def load(vocabulary: Vocabulary, length: int) -> Questions:
    """Return the questions as features, from the data folder if they were made before.

    A context that is too long is cut into windows that overlap; a training window without its answer whole points at
    [CLS], as in BERT's own script.  Raises `DataNotFound` where a file is missing or is not SQuAD v1.1.
    """
    files = [data_folder() / "squad" / name for name in _FILES]
    for file in files:
        if not file.is_file():
            raise DataNotFound("SQuAD v1.1", file, _REMEDY)

    def make() -> dict[str, NDArray]:
        train, validation = (_read(file) for file in files)
        return Questions(
            _windows(train, vocabulary, length)[0],
            *_windows(validation, vocabulary, length),
            tuple(asked.context for asked in validation),
            tuple(asked.answers for asked in validation),
        ).arrays()

    settings = {"vocabulary": vocabulary.name, "length": length}
    return Questions.from_arrays(features.cached("squad", settings, [*files, vocabulary.path], make))


def _read(file: Path) -> list[_Asked]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = list(_questions(content))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as problem:
        what = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        raise DataNotFound("SQuAD v1.1", f"{file} ({what})", _REMEDY) from None
    if not found:
        raise DataNotFound("SQuAD v1.1", f"{file} (no question)", _REMEDY)
    return found


def _questions(content: dict[str, Any]) -> Iterator[_Asked]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            context = _text(paragraph["context"])
            for asked in paragraph["qas"]:
                question, answers = _text(asked["question"]), [_text(answer["text"]) for answer in asked["answers"]]
                first = asked["answers"][0]["answer_start"]
                if first < 0 or context[first : first + len(answers[0])] != answers[0]:
                    raise ValueError(f"question {asked['id']}: answer_start is not where its answer stands")
                yield _Asked(question.strip(), context, answers, (first, first + len(answers[0])))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} stands where a text should")
    return value


def _windows(
    questions: list[_Asked], vocabulary: Vocabulary, length: int
) -> tuple[Features, NDArray[np.int64], NDArray[np.int32]]:
    """Return features, the question of each, and where their tokens stand in the contexts."""
    tokenizer = vocabulary.tokenizer()
    tokenizer.enable_truncation(LONGEST_QUESTION + 2)  # [CLS] and [SEP] are counted
    asked = [question.question for question in questions]
    for number, encoding in enumerate(tokenizer.encode_batch(asked)):
        if encoding.overflowing:
            asked[number] = asked[number][: encoding.offsets[-2][1]]
    room = length - LONGEST_QUESTION - 3  # for the context, beside the longest question
    overlap = max(room - _STRIDE, room // 2)
    tokenizer.enable_truncation(length, stride=overlap, strategy="only_second")
    encodings = tokenizer.encode_batch(list(zip(asked, (question.context for question in questions), strict=True)))

    windows = [
        (number, window) for number, encoding in enumerate(encodings) for window in (encoding, *encoding.overflowing)
    ]
    tokens = np.full((len(windows), length), PAD, dtype=np.uint16)
    second = np.zeros(len(windows), dtype=np.uint16)
    lengths = np.zeros(len(windows), dtype=np.uint16)
    labels = np.zeros((len(windows), 2), dtype=np.int64)
    offsets = np.zeros((len(windows), length, 2), dtype=np.int32)
    for row, (number, window) in enumerate(windows):
        lengths[row] = len(window.ids)
        tokens[row, : lengths[row]] = window.ids
        second[row] = lengths[row] - sum(window.type_ids)
        here = slice(int(second[row]), int(lengths[row]) - 1)
        places = np.array(window.offsets[here], dtype=np.int32).reshape(-1, 2)
        offsets[row, here] = places
        first, end = questions[number].place
        inside = np.flatnonzero((places[:, 1] > first) & (places[:, 0] < end))
        if len(inside) and places[0, 0] <= first and places[-1, 1] >= end:
            labels[row] = int(second[row]) + inside[[0, -1]]
    return Features(tokens, second, lengths, labels), np.array([n for n, _ in windows], dtype=np.int64), offsets
