"""Sizes of models that are never given memory, beside what PyTorch and the published models say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import workloads
from workflow.bench.probes import _command, sizes


def test_a_size_is_that_of_the_trained_model(tmp_path: Path):
    """Truth: the parameters of the models that the workloads train."""
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd"), optimizer("mkor")))
    write(folder, "two", block(optimizer("sgd"), workload={"name": "bert_pretraining", "batch_size": 32}))
    out = tmp_path / "sizes.csv"
    assert _command.run("sizes", sizes.measure, ["--out", str(out), *options(folder)], uses_gpu=False) == 0
    table = pd.read_csv(out).set_index("experiment")
    assert list(table.index) == ["one", "two"]
    for name, run in (("one", load(folder).job("one", "sgd").runs[0]), ("two", load(folder).job("two", "sgd").runs[0])):
        workload = workloads.create(**run.spec["workload"])
        row = table.loc[name]
        assert row["parameters"] == sizes.count(workload.model(0))
        assert (row["model"], row["dataset"]) == (workload.model_name, workload.dataset_name)
    assert pd.isna(table.loc["one", "encoder_parameters"])
    assert table.loc["two", "pretraining_parameters"] == table.loc["two", "parameters"]


LARGE_UNCASED = {"hidden_size": 1024, "layers": 24, "heads": 16, "vocabulary_size": 30522}
BASE_CASED = {"hidden_size": 768, "layers": 12, "heads": 12, "vocabulary_size": 28996}


@pytest.mark.parametrize(
    ("published", "encoder", "with_heads"), [(LARGE_UNCASED, 335.1, 336.2), (BASE_CASED, 108.3, 108.9)]
)
def test_the_papers_numbers_are_of_these_parts(published: dict[str, int], encoder: float, with_heads: float):
    """Truth: 335.1 M and 108.9 M in the paper's table of settings, which count different parts of a BERT."""
    with torch.device("meta"):
        model = workloads.architecture("bert_pretraining", **published, sequence_length=512)
        found = sizes.parts_of_bert(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert [round(number / 1e6, 1) for number in found if number] == [encoder, with_heads]
