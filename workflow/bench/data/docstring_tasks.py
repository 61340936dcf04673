"""Fine-tuning tasks made of the docstrings: one stand-in for each kind of the paper's tasks, without a download.

Training and validation examples come from the two splits of the corpus, which share no source file. Every run, with
any seed, sees the same examples. Importing this module imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from workflow.bench.data import corpus
from workflow.bench.data.corpus import Split
from workflow.bench.data.features import HIGHEST_SCORE, Examples, Questions, pack, packed_texts

LONGEST_ANSWER: Final = 10
"""The largest number of tokens in an answer."""
PACKAGES: Final = 8
"""The number of classes of the task `package`."""

_SEED: Final = 0  # for every random choice of examples
_TRAIN, _VALIDATION = 8192, 512  # the largest numbers of examples
_CLOSING: Final = {"(": ")", "[": "]", '"': '"', "'": "'"}
_WORDS: Final = (5, 10)  # the smallest and largest number of words in a sentence of a pair
_MAX_WINDOWS: Final = 8  # per docstring

_Tokens = list[int]
_Word = tuple[int, ...]  # its word pieces
_Labeled = tuple[tuple[_Tokens, _Tokens | None], float]  # one or two segments, and the label


def package(vocabulary_size: int, length: int) -> Examples:
    """Return single texts of eight classes: the package (scipy.stats, ...) that a window of a docstring is from.

    These are the packages with the most text in both splits, each equally frequent.
    """
    text = corpus.load(vocabulary_size)
    train, validation = (_windows(split, length - 2, 2) for split in (text.train, text.validation))
    ratio = len(text.train.tokens) / len(text.validation.tokens)
    size = {name: min(len(train[name]), ratio * len(validation[name])) for name in train.keys() & validation.keys()}
    largest = sorted(size, key=lambda name: (-size[name], name))[:PACKAGES]
    return _balanced(train, validation, largest, length)


def library(vocabulary_size: int, length: int) -> Examples:
    """Return single texts of two classes: whether a window of a docstring is from scikit-learn or from SciPy."""
    text = corpus.load(vocabulary_size)
    train, validation = (_windows(split, length - 2, 1) for split in (text.train, text.validation))
    return _balanced(train, validation, sorted(train), length)


def copy(vocabulary_size: int, length: int) -> Examples:
    """Return pairs of two classes: whether the second sentence is a copy of the first with one word dropped.

    Otherwise it is such a copy of another sentence of the same length. Both have one word fewer than the first, so
    that the length does not reveal the class.
    """

    def labeled(sentences: list[list[_Word]], rng: np.random.Generator) -> Iterator[_Labeled]:
        same_length = defaultdict(list)
        for sentence in sentences:
            same_length[len(sentence)].append(sentence)
        for number, sentence in enumerate(sentences):
            is_copy = number % 2
            candidates = same_length[len(sentence)]
            source = sentence if is_copy else candidates[rng.integers(len(candidates))]
            dropped = rng.integers(len(source))
            yield (_flat(sentence), _flat([*source[:dropped], *source[dropped + 1 :]])), is_copy

    return _paired(vocabulary_size, length, labeled, np.dtype(np.int64))


def similarity(vocabulary_size: int, length: int) -> Examples:
    """Return pairs with a score from 0 to 5: the share of the first sentence's words that the second one keeps.

    Words drawn from the text replace the others.
    """

    def labeled(sentences: list[list[_Word]], rng: np.random.Generator) -> Iterator[_Labeled]:
        words = [word for sentence in sentences for word in sentence]
        for sentence in sentences:
            kept = rng.integers(len(sentence) + 1)
            replaced = set(rng.permutation(len(sentence))[kept:].tolist())
            changed = [words[rng.integers(len(words))] if n in replaced else word for n, word in enumerate(sentence)]
            # Counted again, since a replacement may happen to be the same word.
            same = sum(one == two for one, two in zip(sentence, changed, strict=True))
            yield (_flat(sentence), _flat(changed)), HIGHEST_SCORE * same / len(sentence)

    return _paired(vocabulary_size, length, labeled, np.dtype(np.float32))


CLASSIFICATION: Final[dict[str, Callable[[int, int], Examples]]] = {
    "package": package,
    "library": library,
    "copy": copy,
    "similarity": similarity,
}
"""The tasks that are classes or scores, by data set: functions of the vocabulary's size and the sequence length."""


def questions(vocabulary_size: int, length: int) -> Questions:
    """Return the data set "quotes": the question is an opening mark, the answer the text up to its closing mark.

    A mark is a quote or a bracket. The context is a sentence that contains exactly one pair of this mark; it may
    contain pairs of the others.
    """
    text = corpus.load(vocabulary_size)
    pieces = text.vocabulary.tolist()
    closing = {pieces.index(opening): pieces.index(close) for opening, close in _CLOSING.items()}
    first_column = len(("[CLS]", "question", "[SEP]"))  # the column in which the context starts
    seen: set[bytes] = set()
    features = []
    for split, limit in ((text.train, _TRAIN), (text.validation, _VALIDATION)):
        found = [
            (opening, sentence, span)
            for sentence in _sentences(split, 4, length - 4, seen)
            for opening, span in _spans(sentence, closing)
        ]
        asked = [found[n] for n in np.random.default_rng(_SEED).permutation(len(found))[:limit]]
        columns = [[first + first_column, last + first_column] for _, _, (first, last) in asked]
        segments = (([opening], sentence) for opening, sentence, _ in asked)
        features.append(pack(segments, np.array(columns, dtype=np.int64), length))

    contexts, answers = [], []
    offsets = np.zeros((len(asked), length, 2), dtype=np.int32)
    for row, (_, sentence, (first, last)) in enumerate(asked):  # those of the validation split
        context, spans = _spell([pieces[token] for token in sentence])
        offsets[row, first_column : first_column + len(spans)] = spans
        contexts.append(context)
        answers.append([context[spans[first][0] : spans[last][1]]])
    return Questions(features[0], features[1], np.arange(len(asked)), offsets, packed_texts(contexts, answers))


