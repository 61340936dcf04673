"""SQuAD v1.1 (Rajpurkar et al., EMNLP 2016), from the official JSON files. Imports no torch.

``<data folder>/squad`` holds ``train-v1.1.json`` and ``dev-v1.1.json``. The development split is used for validation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import features
from workflow.bench.data.features import Features, Questions, Vocabulary
from workflow.bench.data.folder import DataNotFound, data_folder

LONGEST_ANSWER: Final = 30
"""The largest number of tokens in an answer, as in BERT's own script."""
LONGEST_QUESTION: Final = 64
"""The largest number of tokens in a question; the rest is cut off."""

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
        texts = features.packed_texts([each.context for each in validation], [each.answers for each in validation])
        return Questions(_windows(train, vocabulary, length)[0], *_windows(validation, vocabulary, length), texts=texts)

    return features.prepared("squad", Questions, vocabulary, length, files, make)


def _read(file: Path) -> list[_Question]:
    try:
        articles = json.loads(file.read_text(encoding="utf-8"))["data"]
        paragraphs = [each for article in articles for each in article["paragraphs"]]
        questions = [_question(item, _text(each["context"])) for each in paragraphs for item in each["qas"]]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as problem:
        reason = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        raise DataNotFound("SQuAD v1.1", f"{file} ({reason})", _REMEDY) from None
    if not questions:
        raise DataNotFound("SQuAD v1.1", f"{file} (no question)", _REMEDY)
    return questions


def _question(item: dict[str, Any], context: str) -> _Question:
    text, answers = _text(item["question"]), [_text(answer["text"]) for answer in item["answers"]]
    first = item["answers"][0]["answer_start"]
    end = first + len(answers[0])
    if first < 0 or context[first:end] != answers[0]:
        raise ValueError(f"question {item['id']}: its answer is not at answer_start")
    return _Question(text.strip(), context, answers, (first, end))


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

    windows = [window for encoding in encodings for window in (encoding, *encoding.overflowing)]
    question_of = np.repeat(np.arange(len(questions)), [1 + len(encoding.overflowing) for encoding in encodings])
    labels = np.zeros((len(windows), 2), dtype=np.int64)
    made = features.from_encodings(windows, labels, length)
    offsets = np.zeros((len(windows), length, 2), dtype=np.int32)
    for row, (number, window) in enumerate(zip(question_of.tolist(), windows, strict=True)):
        start = int(made.second[row])
        columns = slice(start, int(made.lengths[row]) - 1)  # the context, without the last [SEP]
        spans = np.array(window.offsets[columns], dtype=np.int32).reshape(-1, 2)
        offsets[row, columns] = spans
        first, end = questions[number].span
        inside = np.flatnonzero((spans[:, 1] > first) & (spans[:, 0] < end))
        if len(inside) and spans[0, 0] <= first and spans[-1, 1] >= end:
            labels[row] = start + inside[[0, -1]]
    return made, question_of, offsets
