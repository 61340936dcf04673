"""Fine-tuning data, from files in the official formats to metrics, checked against the files' texts and by counting."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn import metrics as sklearn_metrics
from torch import nn
from torch.testing import assert_close

from tests.support import text_files
from tests.support.shared import docstring_corpus
from tests.support.text_files import PIECES
from workflow.bench import workloads
from workflow.bench.data import corpus, docstring_tasks, features, glue, imdb, squad
from workflow.bench.data.arrays import fingerprint
from workflow.bench.data.features import Features, Vocabulary
from workflow.bench.data.folder import DataNotFound
from workflow.bench.workloads import bert
from workflow.bench.workloads.bert_classification import TASKS, BertClassification
from workflow.bench.workloads.bert_span import BertSpan, best_spans
from workflow.bench.workloads.fine_tuning import training_sample

SIZE: dict[str, Any] = {"layers": 1, "hidden_size": 16, "heads": 2, "batch_size": 4}
REAL = {**SIZE, "vocabulary_size": len(PIECES)}


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """An empty data folder with the two vocabularies."""
    monkeypatch.setenv("MKOR_DATA", str(tmp_path))
    text_files.write_vocabulary(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The corpus of the real docstrings, in a new data folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        shutil.copy(docstring_corpus(tmp_path_factory), folder)
        patch.setenv("MKOR_DATA", str(folder))
        yield corpus.load(1000)


def uncased() -> Vocabulary:
    return Vocabulary(cased=False, size=len(PIECES))


def spelled(features: Features, row: int) -> list[str]:
    """Return the word pieces of an example without its padding."""
    return [PIECES[token] for token in features.tokens[row, : features.lengths[row]]]


# The files


def question(answer: str) -> str:
    """Return SQuAD's file of one question."""
    asked = {"id": "7", "question": "?", "answers": [{"text": answer, "answer_start": 0}]}
    return json.dumps({"data": [{"paragraphs": [{"context": "abc", "qas": [asked]}]}]})


READERS: dict[str, Callable[[], object]] = {
    "glue/RTE/train.tsv": lambda: glue.load("rte", uncased(), 16),
    "aclImdb/test/pos": lambda: imdb.load(uncased(), 16),
    "squad/train-v1.1.json": lambda: squad.load(uncased(), 128),
    "bert-cased/vocab.txt": lambda: Vocabulary(cased=True),
}


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("glue/RTE/train.tsv", None, r"train\.tsv; download the task .* unpack it as glue/RTE"),
        ("glue/RTE/train.tsv", lambda _: "index\tsentence1\tlabel\n", "line 1: no column 'sentence2'"),
        ("glue/RTE/train.tsv", lambda text: text + "9\tonly two\n", "line 26: 2 columns"),
        ("glue/RTE/train.tsv", lambda text: text + "9\ta\tb\tmaybe\n", "line 26: the label 'maybe'"),
        ("glue/RTE/train.tsv", lambda text: text.split("\n")[0], "it has no example"),
        ("aclImdb/test/pos", None, r"IMDB not found at .*test/pos; unpack the official aclImdb_v1"),
        ("aclImdb/test/pos", "empty", "it has no review"),
        ("squad/train-v1.1.json", None, r"SQuAD v1\.1 not found at .*train-v1\.1\.json; put the official file"),
        ("squad/train-v1.1.json", lambda _: "{", "JSONDecodeError"),
        ("squad/train-v1.1.json", lambda _: '{"version": "1.1"}', "KeyError: 'data'"),
        ("squad/train-v1.1.json", lambda _: '{"data": []}', "no question"),
        ("squad/train-v1.1.json", lambda _: question("b"), "question 7: its answer is not at answer_start"),
        ("bert-cased/vocab.txt", None, r"bert-cased's vocabulary not found at .*vocab\.txt; put the vocab\.txt of"),
        ("bert-cased/vocab.txt", lambda _: "a\nb\n", r"\[PAD\] is not in the file"),
    ],
)
def test_files_that_are_missing_or_have_another_layout_are_named_with_the_remedy(root, name, change, reason):
    text_files.write_glue(root, "rte")
    text_files.write_imdb(root)
    text_files.write_squad(root)
    place = root / name
    if callable(change):
        place.write_text(change(place.read_text()))
    elif place.is_dir():
        shutil.rmtree(place)
        if change == "empty":
            place.mkdir()
    else:
        place.unlink()
    with pytest.raises(DataNotFound, match=reason):
        READERS[name]()


def test_a_vocabulary_of_another_size_is_refused(root):
    with pytest.raises(ValueError, match=f"vocabulary_size=30522: .* has {len(PIECES)} word pieces"):
        Vocabulary(cased=False, size=30522)


