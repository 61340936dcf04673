"""The measurement of what ranks share: its data are read as the real ones, and each contender does its part."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import rank_shares
from benchmarks.rank_shares import CONTROL, PART, PARTS, SHARED, WHOLE
from workflow.bench import workloads
from workflow.bench.data import imagenet

LENGTH, BATCH = 16, 128


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MKOR_DATA", str(folder))
        yield folder


@pytest.mark.usefixtures("data")
def test_each_rank_draws_its_rows_of_the_same_batch():
    """Truth: the batch that a rank draws whole."""
    rank_shares.write_shards(LENGTH, BATCH)
    small = {"layers": 1, "hidden_size": 16, "heads": 1, "validation_pairs": 2, "sequence_length": LENGTH}
    given = {"dataset": "text", "batch_size": BATCH, "vocabulary_size": rank_shares.VOCABULARY, **small}
    workload = workloads.create("bert_pretraining", **given)
    drawn: list[dict[str, Any]] = [
        {label: draw() for label, draw in rank_shares.drawing(workload, rank).items()} for rank in range(2)
    ]
    whole = drawn[0][WHOLE]
    assert len(whole["input_ids"]) == BATCH
    for name, tensor in whole.items():
        assert torch.equal(drawn[1][CONTROL][name], tensor)
        assert torch.equal(torch.cat([each[SHARED][name] for each in drawn]), tensor)
        first, last = (each[PART][name] for each in drawn)
        assert torch.equal(torch.cat([first, last]), torch.cat([tensor[: BATCH // PARTS], tensor[-BATCH // PARTS :]]))


def test_each_rank_evaluates_its_images():
    seen: list[list[slice]] = []
    workload: Any = SimpleNamespace(evaluate=lambda _, team: seen[-1].append(team.part(imagenet.CLASSES)))
    for rank in range(2):
        seen.append([])
        for evaluate in rank_shares.evaluating(workload, rank).values():
            evaluate()
    assert seen == [
        [slice(0, 1000), slice(0, 1000), slice(0, 500), slice(0, 15)],
        [slice(500, 1000), slice(984, 1000)],
    ]


def test_the_images_are_read_as_imagenet_s(data: Path):
    """Sixteen files under a thousand names, of the size of the real ones."""
    mean = rank_shares.write_images(data)
    assert 60_000 < mean < 180_000
    workload = workloads.create("resnet50", dataset="imagenet", batch_size=2)
    assert (workload.train_examples, workload.validation_examples) == (imagenet.CLASSES, imagenet.CLASSES)
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 1000))
    assert 0 < workload.evaluate(network, rank_shares.team(PARTS - 1, PARTS))["loss"] < 100


def test_rows_have_ratios_within_rounds():
    """The machine slows down by the round, all contenders alike; then the control is a busy machine's."""
    times = [{WHOLE: slow, CONTROL: slow, SHARED: slow / 2, PART: slow / 64} for slow in (1.0, 2.0, 4.0)]
    about = {"work": "draw", "workload": "bert_pretraining", "size": 512, "examples": 32768}
    table = list(rank_shares.rows(times, 0.0, **about))
    assert [row.ranks for row in table] == [1, 1, 2, 64]
    assert [row.of_whole for row in table] == pytest.approx([1, 1, 0.5, 1 / 64])
    assert list(rank_shares.summary(table))[-1].startswith("The control passed")
    busy = [{**each, CONTROL: 3 * each[CONTROL] * (1 + index / 100)} for index, each in enumerate(times)]
    said = list(rank_shares.summary(list(rank_shares.rows(busy, 0.0, **about))))
    assert said[-1].startswith("The machine was not quiet: the ratio of draw at 512 to itself is 3.")
