"""The contract of every workload, their schemas, and the data and training of the autoencoder and of BERT."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import math
import random
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from itertools import islice, pairwise
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.support import image_files
from tests.support.shared import docstring_corpus
from workflow.bench import data, workloads
from workflow.bench.data import batches, corpus, digits
from workflow.bench.probes._counting import Counting
from workflow.bench.support import config
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.workloads import base
from workflow.bench.workloads.base import Workload
from workflow.bench.workloads.bert import inputs_of
from workflow.bench.workloads.bert_pretraining import BertPretraining
from workflow.bench.workloads.next_token import NextToken

BERT = {"batch_size": 16, "layers": 1, "hidden_size": 32, "dropout": 0.1}
TEXT = {"sequence_length": 24, "validation_windows": 300}
SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"batch_size": 100},
    "autoencoder": {"batch_size": 100},
    "bert_pretraining": {**BERT, "sequence_length": 24, "validation_pairs": 300},
    **dict.fromkeys(("bert_classification", "bert_span", "bert_krona"), BERT),
    "kronecker_rnn": TEXT,
    "language_model": {**TEXT, "layers": 1, "hidden_size": 32},
    "resnet20": {"batch_size": 100, "label_smoothing": 0.1},
    "resnet50": {"dataset": "cifar10", "image_size": 32, "batch_size": 8},
}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A new data folder with a small CIFAR-10, and the docstrings that this run of the tests has read and kept."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        shutil.copy(docstring_corpus(tmp_path_factory), folder)
        patch.setenv("MKOR_DATA", str(folder))
        image_files.write_cifar(folder, "cifar10", patch)
        yield folder


@pytest.fixture(scope="module")
def made(data_folder):
    """Small workloads, made once."""
    return {name: workloads.create(name, **SMALL[name]) for name in workloads.NAMES}


@pytest.fixture
def bert(made) -> BertPretraining:
    return made["bert_pretraining"]


def bert_with(**given: Any) -> BertPretraining:
    workload = workloads.create("bert_pretraining", **SMALL["bert_pretraining"] | given)
    assert isinstance(workload, BertPretraining)
    return workload


@pytest.fixture(params=workloads.NAMES)
def workload(request, made) -> Workload:
    return made[request.param]


def equal(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def generator_states():
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002  (NumPy's own)


# The parameters


def test_each_module_with_a_workload_has_a_schema():
    """Truth: the public subclasses of `Workload`, found by importing every module of the folder."""
    classes = {}
    for file in (ROOT / "workflow/bench/workloads").glob("[!_]*.py"):
        module = import_module(f"workflow.bench.workloads.{file.stem}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Workload) and kind.__module__ == module.__name__ and not inspect.isabstract(kind):
                classes[file.stem] = kind
    assert sorted(classes) == list(workloads.NAMES)
    assert {name: workloads._class(name) for name in workloads.NAMES} == classes


def test_every_data_set_of_a_schema_has_a_module_that_reads_it():
    """Truth: the modules themselves, imported."""
    schemas = [workloads.parameters(name)["properties"]["dataset"]["enum"] for name in workloads.NAMES]
    assert {dataset for names in schemas for dataset in names} == set(data.DATASETS)
    assert all(import_module(data.module_of(dataset)) and data.version_of(dataset) for dataset in data.DATASETS)
    with pytest.raises(ValueError, match="dataset='mnist' must be one of cifar10, cifar100, cola"):
        data.module_of("mnist")


def test_each_library_that_imports_torchvision_is_imported_in_one_module():
    """Any other import would fail beside a CPU-only torch, unless the operators happen to be declared already."""
    importers = defaultdict(set)
    for file in (ROOT / "workflow").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                importers[name.split(".")[0]].add(file.name)
    assert importers["torchvision"] == {"vision.py"}
    assert importers["transformers"] == {"bert.py"}
    assert importers["torchmetrics"] == {"fine_tuning.py"}


@pytest.mark.parametrize("name", workloads.NAMES)
def test_defaults_satisfy_their_own_schema(name):
    resolved = workloads.resolve(name)
    config.check(resolved, workloads.parameters(name), "defaults")
    assert workloads.resolve(name, **resolved) == resolved
    assert workloads.resolve(name, batch_size=7) == resolved | {"batch_size": 7}
    assert all(about["description"] for about in workloads.parameters(name)["properties"].values())


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("autoencodr", {}, "workload 'autoencodr': did you mean 'autoencoder'?"),
        ("autoencoder", {"batchsize": 2}, "batchsize = 2: unknown key; did you mean 'batch_size'?"),
        ("autoencoder", {"batch_size": 0}, "batch_size = 0: must be at least 1: images per step"),
        ("autoencoder", {"batch_size": "many"}, 'batch_size = "many": must be an integer: images per step'),
        (
            "autoencoder",
            {"dataset": "mnist"},
            'dataset = "mnist": must be one of the known values; known: cifar100, digits',
        ),
        ("bert_pretraining", {"dropout": 1}, "dropout = 1: must be less than 1"),
        ("bert_pretraining", {"hidden_size": 65}, "hidden_size=65 must be a multiple of heads=2."),
    ],
)
def test_wrong_names_and_values_are_refused_in_one_line(name, given, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        workloads.create(name, **given)
    assert "\n" not in str(error.value)


def test_a_batch_larger_than_the_data_is_refused(made):
    refused = "batch_size=1438 must be at most the number of training examples, 1437"
    with pytest.raises(ConfigError, match=f"^workload autoencoder: {refused}"):
        workloads.create("autoencoder", batch_size=1438)
    with pytest.raises(ValueError, match=refused):
        next(batches.shuffled_indices(0, 0, 1437, 1438))


def test_the_sizes_that_the_plan_knows_are_those_of_the_data(made):
    """Truth: the data itself; CIFAR's sizes are published."""
    assert workloads.known_train_examples("autoencoder") == made["autoencoder"].train_examples
    assert workloads.known_train_examples("resnet20", dataset="cifar10") == 50000
    assert workloads.known_train_examples("bert_pretraining") is None


