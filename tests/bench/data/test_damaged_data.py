"""Damaged files of every data set give an error of one line that names the file, or data to train on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.bench.data.test_prepare import arguments, write_text
from tests.support import image_files, text_files
from tests.support.fuzzing import changed_bytes, changed_json
from tests.support.tally import count
from workflow.bench import prepare, workloads
from workflow.bench.data import imagenet, images
from workflow.bench.data.folder import DataDamaged, DataNotFound
from workflow.bench.workloads.image_classifier import ImageClassifier

LENGTH = 32
BERT: dict[str, Any] = {
    "layers": 1,
    "hidden_size": 16,
    "heads": 2,
    "vocabulary_size": len(text_files.PIECES),
    "sequence_length": LENGTH,
    "batch_size": 4,
}
REAL: dict[str, Any] = {**BERT, "cased": False, "pretrained": None}


MAX_EXAMPLES = settings.default.max_examples if settings.default else 100
"""100 in `make test`, 1000 in `make test-faults`."""


@dataclass(frozen=True)
class Loader:
    """A small data set and the workload that reads it."""

    write: Callable[[Path, pytest.MonkeyPatch], object]
    workload: str
    parameters: dict[str, Any]
    files: str = "*"
    """A pattern of the written files to damage."""


def _write_glue(task: str) -> Callable[[Path, pytest.MonkeyPatch], object]:
    def write(root: Path, _: pytest.MonkeyPatch) -> None:
        text_files.write_vocabulary(root)
        text_files.write_glue(root, task)

    return write


def _write_squad(root: Path, _: pytest.MonkeyPatch) -> None:
    text_files.write_vocabulary(root)
    text_files.write_squad(root, filler=20)


def _write_imdb(root: Path, _: pytest.MonkeyPatch) -> None:
    text_files.write_vocabulary(root)
    text_files.write_imdb(root, 3)


def _write_shards(root: Path, _: pytest.MonkeyPatch) -> None:
    text_files.write_vocabulary(root)
    assert prepare.main(arguments(write_text(root / "text"), "--part-megabytes=0.006")) == 0
    shutil.rmtree(root / "text")


def _write_imagenet(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(imagenet, "CLASSES", 3)
    patch.setitem(images.FACTS, "imagenet", images.FACTS["imagenet"]._replace(classes=3))
    # With one core, images are read in this process: it reports damaged files as reading processes do, but faster.
    patch.setattr(os, "sched_getaffinity", lambda _: {0})
    image_files.write_imagenet(root, classes=3, train=3, validation=2)


LOADERS = {
    "cifar10": Loader(
        lambda root, patch: image_files.write_cifar(root, "cifar10", patch),
        "resnet20",
        {"dataset": "cifar10", "batch_size": 16},
    ),
    "cifar100": Loader(
        lambda root, patch: image_files.write_cifar(root, "cifar100", patch),
        "alexnet",
        {"dataset": "cifar100", "batch_size": 16},
    ),
    "imagenet": Loader(_write_imagenet, "resnet50", {"image_size": 32, "batch_size": 3, "label_smoothing": 0.1}),
    "squad": Loader(_write_squad, "bert_span", {**REAL, "dataset": "squad", "sequence_length": 128}),
    "mrpc": Loader(_write_glue("mrpc"), "bert_classification", {**REAL, "dataset": "mrpc"}),
    "cola": Loader(_write_glue("cola"), "bert_classification", {**REAL, "dataset": "cola"}),
    "stsb": Loader(_write_glue("stsb"), "bert_classification", {**REAL, "dataset": "stsb"}),
    "imdb": Loader(_write_imdb, "bert_classification", {**REAL, "dataset": "imdb"}),
    "shards": Loader(
        _write_shards, "bert_pretraining", {**BERT, "dataset": "text", "validation_pairs": 20}, "pretraining/*/*"
    ),
}


@pytest.fixture(scope="module", params=list(LOADERS))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loader, Path]]:
    """A loader, and the data folder with its intact files."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("data")
        patch.setenv("MKOR_DATA", str(root))
        loader = LOADERS[request.param]
        loader.write(root, patch)
        yield loader, root


def use(loader: Loader) -> str:
    """Load the data, train for an epoch and evaluate; return the message of the error, or an empty string."""
    try:
        workload = workloads.create(loader.workload, **loader.parameters)
        # The image classifiers would take too long.
        model = _Quick() if isinstance(workload, ImageClassifier) else workload.model(0)
        for _, batch in zip(range(workload.steps_per_epoch), workload.batches(0), strict=False):
            assert torch.isfinite(workload.loss(model, batch))
        workload.evaluate(model)
    except (DataNotFound, DataDamaged) as problem:
        return str(problem)
    except ValueError as problem:
        message = str(problem)
        # The errors of a vocabulary that lost a line, and of fewer examples than a batch.
        if "word pieces" not in message and "must be at most the number of training examples" not in message:
            raise
        return message
    return ""


class _Quick(nn.Module):
    """A classifier of images by their mean colors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 100)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.mean(dim=(2, 3)))
        return logits


def damaged(loader: Loader, root: Path, file: Path, content: bytes) -> str:
    """Return the error message of the data with another content of ``file``, and restore the file."""
    intact = file.read_bytes()
    try:
        file.write_bytes(content)
        message = use(loader)
    finally:
        file.write_bytes(intact)
        shutil.rmtree(root / "prepared", ignore_errors=True)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def files_of(loader: Loader, root: Path) -> list[Path]:
    return sorted(file for file in root.glob(f"**/{loader.files}") if file.is_file() and "prepared" not in file.parts)


@given(data=st.data())
@settings(
    deadline=None,
    max_examples=MAX_EXAMPLES // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_changed_file_is_named_or_can_be_trained_on(data: st.DataObject, written: tuple[Loader, Path]):
    loader, root = written
    file = data.draw(st.sampled_from(files_of(loader, root)))
    change = changed_json if file.suffix == ".json" else changed_bytes
    message = damaged(loader, root, file, data.draw(change(file.read_bytes())))
    event(f"{file.name}: {'refused' if message else 'trained on'}")
    count("damaged files")
    count(f"changed files of data sets {'refused' if message else 'trained on'}")