def _windows(split: Split, size: int, folders: int) -> dict[str, list[_Tokens]]:
    """Return adjacent windows of ``size`` tokens of every docstring that is long enough, by where its file lies.

    folders: how many; 2 give ``scipy.stats`` for ``scipy/stats/_qmc.py``.
    """
    windows = defaultdict(list)
    ends = split.sentences[split.docstrings]  # in tokens
    document = np.searchsorted(split.documents, np.arange(len(split.docstrings) - 1), side="right") - 1
    for docstring, name in enumerate(split.names[document]):
        tokens = split.tokens[ends[docstring] : ends[docstring + 1]].tolist()
        for start in range(0, min(len(tokens) + 1, (_MAX_WINDOWS + 1) * size) - size, size):
            place = ".".join(str(name).removesuffix(".py").split("/")[:folders])
            windows[place].append(tokens[start : start + size])
    return windows


def _balanced(
    train: dict[str, list[_Tokens]], validation: dict[str, list[_Tokens]], classes: Sequence[str], length: int
) -> Examples:
    """Return equally many windows of every class, in an order drawn once."""
    splits = []
    for windows, limit in ((train, _TRAIN), (validation, _VALIDATION)):
        rng = np.random.default_rng(_SEED)
        per_class = min(limit // len(classes), *(len(windows[name]) for name in classes))
        rows = [
            (windows[name][n], label)
            for label, name in enumerate(classes)
            for n in rng.permutation(len(windows[name]))[:per_class]
        ]
        order = rng.permutation(len(rows))
        labels = np.array([rows[n][1] for n in order], dtype=np.int64)
        splits.append(pack(((rows[n][0], None) for n in order), labels, length))
    return Examples(*splits)


def _paired(
    vocabulary_size: int,
    length: int,
    labeled: Callable[[list[list[_Word]], np.random.Generator], Iterator[_Labeled]],
    dtype: np.dtype,
) -> Examples:
    """Return pairs that ``labeled`` makes of random sentences, of which two fit in a sequence."""
    text = corpus.load(vocabulary_size)
    starts_word = np.array([not piece.startswith("##") for piece in text.vocabulary])
    seen: set[bytes] = set()
    splits = []
    for split, limit in ((text.train, _TRAIN), (text.validation, _VALIDATION)):
        rng = np.random.default_rng(_SEED)
        sentences = [_words(tokens, starts_word) for tokens in _sentences(split, _WORDS[0], (length - 3) // 2, seen)]
        sentences = [words for words in sentences if _WORDS[0] <= len(words) <= _WORDS[1]]
        chosen = [sentences[n] for n in rng.permutation(len(sentences))[:limit]]
        rows = list(labeled(chosen, rng))
        splits.append(pack((pair for pair, _ in rows), np.array([label for _, label in rows], dtype=dtype), length))
    return Examples(*splits)


def _sentences(split: Split, least: int, most: int, seen: set[bytes]) -> Iterator[_Tokens]:
    """Yield the sentences of ``least`` to ``most`` tokens that are not in ``seen``, and add them to it.

    Many sentences occur in several files, such as a parameter's name and type.
    """
    lengths = np.diff(split.sentences)
    for number in np.flatnonzero((lengths >= least) & (lengths <= most)):
        tokens = split.tokens[split.sentences[number] : split.sentences[number + 1]]
        if (key := tokens.tobytes()) not in seen:
            seen.add(key)
            yield tokens.tolist()


def _spans(sentence: _Tokens, closing: dict[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the opening token, and the first and last place inside, of each mark that occurs as exactly one pair.

    In ``f ( x , y )`` the bracket has the places 2 to 4.
    """
    for opening, close in closing.items():
        same = opening == close
        if sentence.count(opening) != (2 if same else 1) or (not same and sentence.count(close) != 1):
            continue
        first = sentence.index(opening) + 1
        end = sentence.index(close, first) if close in sentence[first:] else first
        if 1 <= end - first <= LONGEST_ANSWER:
            yield opening, (first, end - 1)


def _words(tokens: _Tokens, starts_word: np.ndarray) -> list[_Word]:
    """Return word pieces grouped into words; ``starts_word[id]`` is whether a piece starts a word."""
    words: list[_Tokens] = []
    for token in tokens:
        if starts_word[token] or not words:
            words.append([token])
        else:
            words[-1].append(token)
    return [tuple(word) for word in words]


def _flat(words: Sequence[_Word]) -> _Tokens:
    return [token for word in words for token in word]


def _spell(pieces: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return word pieces as text with spaces between words, and the first and last character + 1 of each piece.

    ``["play", "##ing", "go"]`` gives ``"playing go"`` and ``[(0, 4), (4, 7), (8, 10)]``.
    """
    text, spans = "", []
    for piece in pieces:
        inside = piece.startswith("##")
        text += "" if inside or not text else " "
        spans.append((len(text), len(text) + len(piece) - 2 * inside))
        text += piece[2 * inside :]
    return text, spans
