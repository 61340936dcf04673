"""SQuAD v1.1 (Rajpurkar et al., EMNLP 2016), from the official JSON files. Imports no torch.

``<data folder>/squad`` holds ``train-v1.1.json`` and ``dev-v1.1.json``. The development split is used for validation.
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

DATASETS: Final = ("squad",)

LONGEST_ANSWER: Final = 30
"""The largest number of tokens in an answer, as in BERT's own script."""
LONGEST_QUESTION: Final = 64
"""The largest number of tokens in a question; the rest is cut off."""

_RECIPE: Final = "SQuAD v1.1, v1"
_FILES: Final = ("train-v1.1.json", "dev-v1.1.json")
_REMEDY: Final = "put the official file of the Stanford Question Answering Dataset there"
_STRIDE: Final = 128  # smallest step between two windows of a long context, in tokens; less in short sequences


class _Question(NamedTuple):
    """A question of a file."""

    text: str
    context: str
    answers: list[str]
    span: tuple[int, int]
    """The first answer's position in the context: its first character, and its last one plus 1."""


def version() -> str:
    """Return the version of the data; the fingerprint covers the files themselves."""
    return versions("tokenizers", recipe=_RECIPE)


def load(vocabulary: Vocabulary, length: int) -> Questions:
    """Return the questions as features, from the data folder if they were made before.

    A context that is too long is cut into overlapping windows. The label of a training window that does not contain
    the whole answer is [CLS], as in BERT's own script.

    Raises:
        DataNotFound: a file is missing or is not SQuAD v1.1.
    """
    files = [data_folder() / "squad" / name for name in _FILES]
    for file in files:
        if not file.is_file():
            raise DataNotFound("SQuAD v1.1", file, _REMEDY)

    def make() -> Questions:
        train, validation = (_read(file) for file in files)
        return Questions(
            _windows(train, vocabulary, length)[0],
            *_windows(validation, vocabulary, length),
            tuple(question.context for question in validation),
            tuple(question.answers for question in validation),
        )

    settings = {"vocabulary": vocabulary.name, "length": length}
    return features.prepared("squad", Questions, settings, [*files, vocabulary.path], make)


def _read(file: Path) -> list[_Question]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        questions = list(_questions(content))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as problem:
        reason = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        raise DataNotFound("SQuAD v1.1", f"{file} ({reason})", _REMEDY) from None
    if not questions:
        raise DataNotFound("SQuAD v1.1", f"{file} (no question)", _REMEDY)
    return questions


def _questions(content: dict[str, Any]) -> Iterator[_Question]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            context = _text(paragraph["context"])
            for item in paragraph["qas"]:
                text, answers = _text(item["question"]), [_text(answer["text"]) for answer in item["answers"]]
                first = item["answers"][0]["answer_start"]
                end = first + len(answers[0])
                if first < 0 or context[first:end] != answers[0]:
                    raise ValueError(f"question {item['id']}: its answer is not at answer_start")
                yield _Question(text.strip(), context, answers, (first, end))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} must be a text")
    return value


def _windows(
    questions: list[_Question], vocabulary: Vocabulary, length: int
) -> tuple[Features, NDArray[np.int64], NDArray[np.int32]]:
    """Return features, the question of each, and the offsets of their tokens in the contexts (see `Questions`)."""
    tokenizer = vocabulary.tokenizer()
    tokenizer.enable_truncation(LONGEST_QUESTION + 2)  # [CLS] and [SEP] count
    texts = [question.text for question in questions]
    for number, encoding in enumerate(tokenizer.encode_batch(texts)):
        if encoding.overflowing:
            # Cut the text after its last token that is kept; the one after that is [SEP].
            texts[number] = texts[number][: encoding.offsets[-2][1]]
    room = length - LONGEST_QUESTION - 3  # of a window of the context after the longest question
    overlap = max(room - _STRIDE, room // 2)
    tokenizer.enable_truncation(length, stride=overlap, strategy="only_second")
    contexts = [question.context for question in questions]
    encodings = tokenizer.encode_batch(list(zip(texts, contexts, strict=True)))

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
        columns = slice(int(second[row]), int(lengths[row]) - 1)  # the context, without the last [SEP]
        spans = np.array(window.offsets[columns], dtype=np.int32).reshape(-1, 2)
        offsets[row, columns] = spans
        first, end = questions[number].span
        inside = np.flatnonzero((spans[:, 1] > first) & (spans[:, 0] < end))
        if len(inside) and spans[0, 0] <= first and spans[-1, 1] >= end:
            labels[row] = int(second[row]) + inside[[0, -1]]
    return Features(tokens, second, lengths, labels), np.array([n for n, _ in windows], dtype=np.int64), offsets
