"""The docstrings, from source files to masked pairs, checked on small files and on tokens that state their place."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow.bench.data import corpus
from workflow.bench.data.corpus import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, Corpus, Document, Split
from workflow.bench.data.folder import DataNotFound
from workflow.bench.data.masked_pairs import IGNORED, NEXT, RANDOM, SentencePairs, last_integer_rows, uniform_rows
from workflow.bench.support.config import ROOT

DOCSTRING = """
=====
Title
=====

Return the `mean` of :class:`~a.b.Rows`, cf. :py:func:`sum`. It is cheap!
Really, e.g. for long
rows.

Parameters
----------
x : array of shape (n,)
    The rows. Not
    copied.
axis : int

.. math::
    \\\\sum_i x_i

:toctree: generated/

Examples
--------
Call it like this:

>>> mean([1, 2])
1.5
>>> print("Hidden. Words")
Hidden. Words

That was all.
%(notes)s
"""

SENTENCES = [
    "Return the mean of a.b.Rows, cf. sum.",
    "It is cheap!",
    "Really, e.g. for long rows.",
    "x : array of shape (n,)",
    "The rows.",
    "Not copied.",
    "axis : int",
    "\\\\sum_i x_i",
    "Call it like this:",
    "That was all.",
]


# Sentences and documents


def test_sentences_of_a_docstring():
    assert corpus.sentences(DOCSTRING) == SENTENCES


@given(st.text(alphabet=" \n\t.:->aB1`=%", max_size=200))
def test_sentences_of_any_text_are_single_lines_with_words(text):
    for sentence in corpus.sentences(text):
        assert sentence == " ".join(sentence.split())
        assert any(letter.isalpha() for letter in sentence)
        assert "`" not in sentence


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package made of ``{file name: source}`` as a wheel would."""

    def install(files: dict[str, str | None]) -> None:
        folder = tmp_path / "invented-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: invented\nVersion: 1.0\n")
        (folder / "RECORD").write_text("".join(f"{name},,\n" for name in files))
        for name, source in files.items():
            if source is not None:
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_documents_are_read_in_order_without_importing_them(installed):
    source = '''"""First here."""
raise RuntimeError("imported")


class Late:
    """Second here."""

    def method(self):
        """Third here."""


async def last():
    """Fourth here."""
'''
    installed(
        {
            "invented/b.py": '"""Of file b."""\ndef f():\n    """First here."""\n',
            "invented/a.py": source,
            "invented/none.py": "x = 1\n",
            "invented/tests/test_a.py": '"""Of the tests."""\n',
            "invented/__config__.py": '"""Of the build."""\n',
            "invented/data.txt": "no source",
            "invented/escape.py": '"""An invalid \\d escape."""\n',
        }
    )
    assert corpus.read(["invented"]) == [
        Document("invented/a.py", [["First here."], ["Second here."], ["Third here."], ["Fourth here."]]),
        Document("invented/b.py", [["Of file b."]]),  # without the docstring that a.py has too
        Document("invented/escape.py", [["An invalid \\d escape."]]),
    ]
    assert "invented" not in sys.modules


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"invented/a.py": None}, r"invented/a\.py: No such file"),
        ({"invented/a.py": "x = 1"}, "no source has a docstring"),
        ({}, "no source has a docstring"),
        (None, "it is not installed"),
    ],
)
def test_missing_sources_are_named_with_the_remedy(installed, files, reason):
    if files is not None:
        installed(files)
    with pytest.raises(DataNotFound, match=rf"the docstrings of invented not found at .*{reason}.*; install invented"):
        corpus.read(["invented"])


# The vocabulary and the corpus


def words(*numbers: int) -> str:
    """Return a sentence with one invented word for each number."""
    return " ".join(
        "".join("bdfgklmnprstvz"[int(digit)] + "aeiou"[int(digit) % 5] for digit in str(n)) for n in numbers
    )


def invented_documents(count: int = 40) -> list[Document]:
    rng = np.random.default_rng(0)
    return [
        Document(f"invented/{d}.py", [[words(*rng.integers(100, 999, 8)) for _ in range(4)] for _ in range(3)])
        for d in range(count)
    ]