def test_planning_imports_neither_torch_nor_the_data():
    code = """
import json, sys
from workflow.bench import workloads
from workflow.bench.data import corpus, digits
versions = {name: workloads.data_version(name) for name in workloads.NAMES}
known = ("torch", "torchvision", "transformers", "tokenizers", "sklearn", "scipy")
heavy = [name for name in known if name in sys.modules]
print(json.dumps([versions, heavy]))
"""
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    versions, heavy = json.loads(printed.stdout)
    assert heavy == []
    sklearn, scipy, tokenizers = (f"{name} {version(name)}" for name in ("scikit-learn", "scipy", "tokenizers"))
    text = f"{sklearn}, {scipy}, {tokenizers}, v1"
    assert versions == {
        **dict.fromkeys(("alexnet", "autoencoder", "resnet20"), f"{sklearn}, v1"),
        **dict.fromkeys(("bert_classification", "bert_krona", "bert_span"), f"{text}, tasks v1"),
        **dict.fromkeys(("bert_pretraining", "kronecker_rnn", "language_model"), text),
        "resnet50": "ILSVRC 2012, v1",
    }


# The contract of every workload


def test_the_same_seed_gives_the_same_weights_and_keeps_the_generators_state(workload):
    before = generator_states()
    first, second, other = workload.model(3), workload.model(3), workload.model(4)
    assert generator_states() == before
    assert first is not second
    assert first.training
    assert equal(first.state_dict(), second.state_dict())
    assert not equal(first.state_dict(), other.state_dict())


def test_a_batch_is_a_function_of_seed_and_position(workload):
    """Truth: the batches of one uninterrupted pass, across the end of an epoch."""
    torch.manual_seed(0)
    start = workload.steps_per_epoch - 2
    ahead = list(islice(workload.batches(seed=5), start + 4))[start:]
    before = generator_states()
    torch.manual_seed(1)
    resumed = list(islice(workload.batches(seed=5, start=start), 4))
    torch.manual_seed(0)
    assert generator_states() == before
    assert all(equal(*pair) for pair in zip(ahead, resumed, strict=True))
    other = next(workload.batches(seed=6, start=start))
    assert not equal(other, resumed[0])
    assert {len(tensor) for batch in ahead for tensor in batch.values()} == {workload.batch_size}


