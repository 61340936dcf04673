"""English text that comes with the packages, the docstrings of scikit-learn and SciPy: sentences, then token ids.

The sources are read with `ast`, without importing them. The text depends on the packages' versions alone: tests and
files that a build writes are left out, since they differ between distributions. Reading the text, training the
vocabulary and tokenizing a million words takes seconds, so the result is kept in the data folder.

Importing this module imports no torch.
"""

from __future__ import annotations

import ast
import hashlib
import re
import string
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data import version_of
from workflow.bench.data.arrays import load_or_make, named_arrays
from workflow.bench.data.folder import DataNotFound, data_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGES: Final = ("scikit-learn", "scipy")

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The tokens with the ids `PAD`, `UNKNOWN`, `CLS`, `SEP` and `MASK`."""
ALPHABET: Final = string.punctuation + string.digits + string.ascii_lowercase
CONTINUATIONS: Final = tuple(f"##{letter}" for letter in string.digits + string.ascii_lowercase)
"""Word pieces of one character inside a word."""
END_OF_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(\[])")
"""The space between two sentences."""

_WRITTEN_BY_BUILDS: Final = frozenset({"__config__.py", "_distributor_init.py", "version.py"})
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_RULE = re.compile(r"([-=~^\"*+#.])\1{2,}(?:\s+\1{2,})*")  # a heading's underline, or a table's border
_DIRECTIVE = re.compile(r"\.\. [\w-]+::.*|:[\w-]+:(?:\s.*)?|%\(\w+\)s")  # .. math::, :toctree:, %(example)s
_MARKUP = re.compile(r":[a-z]+(?::[a-z]+)?:(?=`)|`~?|`")  # removed, so that :func:`~a.b` becomes a.b
_WORD = re.compile(r"[A-Za-z]{2}")


class Document(NamedTuple):
    """One source file: its docstrings in their order, each a list of sentences."""

    name: str
    """Such as ``scipy/stats/_qmc.py``."""
    docstrings: list[list[str]]


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
        for name, array in named_arrays(self).items():
            content = "\n".join(array).encode() if array.dtype.kind == "U" else array.tobytes()
            digest.update(f"{name} {array.shape} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()


def load(vocabulary_size: int) -> Corpus:
    """Return the corpus of the docstrings, from the data folder if it was made before.

    Raises:
        DataNotFound: the packages are not installed.
        ValueError: the text has fewer word pieces than ``vocabulary_size``.
    """
    name = f"docstrings {version_of('docstrings')} vocabulary {vocabulary_size}.npz"
    path = data_folder() / name.replace(", ", "-").replace(" ", "-")
    return load_or_make(path, Corpus, lambda: build(read(), vocabulary_size))


def build(documents: Sequence[Document], vocabulary_size: int) -> Corpus:
    """Split ``documents``, train the vocabulary on the training ones, and tokenize both splits.

    Raises:
        ValueError: the training text has fewer word pieces than ``vocabulary_size``.
    """
    train = [document for document in documents if not is_validation(document.name)]
    validation = [document for document in documents if is_validation(document.name)]
    vocabulary = _train_vocabulary(
        (sentence for document in train for text in document.docstrings for sentence in text), vocabulary_size
    )
    return Corpus(np.array(vocabulary), _tokenize(train, vocabulary), _tokenize(validation, vocabulary))


def is_validation(name: str, one_in: int = 10) -> bool:
    """Return whether a document is held out: about one in ``one_in``, decided by the hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % one_in == 0


def read(packages: Sequence[str] = PACKAGES) -> list[Document]:
    """Return the documents of all ``packages``, sorted by package and name.

    If a docstring occurs several times, word for word, only the first one is kept, so that the splits share none.

    Raises:
        DataNotFound: a package is not installed, or its sources are not.
    """
    seen: set[tuple[str, ...]] = set()
    documents: list[Document] = []
    for package in packages:
        before = len(documents)
        for name, path in _sources(package):
            try:
                docstrings = [sentences(text) for text in _docstrings(path.read_bytes())]
            except OSError as problem:
                raise _not_found(package, f"{name}: {problem.strerror}") from None
            except (SyntaxError, ValueError) as problem:
                raise _not_found(package, f"{name}: it is not Python: {problem}") from None
            new = []
            for docstring in docstrings:
                if docstring and tuple(docstring) not in seen:
                    seen.add(tuple(docstring))
                    new.append(docstring)
            if new:
                documents.append(Document(name, new))
        if len(documents) == before:
            raise _not_found(package, "no source has a docstring")
    return documents


def sentences(docstring: str) -> list[str]:
    """Return the sentences of a docstring, in order, as plain text on one line each.

    A full stop, a paragraph, and a line with another indentation (such as a parameter's name and type) end a sentence.
    Headings, code examples, directives and the markup of roles are dropped.
    """
    result: list[str] = []
    block: list[str] = []  # lines that are one running text so far
    indentation = 0
    in_example = False

    def close_block() -> None:
        text = " ".join(" ".join(block).split())
        result.extend(sentence for sentence in END_OF_SENTENCE.split(text) if _WORD.search(sentence))
        block.clear()

    for line in [*docstring.splitlines(), ""]:
        text = line.strip()
        if not text:
            close_block()
            in_example = False
        elif in_example:
            continue
        elif text.startswith(">>>"):
            close_block()
            in_example = True
        elif _RULE.fullmatch(text):
            if len(block) == 1:
                block.clear()  # the underlined line is a heading
            close_block()
        elif _DIRECTIVE.fullmatch(text):
            close_block()
        else:
            margin = len(line) - len(line.lstrip())
            if margin != indentation:
                close_block()
                indentation = margin
            block.append(_MARKUP.sub("", text))
    return result


def _sources(package: str) -> list[tuple[str, Path]]:
    """Return the names and paths of the package's sources, sorted by name."""
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        raise _not_found(package, "it is not installed") from None
    names = sorted(
        str(file)
        for file in installed.files or ()
        if file.suffix == ".py" and "tests" not in file.parts and file.name not in _WRITTEN_BY_BUILDS
    )
    return [(name, Path(str(installed.locate_file(name)))) for name in names]


def _docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a source file, in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other packages' files are not our users' concern
        tree = ast.parse(source)
    documented = [node for node in ast.walk(tree) if isinstance(node, _Documented)]
    for node in sorted(documented, key=lambda node: getattr(node, "lineno", 0)):
        if docstring := ast.get_docstring(node):
            yield docstring


def _not_found(package: str, reason: str) -> DataNotFound:
    return DataNotFound(
        f"the docstrings of {package}",
        f"this Python's site-packages ({reason})",
        f"install {package} as requirements.lock pins it, with its .py files",
    )


def _train_vocabulary(text: Iterable[str], size: int) -> list[str]:
    """Return the WordPiece vocabulary of ``text``, by id: special tokens, characters, then pieces by frequency.

    Words with a character outside `ALPHABET` (lower case, ASCII) are unknown.
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
    ids = [encoding.ids for encoding in encodings]

    def boundaries(lengths: Iterable[int]) -> NDArray[np.int32]:
        """Return where each of consecutive parts starts, and where the last one ends."""
        return np.cumsum([0, *lengths], dtype=np.int32)

    return Split(
        tokens=np.array([token for sentence in ids for token in sentence], dtype=np.uint16),
        sentences=boundaries(map(len, ids)),
        docstrings=boundaries(map(len, texts)),
        documents=boundaries(len(document.docstrings) for document in documents),
        names=np.array([document.name for document in documents], dtype=np.str_),
    )
