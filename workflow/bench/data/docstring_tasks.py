"""Fine-tuning tasks made of the docstrings, one for each kind of the paper's: stand-ins that need no download.

Training and validation examples come from the two splits of the corpus, which share no source file.  Which examples
there are is fixed: every run, of any seed, sees the same ones.  Imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from workflow.bench.data import corpus
from workflow.bench.data.corpus import Split
from workflow.bench.data.features import Examples, pack
from workflow.bench.data.questions import Questions

HIGHEST_SCORE: Final = 5.0
"""Similarity of a text with itself, as in STS-B."""
LONGEST_ANSWER: Final = 10
"""Tokens of an answer, at most."""
PACKAGES: Final = 8
"""Classes of the task `package`."""

_RECIPE: Final = "tasks v1"
_SEED: Final = 0  # of what is drawn to make examples
_TRAIN, _VALIDATION = 8192, 512  # examples, at most
_CLOSING: Final = {"(": ")", "[": "]", '"': '"', "'": "'"}
_WORDS: Final = (5, 10)  # of a sentence of the pairs
_WINDOWS: Final = 8  # of one docstring, at most

_Tokens = list[int]
_Word = tuple[int, ...]  # its pieces
_Labelled = tuple[tuple[_Tokens, _Tokens | None], float]


def version() -> str:
    """Return what fixes the tasks."""
    return f"{corpus.version()}, {_RECIPE}"


def package(vocabulary_size: int, length: int) -> Examples:
    """Single texts: from which of eight packages (scipy.stats, ...) is a window of a docstring?

    The packages are those with most text in both splits; each is as frequent as the others.
    """
    text = corpus.load(vocabulary_size)
    train, validation = (_windows(split, length - 2, _package) for split in (text.train, text.validation))
    share = len(text.train.tokens) / len(text.validation.tokens)
    size = {name: min(len(train[name]), share * len(validation[name])) for name in train.keys() & validation.keys()}
    chosen = sorted(size, key=lambda name: (-size[name], name))[:PACKAGES]
    return _balanced(train, validation, chosen, length)


def library(vocabulary_size: int, length: int) -> Examples:
    """Single texts of two classes: is a window of a docstring from scikit-learn's modules, or from SciPy's?"""
    text = corpus.load(vocabulary_size)
    train, validation = (_windows(split, length - 2, _library) for split in (text.train, text.validation))
    return _balanced(train, validation, sorted(train), length)


def copy(vocabulary_size: int, length: int) -> Examples:
    """Pairs of two classes: is the second sentence the first one with a word dropped, or another one's such copy?

    Both kinds of second sentence have one word less than the first, so that its length tells nothing.
    """

    def labelled(sentences: list[list[_Word]], rng: np.random.Generator) -> Iterator[_Labelled]:
        same_length = _by_length(sentences)
        for number, sentence in enumerate(sentences):
            is_copy = number % 2
            others = same_length[len(sentence)]
            source = sentence if is_copy else others[rng.integers(len(others))]
            dropped = rng.integers(len(source))
            yield (_flat(sentence), _flat([*source[:dropped], *source[dropped + 1 :]])), is_copy

    return _paired(vocabulary_size, length, labelled, np.dtype(np.int64))


def similarity(vocabulary_size: int, length: int) -> Examples:
    """Pairs with a score from 0 to 5: the share of the first sentence's words that the second one kept.

    The others are replaced by words drawn from the text.
    """

    def labelled(sentences: list[list[_Word]], rng: np.random.Generator) -> Iterator[_Labelled]:
        words = [word for sentence in sentences for word in sentence]
        for sentence in sentences:
            kept = rng.integers(len(sentence) + 1)
            replaced = set(rng.permutation(len(sentence))[kept:].tolist())
            other = [words[rng.integers(len(words))] if n in replaced else word for n, word in enumerate(sentence)]
            same = sum(one == two for one, two in zip(sentence, other, strict=True))
            yield (_flat(sentence), _flat(other)), HIGHEST_SCORE * same / len(sentence)

    return _paired(vocabulary_size, length, labelled, np.dtype(np.float32))


def questions(vocabulary_size: int, length: int) -> Questions:
    """Spans: the question is an opening quote or bracket, the answer what stands between it and its closing one.

    The context is a sentence in which exactly one such span stands; it may hold spans of the other kinds.
    """
    text = corpus.load(vocabulary_size)
    pieces = text.vocabulary.tolist()
    closing = {pieces.index(opening): pieces.index(close) for opening, close in _CLOSING.items()}
    seen: set[bytes] = set()
    features = []
    asked: list[tuple[_Tokens, tuple[int, int]]] = []
    for split, most in ((text.train, _TRAIN), (text.validation, _VALIDATION)):
        found = [
            (opening, sentence, span)
            for sentence in _sentences(split, 4, length - 4, seen)
            for opening, span in _spans(sentence, closing)
        ]
        order = np.random.default_rng(_SEED).permutation(len(found))[:most]
        chosen = [found[n] for n in order]
        context = len(("[CLS]", "question", "[SEP]"))  # the column where it starts
        columns = np.array([[first + context, last + context] for _, _, (first, last) in chosen], dtype=np.int64)
        features.append(pack((([opening], sentence) for opening, sentence, _ in chosen), columns, length))
        asked = [(sentence, span) for _, sentence, span in chosen]
    contexts, answers = [], []
    offsets = np.zeros((len(asked), length, 2), dtype=np.int32)
    for row, (sentence, (first, last)) in enumerate(asked):
        spelled, places = _spell([pieces[token] for token in sentence])
        offsets[row, context : context + len(places)] = places
        contexts.append(spelled)
        answers.append([spelled[places[first][0] : places[last][1]]])
    train, validation = features
    return Questions(train, validation, np.arange(len(asked)), offsets, tuple(contexts), tuple(answers))


def _package(name: str) -> str:
    """Return ``scipy.stats`` for ``scipy/stats/_qmc.py``."""
    return ".".join(name.removesuffix(".py").split("/")[:2])


def _library(name: str) -> str:
    return name.partition("/")[0]


def _windows(split: Split, size: int, group: Callable[[str], str]) -> dict[str, list[_Tokens]]:
    """Return windows of ``size`` tokens, side by side, of every docstring that is as long, by its file's group."""
    found = defaultdict(list)
    ends = split.sentences[split.docstrings]
    document = np.searchsorted(split.documents, np.arange(len(split.docstrings) - 1), side="right") - 1
    for docstring, name in enumerate(split.names[document]):
        here = split.tokens[ends[docstring] : ends[docstring + 1]].tolist()
        for start in range(0, min(len(here) + 1, (_WINDOWS + 1) * size) - size, size):
            found[group(str(name))].append(here[start : start + size])
    return found