def test_slices_of_a_batch_are_the_batch(workload):
    """Truth: the whole batches."""
    size, start = workload.batch_size, workload.steps_per_epoch - 1
    whole = islice(workload.batches(seed=5, start=start), 2)
    cuts = (0, size // 4, size // 2, size)
    parts = [workload.sliced_batches(5, start, slice(*cut)) for cut in pairwise(cuts)]
    for batch in whole:
        slices = [next(part) for part in parts]
        assert equal(batch, {name: torch.cat([each[name] for each in slices]) for name in batch})


def test_an_epoch_shows_each_example_at_most_once_and_the_next_in_another_order():
    examples, batch_size = 23, 5
    drawn = [indices for _, indices in islice(batches.shuffled_indices(2, 0, examples, batch_size), 8)]
    first, second = np.concatenate(drawn[:4]), np.concatenate(drawn[4:])
    for epoch in (first, second):
        assert len(set(epoch.tolist())) == 20
        assert set(epoch.tolist()) <= set(range(examples))
    assert not np.array_equal(first, second)


def test_evaluation_changes_nothing(workload):
    model = workload.model(0)
    frozen = next(module for module in model.modules() if isinstance(module, nn.Linear))
    frozen.eval()
    modes = [module.training for module in model.modules()]
    weights, before = copy.deepcopy(model.state_dict()), generator_states()
    for method in (workload.evaluate, workload.evaluate_training):
        first, second = method(model), method(model)
        assert first == second, "no dropout, and fixed masks"
        assert all(isinstance(value, float) for value in first.values())
    assert generator_states() == before
    assert [module.training for module in model.modules()] == modes
    assert equal(model.state_dict(), weights)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", ["evaluate", "evaluate_training"])
def test_processes_that_evaluate_together_get_the_metrics_of_one(workload, method):
    """Truth: one process; losses agree to the rounding of float32, what is counted exactly.

    Three threads stand for processes with no rows, a third of them, and the rest.
    """
    barrier, board = Barrier(3, timeout=60), [None] * 3

    def evaluate(rank: int) -> dict[str, float]:
        def gathered(value):
            board[rank] = value
            barrier.wait()
            everything = list(board)
            barrier.wait()  # nobody writes the next value before all have read this one
            return everything

        def part(examples: int) -> slice:
            return slice(*[(0, 0), (0, examples // 3), (examples // 3, examples)][rank])

        try:
            return getattr(workload, method)(copy.deepcopy(model), SimpleNamespace(part=part, gathered=gathered))
        except BaseException:
            barrier.abort()  # wakes the threads that wait for this one
            raise

    model = workload.model(0)
    truth = getattr(workload, method)(model)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(evaluate, range(3)))
    assert results[0] == results[1] == results[2]
    assert results[0] == pytest.approx(truth, rel=1e-5)
    for name in truth.keys() - {"loss", "mlm_loss"}:
        assert results[0][name] == truth[name], name


def test_a_failing_evaluation_restores_the_mode():
    model = nn.Linear(2, 2)

    def evaluate() -> None:
        with base.evaluation_mode(model):
            assert not model.training
            assert not torch.is_grad_enabled()
            model(torch.ones(3))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate()
    assert model.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("name", "steps", "rate", "metric", "reached"),
    [
        ("autoencoder", 120, 3e-3, "loss", 0.05),  # 0.074 is that of the mean image
        ("bert_pretraining", 60, 1e-2, "loss", 6.7),  # log 1000 + log 2 = 7.6 is that of uniform predictions
        ("alexnet", 110, 2e-3, "accuracy", 0.8),  # chance is 0.1
        ("resnet20", 40, 1e-2, "accuracy", 0.6),
    ],
)
def test_training_does_far_better_than_chance(made, name, steps, rate, metric, reached):
    workload = made[name]
    model = workload.model(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for batch in islice(workload.batches(seed=0), steps):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        assert loss.shape == ()
        loss.backward()
        optimizer.step()
    value = workload.evaluate(model)[metric]
    assert value < reached if metric == "loss" else value > reached


def test_every_trained_parameter_gets_a_gradient_in_every_step(workload):
    """Ranks, each with its share of a batch, wait for all of them."""
    model = workload.model(0).train()
    for batch in islice(workload.sliced_batches(0, 0, slice(0, 4)), 3):
        model.zero_grad()
        workload.loss(model, batch).backward()
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert [name for name, parameter in trained.items() if parameter.grad is None] == []


def test_modules_to_exclude_exist(workload):
    names = [name for name, _ in workload.model(0).named_modules()]
    for pattern in workload.exclude:
        assert any(re.search(pattern, name) for name in names)


def test_names_and_sizes(workload):
    assert workload.model_name
    assert workload.dataset_name
    assert workload.train_examples > workload.validation_examples > 0
    assert workload.steps_per_epoch == workload.train_examples // workload.batch_size
    assert len(bytes.fromhex(workload.data_fingerprint)) == 32


# The autoencoder


def test_the_autoencoder_has_the_published_shape_and_scale(made):
    """Truth: the published widths, and the mean image, whose loss is the pixels' variance."""
    workload = made["autoencoder"]
    model = workload.model(0)
    shapes = [tuple(layer.weight.shape) for layer in model if isinstance(layer, nn.Linear)]
    assert shapes == [(256, 64), (64, 256), (16, 64), (64, 16), (256, 64), (64, 256)]
    train, validation = (torch.from_numpy(images).flatten(1) for images in digits.load())
    mean = nn.Linear(64, 64)
    nn.init.zeros_(mean.weight)
    mean.bias.data = train.mean(0)
    loss = workload.evaluate(mean)["loss"]
    assert_close(loss, ((validation - train.mean(0)) ** 2).mean().item())
    assert_close(loss, 0.074, atol=5e-4, rtol=0)


def test_autoencoder_batches_are_training_images():
    known = {image.tobytes() for image in digits.load().train.reshape(-1, 64)}
    workload = workloads.create("autoencoder", batch_size=479)
    seen = [row.numpy().tobytes() for batch in islice(workload.batches(0), 3) for row in batch["images"]]
    assert set(seen) == known
    assert len(seen) == len(known)


# BERT


def test_the_corpus_is_kept_and_read_again(bert, data_folder, monkeypatch):
    (kept,) = data_folder.glob("*.npz")
    assert kept.name.endswith("-vocabulary-1000.npz")
    assert data.version_of("docstrings").replace(", ", "-").replace(" ", "-") in kept.name
    monkeypatch.setattr(corpus, "read", lambda: pytest.fail("the docstrings were read again"))
    assert bert_with().data_fingerprint == bert.data_fingerprint


def test_the_real_text_is_large_and_has_few_unknown_words(bert):
    built = corpus.load(1000)
    assert len(built.train.tokens) > 1_500_000
    assert 0.05 < len(built.validation.tokens) / len(built.train.tokens) < 0.2
    assert {str(name).split("/")[0] for name in built.train.names} == {"sklearn", "scipy"}
    assert {str(name).split("/")[0] for name in built.validation.names} == {"sklearn", "scipy"}
    assert np.mean(built.train.tokens == corpus.UNKNOWN) < 1e-3
    assert built.fingerprint == bert.data_fingerprint


@pytest.mark.parametrize("padded", [False, True])
def test_an_attention_mask_gives_what_transformers_makes_of_it(bert, padded):
    """Truth: transformers' own model, which reads the mask, bit for bit. Without padding there is no mask."""
    batch = next(bert.batches(3))
    batch["attention_mask"] = batch["attention_mask"].clamp(min=1)
    if padded:
        batch["attention_mask"][::2, -5:] = 0
    network = bert.model(0)
    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs = inputs_of(network, {name: batch[name] for name in names})
    assert ("attention_mask" in inputs) is padded
    network.eval()
    with torch.no_grad():
        truth = network.bert(**{name: batch[name] for name in names})
        assert torch.equal(network.bert(**inputs).last_hidden_state, truth.last_hidden_state)


def test_bert_s_loss_compiles_into_one_graph(bert):
    """Whatever the number of predicted tokens. Truth: the model itself."""
    network = bert.model(0).eval()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    for batch in islice(bert.batches(0), 3):
        assert_close(bert.loss(compiled, batch), bert.loss(network, batch))


def test_a_step_s_loss_and_gradients_make_the_host_wait_for_nothing(workload):
    """On a GPU, whose place the meta device takes; the first step may copy constants there."""
    network = workload.model(0).to("meta")
    first, second = islice(workload.batches(0), 2)
    workload.loss(network, first)
    with Counting() as counts:
        workload.loss(network, second).backward()
    assert counts.kernels > 10
    assert not counts.waits, counts.by_operator


def test_evaluation_of_bert_is_the_model_s_own_loss_in_parts(bert):
    """Truth: the losses of transformers' model with the same weights on all validation pairs at once."""
    from transformers import BertForPreTraining

    ours = bert.model(1)
    metrics = bert.evaluate(ours)
    model = BertForPreTraining(ours.config)
    model.load_state_dict(ours.state_dict())
    model.eval()
    batch = bert._validation
    assert len(batch["labels"]) == 300 > 256, "more than one chunk"
    with torch.no_grad():
        output = model(**batch)
        mlm = nn.functional.cross_entropy(output.prediction_logits.flatten(0, 1), batch["labels"].flatten())
        assert_close(bert.loss(ours.eval(), batch), output.loss)
    predicted = (output.seq_relationship_logits[:, 1] > output.seq_relationship_logits[:, 0]).long()
    accuracy = (predicted == batch["next_sentence_label"]).double().mean().item()
    assert metrics == pytest.approx(
        {"loss": output.loss.item(), "mlm_loss": mlm.item(), "nsp_accuracy": accuracy}, rel=1e-5
    )


def test_validation_pairs_do_not_depend_on_the_batch_size(bert):
    assert equal(bert_with(batch_size=8, layers=2)._validation, bert._validation)


def test_only_the_language_model_head_is_excluded_from_bert(bert):
    linear = [name for name, module in bert.model(0).named_modules() if isinstance(module, nn.Linear)]
    excluded = {name for name in linear if any(re.search(pattern, name) for pattern in bert.exclude)}
    assert excluded == {"cls.predictions.transform.dense", "cls.predictions.decoder"}
    assert len(linear) == 6 + 4  # six in the layer, the pooler, and three in the heads


def test_bert_has_the_sizes_of_its_parameters(bert):
    parameters = dict(bert_with(initializer_range=0.5, layers=3, heads=4).model(0).named_parameters())
    embeddings = parameters["bert.embeddings.word_embeddings.weight"]
    assert embeddings.shape == (1000, 32)
    assert embeddings[1:].std().item() == pytest.approx(0.5, rel=0.02)
    assert parameters["bert.embeddings.position_embeddings.weight"].shape == (24, 32)
    assert parameters["bert.encoder.layer.2.intermediate.dense.weight"].shape == (128, 32)
    assert not any(name.startswith("bert.encoder.layer.3") for name in parameters)


def test_dropout_acts_in_training_only(bert):
    batch = next(bert.batches(0))
    for workload, alike in ((bert, False), (bert_with(dropout=0.0), True)):
        model = workload.model(0)
        first, second = (workload.loss(model, batch).item() for _ in range(2))
        assert (first == second) is alike


# The split that trials of a search are judged by


def evaluated_on(workload: Workload) -> set[bytes]:
    """Return the inputs of the examples that a workload is evaluated on."""
    if hasattr(workload, "_images"):
        return {image.numpy().tobytes() for batch in workload._images.validation() for image in batch["images"]}
    held_out = workload._validation  # type: ignore[attr-defined]  # all the others have it
    rows = held_out["input_ids"] if isinstance(held_out, dict) else getattr(held_out, "tokens", held_out)
    return {row.tobytes() for row in np.asarray(rows)}


def test_trials_are_judged_by_examples_that_no_run_is_judged_by_or_that_they_train_on(workload, data_folder):
    name = next(name for name in workloads.NAMES if type(workload).__module__.endswith(f".{name}"))
    trial = workloads.create(name, for_tuning=True, **SMALL[name])
    judged, results = evaluated_on(trial), evaluated_on(workload)
    assert len(judged) >= 0.9 * len(results) / 2, "some images of the digits are equal"
    assert len(judged & results) <= 0.01 * len(judged), "the same digit may have been written twice"
    assert equal(trial.model(3).state_dict(), workload.model(3).state_dict())
    assert math.isfinite(trial.evaluate(trial.model(3))["loss"])
    if isinstance(workload, BertPretraining | NextToken):  # trials have validation examples of their own
        assert trial.train_examples == workload.train_examples
    else:
        assert trial.train_examples == workload.train_examples * 4 // 5


def test_the_split_of_a_search_is_a_partition_and_always_the_same():
    used, held_out = batches.tuning_split(101)
    assert sorted([*used, *held_out]) == list(range(101))
    assert len(used) == 80
    assert held_out.tolist() == batches.tuning_split(101)[1].tolist()
    assert held_out.tolist() != list(range(80, 101)), "files hold one class after the other"
