"""Documents as numbers: a WordPiece vocabulary, and the tokens of a training and a validation split.

Reading, training the vocabulary and cutting a million words takes seconds, so the result is kept under the
data folder.  Imports no torch.
"""

from __future__ import annotations

import hashlib
import io
import logging
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import docstrings
from workflow.bench.data.docstrings import Document
from workflow.bench.data.folder import DataDamaged, data_folder, read_arrays, versions
from workflow.bench.support.files import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids as above
ALPHABET: Final = string.punctuation + string.digits + string.ascii_lowercase
CONTINUATIONS: Final = tuple(f"##{letter}" for letter in string.digits + string.ascii_lowercase)

_VALIDATION_ONE_IN: Final = 10
_RECIPE: Final = "v1"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """Tokens of the documents of one split, end to end, with three levels of boundaries.

    Sentence s is ``tokens[sentences[s]:sentences[s + 1]]``, docstring d has the sentences from ``docstrings[d]``
    to ``docstrings[d + 1]``, document m the docstrings from ``documents[m]`` to ``documents[m + 1]``.
    """

    tokens: NDArray[np.uint16]
    sentences: NDArray[np.int32]
    docstrings: NDArray[np.int32]
    documents: NDArray[np.int32]
    names: NDArray[np.str_]  # of the documents


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
        """Return all that a corpus holds, by name, integers in little-endian order."""
        found: dict[str, NDArray] = {"vocabulary": self.vocabulary}
        for name, split in (("train", self.train), ("validation", self.validation)):
            for field in fields(Split):
                array: NDArray = getattr(split, field.name)
                found[f"{name}_{field.name}"] = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return found

    def to_bytes(self) -> bytes:
        """Return the corpus as an NPZ archive, whose members carry checksums."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **self.arrays())
        return buffer.getvalue()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> Corpus:
        """Return the corpus that `arrays` gave out."""
        train, validation = (
            Split(**{field.name: arrays[f"{name}_{field.name}"] for field in fields(Split)})
            for name in ("train", "validation")
        )
        return cls(arrays["vocabulary"], train, validation)


def version() -> str:
    """Return what fixes the corpus of the docstrings."""
    return versions(*docstrings.PACKAGES, "tokenizers", recipe=_RECIPE)


def load(vocabulary_size: int) -> Corpus:
    """Return the corpus of the docstrings, from the data folder if it has been there before.

    A folder that cannot be written is no error: the corpus is made anew then.  Raises `DataNotFound` where the
    packages are not installed, `ValueError` if the text has fewer word pieces than ``vocabulary_size``.
    """
    name = f"docstrings {version()} vocabulary {vocabulary_size}.npz".replace(", ", " ").replace(" ", "-")
    path = data_folder() / name
    corpus = _read(path)
    if corpus is None:
        corpus = build(docstrings.read(), vocabulary_size)
        try:
            write_atomically(path, corpus.to_bytes())
        except OSError as problem:
            _log.warning("%s cannot be kept, each run makes it anew: %s", path, problem.strerror)
    return corpus


def _read(path: Path) -> Corpus | None:
    try:
        return Corpus.from_arrays(read_arrays(path))
    except FileNotFoundError:
        return None
    except (DataDamaged, KeyError) as problem:
        _log.warning("%s; it is made anew", problem)
        return None


def build(documents: Sequence[Document], vocabulary_size: int) -> Corpus:
    """Split ``documents``, train the vocabulary on the training ones, and cut both splits into tokens.

    Raises `ValueError` if the training text has fewer word pieces than ``vocabulary_size``.
    """
    train = [document for document in documents if not is_validation(document.name)]
    validation = [document for document in documents if is_validation(document.name)]
    vocabulary = train_vocabulary(
        (sentence for document in train for text in document.docstrings for sentence in text), vocabulary_size
    )
    return Corpus(np.array(vocabulary), _cut(train, vocabulary), _cut(validation, vocabulary))


def is_validation(name: str) -> bool:
    """Return whether a document is held out: one in ten, by the hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % _VALIDATION_ONE_IN == 0


def train_vocabulary(text: Iterable[str], size: int) -> list[str]:
    """Return the WordPiece vocabulary of ``text``, by id: special tokens, characters, then pieces by frequency.

    Words with a character outside `ALPHABET` (lower case, ASCII) are unknown.  Raises `ValueError` if ``text`` has
    fewer pieces than ``size``.
    """
    from tokenizers import trainers

    untrained = tokenizer([])
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        initial_alphabet=list(ALPHABET),
        limit_alphabet=len(ALPHABET),
        # The trainer numbers characters inside words as it meets them in a hash table, differently in each
        # process, and breaks ties between pairs by number. Named up front they always have the same number.
        special_tokens=[*SPECIAL_TOKENS, *ALPHABET, *CONTINUATIONS],
        show_progress=False,
    )
    untrained.train_from_iterator(text, trainer)
    ids = untrained.get_vocab()
    if len(ids) != size:
        raise ValueError(f"vocabulary_size={size}: the text gives {len(ids)} word pieces.")
    return sorted(ids, key=ids.__getitem__)


def tokenizer(vocabulary: Sequence[str], *, lowercase: bool = True) -> Tokenizer:
    """Return BERT's tokenizer, uncased by default, with ``vocabulary``, which may be empty before training."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    ids = {piece: number for number, piece in enumerate(vocabulary)}
    made = Tokenizer(models.WordPiece(vocab=ids, unk_token=SPECIAL_TOKENS[UNKNOWN]))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _cut(documents: Sequence[Document], vocabulary: Sequence[str]) -> Split:
    texts = [text for document in documents for text in document.docstrings]
    encodings = tokenizer(vocabulary).encode_batch([sentence for text in texts for sentence in text])
    encoded = [encoding.ids for encoding in encodings]
    return Split(
        tokens=np.array([number for sentence in encoded for number in sentence], dtype=np.uint16),
        sentences=_boundaries(map(len, encoded)),
        docstrings=_boundaries(map(len, texts)),
        documents=_boundaries(len(document.docstrings) for document in documents),
        names=np.array([document.name for document in documents], dtype=np.str_),
    )


def _boundaries(lengths: Iterable[int]) -> NDArray[np.int32]:
    """Return where each of consecutive parts starts, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int32)
