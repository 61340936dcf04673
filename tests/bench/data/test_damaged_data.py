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

SIZE: dict[str, Any] = {"layers": 1, "hidden_size": 16, "heads": 2, "batch_size": 4}
BERT: dict[str, Any] = {**SIZE, "vocabulary_size": len(text_files.PIECES), "sequence_length": 32}
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


def _text(write: Callable[[Path], object]) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Return a function that writes a data set of texts, and the vocabularies."""

    def written(root: Path, _: pytest.MonkeyPatch) -> None:
        text_files.write_vocabulary(root)
        write(root)

    return written


def _write_shards(root: Path) -> None:
    assert prepare.main(arguments(write_text(root / "text"), "--part-megabytes=0.006")) == 0
    shutil.rmtree(root / "text")


def _write_imagenet(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(imagenet, "CLASSES", 3)
    patch.setitem(images.FACTS, "imagenet", images.FACTS["imagenet"]._replace(classes=3))
    # With one core, images are read in this process: it reports damaged files as reading processes do, but faster.
    patch.setattr(os, "sched_getaffinity", lambda _: {0})
    image_files.write_imagenet(root, classes=3, train=3, validation=2)


def _glue(task: str) -> Loader:
    return Loader(
        _text(lambda root: text_files.write_glue(root, task)), "bert_classification", {**REAL, "dataset": task}
    )


def _cifar(name: str, workload: str) -> Loader:
    given = {"dataset": name, "batch_size": 16}
    return Loader(lambda root, patch: image_files.write_cifar(root, name, patch), workload, given)


LOADERS = {
    "cifar10": _cifar("cifar10", "resnet20"),
    "cifar100": _cifar("cifar100", "alexnet"),
    "imagenet": Loader(_write_imagenet, "resnet50", {"image_size": 32, "batch_size": 3, "label_smoothing": 0.1}),
    "squad": Loader(
        _text(lambda root: text_files.write_squad(root, filler=20)),
        "bert_span",
        {**REAL, "dataset": "squad", "sequence_length": 128},
    ),
    **{task: _glue(task) for task in ("mrpc", "cola", "stsb")},
    "imdb": Loader(
        _text(lambda root: text_files.write_imdb(root, 3)), "bert_classification", {**REAL, "dataset": "imdb"}
    ),
    "shards": Loader(
        _text(_write_shards), "bert_pretraining", {**BERT, "dataset": "text", "validation_pairs": 20}, "pretraining/*/*"
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


@given(data=st.data())
@settings(
    deadline=None,
    max_examples=MAX_EXAMPLES // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_changed_file_is_named_or_can_be_trained_on(data: st.DataObject, written: tuple[Loader, Path]):
    loader, root = written
    written_files = sorted(root.glob(f"**/{loader.files}"))
    files = [file for file in written_files if file.is_file() and "prepared" not in file.parts]
    file = data.draw(st.sampled_from(files))
    intact = file.read_bytes()
    change = changed_json if file.suffix == ".json" else changed_bytes
    try:
        file.write_bytes(data.draw(change(intact)))
        message = use(loader)
    finally:
        file.write_bytes(intact)
        shutil.rmtree(root / "prepared", ignore_errors=True)
    assert "\n" not in message
    assert "Traceback" not in message
    event(f"{file.name}: {'refused' if message else 'trained on'}")
    count("damaged files")
    count(f"changed files of data sets {'refused' if message else 'trained on'}")