def test_one_document_in_ten_is_held_out_whatever_the_others_are():
    held_out = sum(corpus.is_validation(f"package/module_{number}.py") for number in range(5000))
    assert held_out / 5000 == pytest.approx(0.1, abs=0.02)  # about five standard deviations
    documents = invented_documents()
    built = corpus.build(documents, 200)
    names = [document.name for document in documents]
    assert list(built.validation.names) == [name for name in names if corpus.is_validation(name)]
    assert list(built.train.names) == [name for name in names if not corpus.is_validation(name)]


def test_tokens_spell_the_text():
    """Truth: the sentences themselves, spelled from word pieces."""
    documents = invented_documents()
    built = corpus.build(documents, 200)
    assert len(set(built.vocabulary)) == len(built.vocabulary) == 200
    assert tuple(built.vocabulary[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS
    by_name = {document.name: document for document in documents}
    for split in (built.train, built.validation):
        assert split.sentences[-1] == len(split.tokens)
        for m, name in enumerate(split.names):
            spelled = []
            for d in range(split.documents[m], split.documents[m + 1]):
                ranges = split.sentences[split.docstrings[d] : split.docstrings[d + 1] + 1]
                pieces = [built.vocabulary[split.tokens[a:b]] for a, b in pairwise(ranges)]
                spelled.append([" ".join(sentence).replace(" ##", "") for sentence in pieces])
            assert spelled == by_name[name].docstrings


def test_letters_outside_the_alphabet_are_unknown_and_case_and_accents_are_ignored():
    text = ["Naïve NAIVE naive", "a β c"]
    built = corpus.build([Document("x.py", [text * 20]), Document("y.py", [text])], 110)
    split = built.train if len(built.train.names) else built.validation
    first, second = (split.tokens[split.sentences[i] : split.sentences[i + 1]] for i in (0, 1))
    assert len({third.tobytes() for third in np.split(first, 3)}) == 1
    assert [built.vocabulary[token] for token in second] == ["a", "[UNK]", "c"]


def test_the_vocabulary_learns_from_training_documents_only():
    documents = invented_documents()
    changed = [
        Document(document.name, [["quixotic quixotic"] * 50]) if corpus.is_validation(document.name) else document
        for document in documents
    ]
    assert list(corpus.build(changed, 200).vocabulary) == list(corpus.build(documents, 200).vocabulary)


def test_a_vocabulary_larger_than_the_text_s_is_refused():
    with pytest.raises(ValueError, match=r"vocabulary_size=5000: the text gives \d+ word pieces"):
        corpus.build(invented_documents(), 5000)


def test_the_fingerprint_is_the_same_in_every_process_and_follows_the_data():
    documents = invented_documents()
    code = """
import json, sys
from workflow.bench.data import corpus
print(corpus.build([corpus.Document(*document) for document in json.load(sys.stdin)], 200).fingerprint)
"""
    given = {"input": json.dumps(documents), "cwd": ROOT, "check": True, "capture_output": True, "text": True}
    fingerprints = [
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, **given).stdout.strip()
        for seed in ("1", "2")
    ]
    built = corpus.build(documents, 200)
    assert fingerprints == [built.fingerprint] * 2

    other = [*documents[:-1], Document(documents[-1].name, [*documents[-1].docstrings, ["another"]])]
    renamed = dataclasses.replace(built, vocabulary=built.vocabulary[::-1])
    swapped = Corpus(built.vocabulary, built.validation, built.train)
    assert len({each.fingerprint for each in (built, corpus.build(other, 200), renamed, swapped)}) == 4


# The kept file


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """A list with one entry for each time that the text is read: invented documents, in an empty data folder."""
    read = []

    def documents() -> list[Document]:
        read.append(1)
        return invented_documents()

    monkeypatch.setattr(corpus, "read", documents)
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    return read


def test_a_corpus_is_kept_whole(reads, tmp_path):
    first, second = corpus.load(200), corpus.load(200)
    assert len(reads) == 1
    assert first.fingerprint == second.fingerprint
    assert corpus.load(210).fingerprint != first.fingerprint
    assert len(reads) == 2
    assert len(list((tmp_path / "data").iterdir())) == 2, "one file for each vocabulary, and no temporary one"


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda content: content[:-200], lambda _: b"", lambda _: b"PK no archive"])
def test_a_damaged_file_is_made_anew(reads, tmp_path, damage, caplog):
    first = corpus.load(200)
    (kept,) = (tmp_path / "data").iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert corpus.load(200).fingerprint == first.fingerprint
    assert len(reads) == 2
    assert str(kept) in caplog.text
    assert "made anew" in caplog.text
    corpus.load(200)
    assert len(reads) == 2, "the new file is intact"


