"""Pre-training shards, from a folder of text to masked batches, checked against the text and BERT's recipe."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import text_files
from tests.support.text_files import PIECES
from workflow.bench import prepare, workloads
from workflow.bench.data import make_shards
from workflow.bench.data.corpus import is_validation
from workflow.bench.data.folder import DataNotFound
from workflow.bench.data.masked_pairs import IGNORED, NEXT, RANDOM
from workflow.bench.data.shards import MANIFEST, Manifest, Shards
from workflow.bench.workloads.bert_pretraining import BertPretraining

LENGTH = 32
PAD, CLS, SEP, MASK = (PIECES.index(piece) for piece in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
SIZE = {"layers": 1, "hidden_size": 16, "heads": 2, "vocabulary_size": len(PIECES), "sequence_length": LENGTH}


def write_text(folder: Path, documents: int = 60, *, sentences: int = 12) -> Path:
    """Write one file per document, with lines of two sentences, and return ``folder``."""
    rng = np.random.default_rng(0)
    for number in range(documents):
        lines = [f"{text_files.sentence(rng)} {text_files.sentence(rng, 4)}" for _ in range(sentences // 2)]
        path = folder / f"{number % 3}" / f"{number:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def arguments(text: Path, *more: str) -> list[str]:
    return [str(text), f"--sequence-length={LENGTH}", "--validation-one-in=6", "--processes=1", *more]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data folder with shards made in several parts."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("data")
        patch.setenv("MKOR_DATA", str(root))
        text_files.write_vocabulary(root)
        assert prepare.main(arguments(write_text(root / "text"), "--part-megabytes=0.006")) == 0
        yield root


def bert(**given) -> BertPretraining:
    workload = workloads.create(
        "bert_pretraining", **{**SIZE, "dataset": "text", "batch_size": 8, "validation_pairs": 20, **given}
    )
    assert isinstance(workload, BertPretraining)
    return workload


def test_shards_hold_whole_pairs_of_the_text(root):
    """Truth: the documents' word pieces, which contain both segments."""
    manifest = Manifest("bert-uncased", LENGTH)
    texts = {
        path: " ".join(path.read_text().lower().replace(".", " .").split()) for path in (root / "text").rglob("*.txt")
    }
    held_out = {path for path in texts if is_validation(str(path.relative_to(root / "text")), 6)}
    assert 0 < len(held_out) < len(texts) / 2
    for split in ("train", "validation"):
        split_texts = [text for path, text in texts.items() if (path in held_out) == (split == "validation")]
        shards = Shards(manifest, split)
        tokens, pairs = shards.rows(np.arange(len(shards)))
        for row, (second, length, is_random) in zip(tokens, pairs, strict=True):
            assert (row[0], row[second - 1], row[length - 1]) == (CLS, SEP, SEP)
            assert (row[length:] == PAD).all()
            segments = [
                " ".join(PIECES[token] for token in part) for part in (row[1 : second - 1], row[second : length - 1])
            ]
            assert all(any(segment in text for text in split_texts) for segment in segments)
            if not is_random:
                assert any(segments[0] in text and segments[1] in text for text in split_texts)
        assert 0.3 < pairs[:, 2].mean() < 0.75
        assert np.median(pairs[:, 1]) > LENGTH - 3, "most sequences are full"
    assert len(manifest.content["shards"]["train"]) > 2


