"""Documents as token ids: a WordPiece vocabulary, and the tokens of a training and a validation split.

Reading the text, training the vocabulary and tokenizing a million words takes seconds, so the result is kept in the
data folder. Importing this module imports no torch.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import array_cache, docstrings
from workflow.bench.data.arrays import little_endian
from workflow.bench.data.docstrings import Document
from workflow.bench.data.folder import data_folder, versions

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DATASETS: Final = ("docstrings",)

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The tokens with the ids `PAD`, `UNKNOWN`, `CLS`, `SEP` and `MASK`."""
ALPHABET: Final = string.punctuation + string.digits + string.ascii_lowercase
CONTINUATIONS: Final = tuple(f"##{letter}" for letter in string.digits + string.ascii_lowercase)
"""Word pieces of one character inside a word."""

_RECIPE: Final = "v1"


@dataclass(frozen=True)
class Split:
    """The tokens of the documents of one split, end to end, with three levels of boundaries.

    Sentence s is ``tokens[sentences[s]:sentences[s + 1]]``, docstring d has the sentences ``docstrings[d]`` to
    ``docstrings[d + 1] - 1``, and document m the docstrings ``documents[m]`` to ``documents[m + 1] - 1``. For example,
    two documents, the first with the sentences (5 6) (7) in one docstring, the second with the sentence (8 9), are
    ``tokens = [5 6 7 8 9]``, ``sentences = [0 2 3 5]``, ``docstrings = [0 2 3]``, ``documents = [0 1 2]``.
    """

    tokens: NDArray[np.uint16]
    sentences: NDArray[np.int32]
    docstrings: NDArray[np.int32]
    documents: NDArray[np.int32]
    names: NDArray[np.str_]
    """The name of each document."""


@dataclass(frozen=True)
class Corpus:
    """A vocabulary, by id, and two splits that share no document."""

    vocabulary: NDArray[np.str_]
    train: Split
    validation: Split

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and of all tokens and boundaries."""
        digest = hashlib.sha256()
        for name, array in self.arrays().items():
            content = "\n".join(array).encode() if array.dtype.kind == "U" else array.tobytes()
            digest.update(f"{name} {array.shape} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    def arrays(self) -> dict[str, NDArray]:
        """Return the arrays that `from_arrays` takes, integers in little-endian order."""
        arrays: dict[str, NDArray] = {"vocabulary": self.vocabulary}
        for name, split in (("train", self.train), ("validation", self.validation)):
            for field in fields(Split):
                array: NDArray = getattr(split, field.name)
                arrays[f"{name}_{field.name}"] = little_endian(array)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> Corpus:
        """Return the corpus that `arrays` returned."""
        train, validation = (
            Split(**{field.name: arrays[f"{name}_{field.name}"] for field in fields(Split)})
            for name in ("train", "validation")
        )
        return cls(arrays["vocabulary"], train, validation)


def version() -> str:
    """Return the version of the corpus of the docstrings."""
    return versions(*docstrings.PACKAGES, "tokenizers", recipe=_RECIPE)


def load(vocabulary_size: int) -> Corpus:
    """Return the corpus of the docstrings, from the data folder if it was made before.

    Raises:
        DataNotFound: the packages are not installed.
        ValueError: the text has fewer word pieces than ``vocabulary_size``.
    """
    name = f"docstrings {version()} vocabulary {vocabulary_size}.npz".replace(", ", " ").replace(" ", "-")
    return array_cache.load_or_make(data_folder() / name, Corpus, lambda: build(docstrings.read(), vocabulary_size))


def build(documents: Sequence[Document], vocabulary_size: int) -> Corpus:
    """Split ``documents``, train the vocabulary on the training ones, and tokenize both splits.

    Raises:
        ValueError: the training text has fewer word pieces than ``vocabulary_size``.
    """
    train = [document for document in documents if not is_validation(document.name)]
    validation = [document for document in documents if is_validation(document.name)]
    vocabulary = train_vocabulary(
        (sentence for document in train for text in document.docstrings for sentence in text), vocabulary_size
    )
    return Corpus(np.array(vocabulary), _tokenize(train, vocabulary), _tokenize(validation, vocabulary))


def is_validation(name: str, one_in: int = 10) -> bool:
    """Return whether a document is held out: about one in ``one_in``, decided by the hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % one_in == 0


def train_vocabulary(text: Iterable[str], size: int) -> list[str]:
    """Return the WordPiece vocabulary of ``text``, by id: special tokens, characters, then pieces by frequency.

    Words with a character outside `ALPHABET` (lower case, ASCII) are unknown.

    Raises:
        ValueError: ``text`` has fewer pieces than ``size``.
    """
    from tokenizers import trainers

    untrained = tokenizer([])
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        initial_alphabet=list(ALPHABET),
        limit_alphabet=len(ALPHABET),
        # The trainer numbers the characters inside words in the order of a hash table, which differs between
        # processes, and breaks ties between pairs by these numbers. Listed here, they always have the same number.
        special_tokens=[*SPECIAL_TOKENS, *ALPHABET, *CONTINUATIONS],
        show_progress=False,
    )
    untrained.train_from_iterator(text, trainer)
    ids = untrained.get_vocab()
    if len(ids) != size:
        raise ValueError(f"vocabulary_size={size}: the text gives {len(ids)} word pieces.")
    return sorted(ids, key=ids.__getitem__)


def tokenizer(vocabulary: Sequence[str], *, lowercase: bool = True) -> Tokenizer:
    """Return BERT's tokenizer, uncased by default, with a ``vocabulary``, which may be empty before training."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    ids = {piece: number for number, piece in enumerate(vocabulary)}
    wordpiece = Tokenizer(models.WordPiece(vocab=ids, unk_token=SPECIAL_TOKENS[UNKNOWN]))
    wordpiece.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return wordpiece


def _tokenize(documents: Sequence[Document], vocabulary: Sequence[str]) -> Split:
    texts = [text for document in documents for text in document.docstrings]
    encodings = tokenizer(vocabulary).encode_batch([sentence for text in texts for sentence in text])
    sentences = [encoding.ids for encoding in encodings]
    return Split(
        tokens=np.array([token for sentence in sentences for token in sentence], dtype=np.uint16),
        sentences=_boundaries(map(len, sentences)),
        docstrings=_boundaries(map(len, texts)),
        documents=_boundaries(len(document.docstrings) for document in documents),
        names=np.array([document.name for document in documents], dtype=np.str_),
    )


def _boundaries(lengths: Iterable[int]) -> NDArray[np.int32]:
    """Return where each of consecutive parts starts, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int32)