def test_only_the_cased_vocabulary_keeps_capitals(root):
    labels = np.zeros(1, dtype=np.int64)
    uncased_text, cased_text = (
        features.encode(["The Film"], None, labels, Vocabulary(cased=cased, size=len(PIECES)), 8)
        for cased in (False, True)
    )
    assert spelled(uncased_text, 0) == ["[CLS]", "the", "film", "[SEP]"]
    assert spelled(cased_text, 0) == ["[CLS]", "The", "Film", "[SEP]"]


# Features


def test_inputs_mark_the_text_and_the_second_segment():
    packed = features.pack([([7, 8], [9]), ([7], None)], np.array([0, 1]), 10)
    inputs = packed.inputs()
    assert inputs["input_ids"].tolist() == [[2, 7, 8, 3, 9, 3], [2, 7, 3, 0, 0, 0]]
    assert inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    assert inputs["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert {array.dtype for array in inputs.values()} == {np.dtype(np.int64)}


def test_a_pair_that_is_too_long_loses_the_end_of_its_longer_text(root):
    first, second = "a the a the a the", "film was"
    encoded = features.encode([first], [second], np.zeros(1, dtype=np.int64), uncased(), 8)
    assert spelled(encoded, 0) == ["[CLS]", "a", "the", "a", "[SEP]", "film", "was", "[SEP]"]
    assert encoded.second.tolist() == [5]


def test_prepared_features_are_kept_until_a_file_changes(root, monkeypatch):
    text_files.write_glue(root, "rte")
    first = glue.load("rte", uncased(), 16)
    with monkeypatch.context() as patch:
        patch.setattr(features, "encode", lambda *_: pytest.fail("the texts were tokenized again"))
        assert fingerprint(glue.load("rte", uncased(), 16)) == fingerprint(first)
    text_files.write_glue(root, "rte", train=30)
    assert len(glue.load("rte", uncased(), 16).train) == 30


# GLUE


@pytest.mark.parametrize("task", list(glue.TASKS))
def test_glue_is_read_as_its_official_files_lay_it_out(root, task):
    written = text_files.write_glue(root, task)
    examples = glue.load(task, uncased(), 32)
    train = examples.train
    assert (len(train), len(examples.validation)) == (24, 12)
    values = text_files.GLUE[task][4]
    for row, (texts, label) in enumerate(written):
        words = [text.lower().replace(".", " .").split() for text in texts]
        truth = ["[CLS]", *(piece for each in words for piece in [*each, "[SEP]"])]
        assert spelled(train, row) == truth
        expected = float(label) if task == "stsb" else values.index(label)
        assert train.labels[row] == pytest.approx(expected)


def test_the_task_tables_agree():
    assert set(TASKS) == {*glue.TASKS, "imdb", "package", "library", "copy", "similarity"}
    assert set(workloads.parameters("bert_classification")["properties"]["dataset"]["enum"]) == set(TASKS)


def test_qqp_s_incomplete_rows_are_left_out(root):
    text_files.write_glue(root, "qqp")
    file = root / "glue" / "QQP" / "train.tsv"
    file.write_text(file.read_text() + "7\t8\t9\twho wrote it\n")
    assert len(glue.load("qqp", uncased(), 16).train) == 24


# IMDB


def test_imdb_is_read_from_its_official_folders(root):
    text_files.write_imdb(root)
    examples = imdb.load(uncased(), 16)
    train = examples.train
    assert train.labels.tolist() == examples.validation.labels.tolist() == [0] * 8 + [1] * 8
    assert spelled(train, 0)[:6] == ["[CLS]", "the", "film", "was", "bad", "."]
    assert spelled(train, 8)[4] == "good"
    assert "[UNK]" not in spelled(train, 0), "markup of a line break is removed"


# SQuAD


@pytest.mark.parametrize(("filler", "windows"), [(20, 1), (150, 2)])
def test_squad_answers_lie_where_the_labels_say(root, filler, windows):
    """Truth: the answer's text in every window that contains all of it, [CLS] in every other window."""
    text_files.write_squad(root, filler=filler)
    questions = squad.load(uncased(), 128)
    contexts, correct = questions.contexts_and_answers()
    assert len(questions.train) == 6 * windows
    assert questions.question.tolist() == [number for number in range(4) for _ in range(windows)]
    answers = 0
    for split in (questions.train, questions.validation):
        for row, (first, last) in enumerate(split.labels):
            pieces = spelled(split, row)
            question = pieces[: pieces.index("[SEP]")]
            assert question == ["[CLS]", "who", "wrote", "it", "?"]
            is_inside = "paris" in pieces[int(split.second[row]) :] and ")" in pieces
            assert ((first, last) != (0, 0)) == is_inside
            answers += is_inside
            if is_inside:
                assert pieces[first : last + 1] in (["anna"], ["bob"])
    assert answers >= len(correct) + 6
    for row in range(len(questions.validation)):
        context = contexts[questions.question[row]]
        columns = np.flatnonzero(questions.offsets[row][:, 1] > 0)
        texts = [context[first:end].lower() for first, end in questions.offsets[row][columns]]
        assert texts == [PIECES[token] for token in questions.validation.tokens[row, columns]]


def test_windows_cover_a_long_context(root):
    text_files.write_squad(root, filler=300)
    questions = squad.load(uncased(), 128)
    for number, context in enumerate(questions.contexts_and_answers()[0]):
        covered = np.zeros(len(context), dtype=bool)
        for row in np.flatnonzero(questions.question == number):
            for first, end in questions.offsets[row]:
                covered[first:end] = True
        assert covered[np.array([not letter.isspace() for letter in context])].all()


def test_the_best_span_is_found():
    """Truth: an exhaustive search."""
    torch.manual_seed(0)
    starts, ends = torch.randn(2, 20, 9)
    allowed = torch.rand(20, 9) > 0.3
    allowed[:, 4] = True
    found = best_spans(starts, ends, allowed, longest=3)
    for row, (score, first, last) in enumerate(zip(*found, strict=True)):
        spans = [
            (starts[row, i].item() + ends[row, j].item(), i, j)
            for i in range(9)
            for j in range(i, min(i + 3, 9))
            if allowed[row, i] and allowed[row, j]
        ]
        best = max(spans)
        assert (first, last) == best[1:]
        assert score == pytest.approx(best[0], rel=1e-6)


class Oracle(nn.Module):
    """A model that predicts given columns."""

    def __init__(self, workload: BertSpan, spans: np.ndarray) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._rows = {row.tobytes(): span for row, span in zip(workload._validation.tokens, spans, strict=True)}

    def forward(self, input_ids, token_type_ids, attention_mask=None):
        length = input_ids.shape[1]
        padded = np.zeros((len(input_ids), 128), dtype=np.uint16)
        padded[:, :length] = input_ids.numpy()
        spans = torch.tensor(np.array([self._rows[row.tobytes()] for row in padded]))
        output = nn.functional.one_hot(spans, length).float() * 9
        return type("Output", (), {"start_logits": output[:, 0], "end_logits": output[:, 1]})


def test_squad_s_metrics_are_the_official_ones(root):
    """Truth: SQuAD's definitions by hand; two of four answers are correct, two have four extra tokens."""
    text_files.write_squad(root, filler=20)
    workload = workloads.create("bert_span", **REAL, dataset="squad", sequence_length=128, validation_questions=None)
    assert isinstance(workload, BertSpan)
    correct = workload._validation.labels.copy()
    assert workload.evaluate(Oracle(workload, correct)) == pytest.approx(
        {"loss": 0.0, "exact_match": 1.0, "f1": 1.0, "score": 1.0}, abs=0.05
    )
    too_long = correct.copy()
    too_long[:2, 0] -= 4  # "paris, by (anna"; the nearest correct answer is "by (anna)"
    metrics = workload.evaluate(Oracle(workload, too_long))
    assert metrics["exact_match"] == pytest.approx(0.5)
    assert metrics["f1"] == pytest.approx((2 * 0.8 + 2) / 4)  # precision 2 / 3, recall 2 / 2


def test_a_sequence_without_room_for_squad_is_refused(root):
    with pytest.raises(ValueError, match="sequence_length=64 must be at least 128 for SQuAD"):
        workloads.create("bert_span", **REAL, dataset="squad", sequence_length=64)


# Metrics of classes and scores


class Arbitrary(nn.Module):
    """A model whose outputs are arbitrary functions of the tokens, and 0 for padding, whose token is 0."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, outputs + 1), requires_grad=False)

    def forward(self, input_ids, token_type_ids, attention_mask=None):
        waves = torch.sin(input_ids[:, :, None] * self.weight)
        return type("Output", (), {"logits": waves.sum(1)})


@pytest.mark.parametrize("task", ["mnli", "qqp", "cola", "stsb"])
def test_each_task_has_its_own_metric(root, task):
    """Truth: scikit-learn's metrics, and SciPy's, on the model's outputs."""
    from scipy import stats

    text_files.write_glue(root, task, development=60)
    workload = workloads.create("bert_classification", **REAL, dataset=task, sequence_length=32)
    assert isinstance(workload, BertClassification)
    model = Arbitrary(TASKS[task].classes or 1)
    metrics = workload.evaluate(model)
    validation = workload._validation
    outputs = model(**{name: torch.from_numpy(array) for name, array in validation.inputs().items()}).logits.numpy()
    labels = validation.labels
    if task == "stsb":
        assert metrics["pearson"] == pytest.approx(stats.pearsonr(outputs[:, 0], labels).statistic, abs=1e-4)
        assert metrics["spearman"] == pytest.approx(stats.spearmanr(outputs[:, 0], labels).statistic, abs=1e-4)
        assert metrics["loss"] == pytest.approx(np.mean((outputs[:, 0] - (labels - 2.5) / 2.5) ** 2), rel=1e-4)
        assert metrics["score"] == metrics["pearson"]
        return
    predicted = outputs.argmax(1)
    assert len(set(predicted.tolist())) > 1
    assert metrics["accuracy"] == pytest.approx(np.mean(predicted == labels))
    if task != "mnli":
        assert metrics["f1"] == pytest.approx(sklearn_metrics.f1_score(labels, predicted), abs=1e-6)
        assert metrics["matthews"] == pytest.approx(sklearn_metrics.matthews_corrcoef(labels, predicted), abs=1e-6)
    assert metrics["score"] == metrics[{"mnli": "accuracy", "qqp": "f1", "cola": "matthews"}[task]]


# Training accuracy


@pytest.mark.parametrize(("name", "dataset"), [("bert_classification", "library"), ("bert_span", "quotes")])
def test_training_accuracy_counts_right_answers_of_a_fixed_sample(text, name, dataset):
    """Truth: counting, example by example, with a model that was trained a little."""
    given = {**SIZE, "batch_size": 64, "dataset": dataset}
    workload = workloads.create(name, **given)
    model = workload.model(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for batch in islice(workload.batches(0), 12):
        workload.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    sample = training_sample(workload.train_examples, workload.validation_examples)
    correct = 0
    for row in sample:
        example = workload._train[np.array([row])]
        output = model(**{key: torch.from_numpy(array) for key, array in example.inputs().items()})
        if name == "bert_span":
            span = [output.start_logits.argmax().item(), output.end_logits.argmax().item()]
            correct += span == example.labels[0].tolist()
        else:
            correct += output.logits.argmax().item() == example.labels[0]
    assert 0 < correct < len(sample)
    assert workload.evaluate_training(model) == {"accuracy": correct / len(sample)}
    assert workload.evaluate_training(model) == workloads.create(name, **given).evaluate_training(model)


def test_the_training_sample_is_small_fixed_and_mixed():
    sample = training_sample(25_000, 25_000)
    assert len(sample) == len(set(sample.tolist())) == 25_000 // 8
    assert np.array_equal(sample, training_sample(25_000, 25_000))
    # Files hold one class after the other; both halves must be represented about equally.
    assert 0.45 < np.mean(sample < 12_500) < 0.55
    assert len(training_sample(8192, 512)) == 64
    assert training_sample(10, 512).tolist() == list(range(10))


# Initial weights


def test_fine_tuning_starts_from_a_pre_trained_encoder(text):
    size = {"layers": 1, "hidden_size": 16, "heads": 2}
    before = workloads.create("bert_pretraining", **size, batch_size=4, validation_pairs=4).model(1)
    for name, dataset in (("bert_span", "quotes"), ("bert_classification", "copy")):
        workload = workloads.create(name, **size, batch_size=4, dataset=dataset)
        model = workload.model(2)
        head = {key: value.clone() for key, value in model.state_dict().items() if not key.startswith("bert.")}
        workload.load_initial_weights(model, before.state_dict())
        for key, value in model.state_dict().items():
            assert_close(value, head[key] if key in head else before.state_dict()[key], rtol=0, atol=0)
        assert head


def test_models_start_from_the_published_encoder(root):
    """Truth: the weights of the file, in the layout of published models."""
    from transformers import BertConfig, BertForPreTraining

    parameters = {**REAL, "sequence_length": 16, "dropout": 0.0, "initializer_range": 0.02}
    given = {**REAL, "dataset": "sst2", "sequence_length": 16, "cased": True, "pretrained": "bert-base-cased"}
    text_files.write_glue(root, "sst2")
    with pytest.raises(
        DataNotFound, match=r"the weights of bert-base-cased not found at .*; put config\.json and model"
    ):
        workloads.create("bert_classification", **given)
    config: BertConfig = bert.encoder_config(parameters, positions=bert.POSITIONS)
    torch.manual_seed(5)
    published = BertForPreTraining(config)
    config.save_pretrained(root / "bert-base-cased")
    weights = {key: value.clone() for key, value in published.state_dict().items() if "decoder" not in key}
    save_file(weights, root / "bert-base-cased" / "model.safetensors", {"format": "pt"})
    model = workloads.create("bert_classification", **given).model(0)
    for key, value in model.bert.state_dict().items():
        assert_close(value, published.bert.state_dict()[key], rtol=0, atol=0)


# The stand-ins


@pytest.mark.parametrize(
    ("name", "classes"), [("package", 8), ("library", 2), ("copy", 2), ("similarity", 0), ("questions", 0)]
)
def test_stand_ins_are_fixed_and_balanced_and_their_splits_share_no_text(text, name, classes):
    examples = getattr(docstring_tasks, name)(1000, 32)
    again = getattr(docstring_tasks, name)(1000, 32)
    assert fingerprint(examples) == fingerprint(again)
    assert len(examples.train) > 3000
    assert len(examples.validation) > 300
    if classes:
        assert len(set(np.bincount(examples.validation.labels, minlength=classes))) == 1
    same = {row.tobytes() for row in examples.train.tokens} & {row.tobytes() for row in examples.validation.tokens}
    # A short passage of a docstring may occur in two files; sentences are used once.
    assert len(same) <= (0.02 * len(examples.validation) if name in ("package", "library") else 0)


def sentences_of(text: Any, made: Features) -> Iterator[tuple[int, list[Any], list[Any]]]:
    """Yield each row that is not cut off, and the words of both its sentences."""
    starts = np.array([not piece.startswith("##") for piece in text.vocabulary])
    for row in np.flatnonzero(made.lengths < 32):
        tokens = made.tokens[row, : made.lengths[row]].tolist()
        second = int(made.second[row])
        first, after = tokens[1 : second - 1], tokens[second:-1]
        yield row, docstring_tasks._words(first, starts), docstring_tasks._words(after, starts)


def test_copies_and_other_sentences_have_one_word_fewer(text):
    made = docstring_tasks.copy(1000, 32).validation
    for row, first, second in sentences_of(text, made):
        assert len(second) == len(first) - 1
        assert any(first[:n] + first[n + 1 :] == second for n in range(len(first))) or not made.labels[row]


def test_similarity_is_the_share_of_words_in_place(text):
    made = docstring_tasks.similarity(1000, 32).validation
    rows = list(sentences_of(text, made))
    assert len(rows) > 300
    for row, first, second in rows:
        same = sum(one == two for one, two in zip(first, second, strict=True))
        assert made.labels[row] == pytest.approx(5 * same / len(first))
    assert (made.labels.min(), made.labels.max()) == (0, 5)


def test_answers_are_between_the_marks_of_the_question(text):
    questions = docstring_tasks.questions(1000, 32)
    pieces = text.vocabulary.tolist()
    closing = {"(": ")", "[": "]", '"': '"', "'": "'"}
    openings = set()
    for split in (questions.train, questions.validation):
        for row, (first, last) in enumerate(split.labels):
            tokens = [pieces[token] for token in split.tokens[row]]
            opening = tokens[1]
            openings.add(opening)
            assert (tokens[first - 1], tokens[last + 1]) == (opening, closing[opening])
            assert not {opening, closing[opening]} & set(tokens[first : last + 1])
    assert openings == set(closing)
    contexts, answers = questions.contexts_and_answers()
    for row, (first, last) in enumerate(questions.validation.labels):
        offsets = questions.offsets[row]
        assert answers[row] == [contexts[row][offsets[first, 0] : offsets[last, 1]]]


def test_models_have_their_published_sizes():
    """Truth: the paper's 335.1 M (the encoder of BERT-Large-Uncased) and 108.9 M (BERT-Base-Cased with its heads)."""
    shared = {"dataset": "text", "sequence_length": 512, "initializer_range": 0.02, "dropout": 0.1}
    large = {**shared, "layers": 24, "hidden_size": 1024, "heads": 16, "vocabulary_size": 30522}
    base = {**shared, "layers": 12, "hidden_size": 768, "heads": 12, "vocabulary_size": 28996}
    with torch.device("meta"):
        models = [workloads.architecture("bert_pretraining", **given) for given in (large, base)]
    assert sum(p.numel() for p in models[0].bert.parameters()) == pytest.approx(335.1e6, abs=0.05e6)
    assert sum(p.numel() for p in models[1].parameters()) == pytest.approx(108.9e6, abs=0.05e6)