def test_shards_do_not_depend_on_the_number_of_processes(root, monkeypatch, tmp_path):
    before = json.loads((root / "pretraining" / f"bert-uncased-{LENGTH}" / MANIFEST).read_text())
    monkeypatch.setenv("MKOR_DATA", str(tmp_path))
    text_files.write_vocabulary(tmp_path)
    assert prepare.main([*arguments(root / "text", "--part-megabytes=0.006"), "--processes=2"]) == 0
    after = json.loads((tmp_path / "pretraining" / f"bert-uncased-{LENGTH}" / MANIFEST).read_text())
    assert after == before


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(8, 48),
    st.integers(0, 5),
)
def test_pairs_of_any_documents_fit_and_are_running_text(lengths, length, seed):
    """Truth: each token states its document and its place, as 1000 * document + place."""
    documents = []
    for number, sizes in enumerate(lengths):
        ends = np.cumsum([0, *sizes])
        documents.append([list(range(1000 * number + a, 1000 * number + b)) for a, b in pairwise(ends.tolist())])
    for first, second, is_random in make_shards.pairs(documents, length, np.random.default_rng(seed)):
        assert first
        assert second
        assert len(first) + len(second) <= length - 3
        for part in (first, second):
            assert part == list(range(part[0], part[-1] + 1)), "a segment is running text"
        assert (first[0] // 1000 == second[0] // 1000) != is_random
        if not is_random:
            assert second[0] > first[-1]


def test_blank_lines_separate_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\nOne.\nTwo.\n\n \nThree.\n")
    documents = list(make_shards.read(tmp_path, "blank-lines"))
    assert documents == [make_shards.NamedText("a.txt:0", "One.\nTwo.\n"), make_shards.NamedText("a.txt:1", "Three.\n")]
    assert list(make_shards.read(tmp_path, "files")) == [make_shards.NamedText("a.txt", "\nOne.\nTwo.\n\n \nThree.\n")]


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        (None, [], "no *.txt file in it"),
        (b"\xff\xfe", [], "not UTF-8 text: invalid start byte at byte 0"),
        (b"One word.", [], "no pair of segments for the train split"),
        (b"Text.", ["--sequence-length=4"], "--sequence-length = 4: must be from 8 to 4096"),
        (b"Text.", ["--vocabulary=bert-cased"], "bert-cased's vocabulary not found at"),
    ],
)
def test_text_that_cannot_be_prepared_is_refused_in_one_line(tmp_path, monkeypatch, capsys, content, given, message):
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    text_files.write_vocabulary(tmp_path / "data", "bert-uncased")
    (tmp_path / "text").mkdir()
    if content is not None:
        (tmp_path / "text" / "a.txt").write_bytes(content)
    assert prepare.main([*arguments(tmp_path / "text"), *given]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_batches_of_shards_follow_bert_s_recipe(root):
    """Truth: 15 % of each text is predicted, rounded, at most 5 in 32 tokens; 80 % of these masked, 10 % replaced."""
    workload = bert(batch_size=16)
    masked = replaced = predicted = 0
    for batch in islice(workload.batches(seed=1), 2 * workload.steps_per_epoch):
        labels, inputs = batch["labels"], batch["input_ids"]
        is_text = (batch["attention_mask"] > 0) & (torch.where(labels == IGNORED, inputs, labels) != CLS)
        is_text &= torch.where(labels == IGNORED, inputs, labels) != SEP
        number = (labels != IGNORED).sum(1)
        truth = (0.15 * is_text.sum(1)).round().clamp(1, 5 * LENGTH // 32)
        assert torch.equal(number, truth.long())
        assert not ((labels != IGNORED) & ~is_text).any()
        masked += int(((labels != IGNORED) & (inputs == MASK)).sum())
        replaced += int(((labels != IGNORED) & (inputs != MASK) & (inputs != labels)).sum())
        predicted += int(number.sum())
        assert set(batch["next_sentence_label"].tolist()) <= {NEXT, RANDOM}
        assert torch.equal(batch["token_type_ids"].argmax(1), (inputs == SEP).long().argmax(1) + 1)
    assert predicted > 300
    assert masked / predicted == pytest.approx(0.8, abs=0.06)
    assert replaced / predicted == pytest.approx(0.1, abs=0.05)


def test_a_batch_of_shards_is_a_function_of_seed_and_position(root):
    workload = bert()
    ahead = list(islice(workload.batches(seed=5), workload.steps_per_epoch + 2))
    again = next(workload.batches(seed=5, start=workload.steps_per_epoch + 1))
    assert all(torch.equal(ahead[-1][name], again[name]) for name in again)
    part = next(workload.sliced_batches(5, workload.steps_per_epoch + 1, slice(1, 3)))
    assert all(torch.equal(part[name], again[name][1:3]) for name in again)


def test_a_second_phase_with_longer_sequences_starts_from_a_first_one(root):
    """Truth: the metrics of the first phase's weights."""
    workload = bert()
    first, second = workload.model(0), workload.model(1)
    assert first.config.max_position_embeddings == 512
    assert workload.evaluate(first)["mlm_loss"] == pytest.approx(np.log(len(PIECES)), abs=0.3)
    workload.load_initial_weights(second, first.state_dict())
    assert workload.evaluate(second) == workload.evaluate(first)


def test_missing_and_damaged_shards_are_named_with_the_command(root, tmp_path, monkeypatch):
    with pytest.raises(DataNotFound, match=r"prepare FOLDER_OF_TEXT --vocabulary bert-uncased --sequence-length 64"):
        bert(sequence_length=64)
    with pytest.raises(ValueError, match=f"vocabulary_size=300: .* has {len(PIECES)} word pieces"):
        bert(vocabulary_size=300)
    monkeypatch.setenv("MKOR_DATA", str(tmp_path))
    folder = tmp_path / "pretraining" / f"bert-uncased-{LENGTH}"
    source = root / "pretraining" / f"bert-uncased-{LENGTH}"
    folder.mkdir(parents=True)
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    cut = folder / "train-00000.tokens.npy"
    cut.write_bytes(cut.read_bytes()[:200])
    with pytest.raises(DataNotFound, match=r"train-00000\.tokens\.npy"):
        bert()
    (folder / MANIFEST).write_text("{")
    with pytest.raises(DataNotFound, match="its manifest is damaged"):
        bert()


def test_an_unfinished_folder_has_no_manifest(root, tmp_path, monkeypatch):
    monkeypatch.setenv("MKOR_DATA", str(tmp_path))
    text_files.write_vocabulary(tmp_path)
    text = write_text(tmp_path / "text", 20)
    assert prepare.main(arguments(text)) == 0
    monkeypatch.setattr(make_shards, "make_part", None)  # so that the pool fails
    with pytest.raises(TypeError):
        prepare.main(arguments(text))
    with pytest.raises(DataNotFound):
        Manifest("bert-uncased", LENGTH)