def _balanced(
    train: dict[str, list[_Tokens]], validation: dict[str, list[_Tokens]], classes: Sequence[str], length: int
) -> Examples:
    """Return as many windows of every class, in an order drawn once."""
    made = []
    for windows, most in ((train, _TRAIN), (validation, _VALIDATION)):
        rng = np.random.default_rng(_SEED)
        each = min(most // len(classes), *(len(windows[name]) for name in classes))
        rows = [
            (windows[name][n], label)
            for label, name in enumerate(classes)
            for n in rng.permutation(len(windows[name]))[:each]
        ]
        order = rng.permutation(len(rows))
        labels = np.array([rows[n][1] for n in order], dtype=np.int64)
        made.append(pack(((rows[n][0], None) for n in order), labels, length))
    return Examples(*made)


def _paired(
    vocabulary_size: int,
    length: int,
    labelled: Callable[[list[list[_Word]], np.random.Generator], Iterator[_Labelled]],
    dtype: np.dtype,
) -> Examples:
    """Return pairs made of the sentences of each split that fit in twice, drawn once."""
    text = corpus.load(vocabulary_size)
    starts_word = np.array([not piece.startswith("##") for piece in text.vocabulary])
    seen: set[bytes] = set()
    made = []
    for split, most in ((text.train, _TRAIN), (text.validation, _VALIDATION)):
        rng = np.random.default_rng(_SEED)
        sentences = [_words(each, starts_word) for each in _sentences(split, _WORDS[0], (length - 3) // 2, seen)]
        sentences = [words for words in sentences if _WORDS[0] <= len(words) <= _WORDS[1]]
        chosen = [sentences[n] for n in rng.permutation(len(sentences))[:most]]
        rows = list(labelled(chosen, rng))
        made.append(pack((pair for pair, _ in rows), np.array([label for _, label in rows], dtype=dtype), length))
    return Examples(*made)


def _sentences(split: Split, least: int, most: int, seen: set[bytes]) -> Iterator[_Tokens]:
    """Yield the sentences of ``least`` to ``most`` tokens, each once; ``seen`` holds those met so far.

    Many stand in several files, such as a parameter's name and type.
    """
    lengths = np.diff(split.sentences)
    for number in np.flatnonzero((lengths >= least) & (lengths <= most)):
        tokens = split.tokens[split.sentences[number] : split.sentences[number + 1]]
        if (key := tokens.tobytes()) not in seen:
            seen.add(key)
            yield tokens.tolist()


def _spans(sentence: _Tokens, closing: dict[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the opening token, and first and last place inside, of each kind that stands exactly once."""
    for opening, close in closing.items():
        same = opening == close
        if sentence.count(opening) != (2 if same else 1) or (not same and sentence.count(close) != 1):
            continue
        first = sentence.index(opening) + 1
        end = sentence.index(close, first) if close in sentence[first:] else first
        if 1 <= end - first <= LONGEST_ANSWER:
            yield opening, (first, end - 1)


def _words(tokens: _Tokens, starts_word: np.ndarray) -> list[_Word]:
    words: list[_Tokens] = []
    for token in tokens:
        if starts_word[token] or not words:
            words.append([token])
        else:
            words[-1].append(token)
    return [tuple(word) for word in words]


def _by_length(sentences: list[list[_Word]]) -> dict[int, list[list[_Word]]]:
    found = defaultdict(list)
    for sentence in sentences:
        found[len(sentence)].append(sentence)
    return found


def _flat(words: Sequence[_Word]) -> _Tokens:
    return [token for word in words for token in word]


def _spell(pieces: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return word pieces as text, words apart, and where each piece stands in it."""
    text, places = "", []
    for piece in pieces:
        inside = piece.startswith("##")
        text += "" if inside or not text else " "
        places.append((len(text), len(text) + len(piece) - 2 * inside))
        text += piece[2 * inside :]
    return text, places