def test_a_folder_that_cannot_be_written_costs_time_only(reads, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "file" / "data"))
    with caplog.at_level(logging.WARNING):
        first, second = corpus.load(200), corpus.load(200)
    assert len(reads) == 2
    assert first.fingerprint == second.fingerprint
    assert "cannot be kept, each run makes it anew: Not a directory" in caplog.text


# Pairs and masks

DISTINCT = 60_000  # word pieces, so that each token can state its place


@st.composite
def texts(draw) -> Split:
    """A split whose tokens are all different: documents of docstrings of sentences of 1 to 9 tokens."""
    docstring = st.lists(st.integers(1, 9), min_size=1, max_size=6)
    shape = draw(st.lists(st.lists(docstring, min_size=1, max_size=3), min_size=2, max_size=6))
    shape[0].append([2, 3])  # two documents of two sentences at least
    shape[-1].append([1, 4, 2])
    return split_of(shape)


class Recording(np.random.Generator):
    """A generator that records how many numbers its calls return."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.PCG64(seed))
        self.sizes: dict[str, list[int]] = {"random": [], "integers": []}

    def random(self, *args, **kwargs):
        drawn = super().random(*args, **kwargs)
        self.sizes["random"].append(np.size(drawn))
        return drawn

    def integers(self, *args, **kwargs):
        drawn = super().integers(*args, **kwargs)
        self.sizes["integers"].append(np.size(drawn))
        return drawn


@given(
    st.integers(0, 40),
    st.integers(1, 7),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.lists(st.sampled_from(["float32", "float64"]), max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_rows_are_drawn_as_in_the_whole_array_without_the_others(number, length, cut, types, seed):
    """Truth: whole arrays from NumPy, one after the other; an odd number of float32 leaves half a draw for later."""
    rows, shape = slice(*sorted(cut)), (number, length)
    ours, whole = Recording(seed), np.random.default_rng(seed)
    for name in types:
        expected = whole.random(shape, dtype=name)[rows]
        np.testing.assert_array_equal(uniform_rows(ours, shape, rows, np.dtype(name)), expected)
    # A bound close to 2^32 lets NumPy reject about half of the numbers, so that integers cannot be skipped.
    expected = whole.integers(0, 2**31 + 1, shape)[rows]
    np.testing.assert_array_equal(last_integer_rows(ours, 0, 2**31 + 1, shape, rows), expected)
    wanted = len(range(number)[rows]) * length
    assert sum(ours.sizes["random"]) <= len(types) * (wanted + 3)  # and at most three halves of a draw
    assert sum(ours.sizes["integers"]) <= len(range(number)[: rows.stop]) * length


def split_of(shape: list[list[list[int]]]) -> Split:
    per_sentence = [length for document in shape for text in document for length in text]
    first = len(SPECIAL_TOKENS)
    return Split(
        tokens=np.arange(first, first + sum(per_sentence), dtype=np.uint16),
        sentences=np.cumsum([0, *per_sentence], dtype=np.int32),
        docstrings=np.cumsum([0, *(len(text) for document in shape for text in document)], dtype=np.int32),
        documents=np.cumsum([0, *map(len, shape)], dtype=np.int32),
        names=np.array([f"{m}.py" for m in range(len(shape))]),
    )


@settings(max_examples=60)
@given(texts(), st.integers(5, 24), st.integers(0, 2**32 - 1))
def test_pairs_are_consecutive_or_of_two_documents(split, length, seed):
    """Truth: each token states its place, and so its sentence, docstring and document."""
    pairs = SentencePairs(split, DISTINCT, length)
    # The first tokens of all sentences but those that start a docstring.
    boundaries = np.setdiff1d(split.sentences[:-1], split.sentences[split.docstrings]).tolist()
    assert len(pairs) == len(boundaries)
    batch = {
        name: tensor.numpy() for name, tensor in pairs.batch(np.arange(len(pairs)), np.random.default_rng(seed)).items()
    }
    ends = split.sentences[split.docstrings]
    for row in range(len(pairs)):
        labels, inputs = batch["labels"][row], batch["input_ids"][row]
        text = np.where(labels != IGNORED, labels, inputs)
        first_sep, second_sep = np.flatnonzero(text == SEP)
        assert text[0] == CLS
        assert (text[second_sep + 1 :] == PAD).all()
        assert batch["attention_mask"][row].tolist() == [int(c <= second_sep) for c in range(length)]
        assert batch["token_type_ids"][row].tolist() == [int(first_sep < c <= second_sep) for c in range(length)]
        assert (inputs[[0, first_sep, second_sep]] == [CLS, SEP, SEP]).all(), "the marks are never masked"
        assert (labels[[0, first_sep, second_sep]] == IGNORED).all()

        first = text[1:first_sep] - len(SPECIAL_TOKENS)
        second = text[first_sep + 1 : second_sep] - len(SPECIAL_TOKENS)
        for segment in (first, second):
            assert len(segment) >= 1
            assert (np.diff(segment) == 1).all()
            assert len(set(np.searchsorted(ends, segment, side="right"))) == 1, "one docstring"
        assert first[-1] + 1 == boundaries[row], "each boundary once, in order"
        assert second[0] in boundaries
        docstring = np.searchsorted(ends, [first[0], second[0]], side="right") - 1
        document = np.searchsorted(split.documents, docstring, side="right") - 1
        is_next = second[0] == first[-1] + 1 and docstring[0] == docstring[1]
        assert batch["next_sentence_label"][row] == (NEXT if is_next else RANDOM)
        assert is_next or document[0] != document[1]

        before = first[-1] + 1 - ends[docstring[0]]
        after = ends[docstring[1] + 1] - second[0]
        assert len(first) + len(second) == min(length - 3, before + after), "the sequence is full"
        assert len(first) >= min(before, (length - 3) // 2)
        assert len(second) >= min(after, length - 3 - (length - 3) // 2)
        assert (labels != IGNORED).any()


def test_random_segments_are_drawn_evenly_from_other_documents():
    """Truth: the uniform distribution over the places outside the first document; 8,000 draws."""
    split = split_of([[[1] * 5], [[1] * 3, [1] * 2], [[1] * 4]])  # 4, 3 and 3 places
    pairs = SentencePairs(split, DISTINCT, 5)
    batch = pairs.batch(np.zeros(8000, dtype=np.int64), np.random.default_rng(0))
    is_random = batch["next_sentence_label"].numpy() == RANDOM
    assert is_random.mean() == pytest.approx(0.5, abs=0.03)
    text = np.where(batch["labels"] != IGNORED, batch["labels"], batch["input_ids"])
    places, counts = np.unique(text[is_random, 3] - len(SPECIAL_TOKENS), return_counts=True)
    assert places.tolist() == [6, 7, 9, 11, 12, 13]
    assert counts / is_random.sum() == pytest.approx(1 / 6, abs=0.03)


def test_one_document_makes_no_pairs():
    with pytest.raises(ValueError, match="needs two documents of several sentences"):
        SentencePairs(split_of([[[2, 3]], [[4]]]), DISTINCT, 8)


def test_masking_rates():
    """Truth: BERT's rates; 4,000 pairs of 29 tokens give bounds of at least five standard deviations."""
    split = split_of([[[8] * 30], [[8] * 30]])
    pairs = SentencePairs(split, DISTINCT, 32)
    batch = pairs.batch(np.resize(np.arange(4, 26), 4000), np.random.default_rng(0))
    labels, inputs = batch["labels"].numpy(), batch["input_ids"].numpy()
    predicted = labels != IGNORED
    share = predicted.sum() / (4000 * 29)
    # A pair in which nothing would be predicted (0.85^29 = 0.9 % of them) has one predicted token.
    assert share == pytest.approx(0.15 + 0.85**29 / 29, abs=0.006)
    masked = inputs[predicted] == MASK
    kept = inputs[predicted] == labels[predicted]
    assert masked.mean() == pytest.approx(0.8, abs=0.016)
    assert kept.mean() == pytest.approx(0.1, abs=0.012)
    pieces = inputs[predicted][~masked & ~kept]
    assert len(pieces) / predicted.sum() == pytest.approx(0.1, abs=0.012)
    assert pieces.min() >= len(SPECIAL_TOKENS)
    assert pieces.max() < DISTINCT
    assert np.median(pieces) == pytest.approx(DISTINCT / 2, rel=0.1)
    assert (inputs[~predicted] != MASK).all()
    per_position = predicted[:, 1:15].mean(axis=0)
    assert per_position == pytest.approx(0.15, abs=0.03), "every position is equally likely"
