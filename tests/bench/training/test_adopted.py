"""Runs whose records were adopted from another machine: they count as done, but nothing can start from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import train
from workflow.bench.results.rows import run_rows
from workflow.bench.status import states
from workflow.bench.support.files import write_json
from workflow.bench.training.record import RunFolder, origin_of

START = {"experiment": "first", "optimizer": "sgd", "seed": 0}


def test_an_adopted_run_is_trained_only_if_another_is_about_to_start_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = make_folder(tmp_path / "config")
    write(folder, "first", block(optimizer("sgd"), steps=1, evaluate_every=1))
    write(folder, "second", block(optimizer("sgd"), steps=1, evaluate_every=1, start_from=START))
    assert train.main(["second", "sgd", *options(folder)]) == 0
    plan = load(folder)
    place = RunFolder.of(plan.results, plan.job("first", "sgd").run_ids[0])
    place.weights.unlink()
    write_json(place.origin, "elsewhere")
    record = place.summary.read_bytes()
    for experiment in ("first", "second"):
        assert train.main([experiment, "sgd", *options(folder)]) == 0
    assert origin_of(place) == "elsewhere"
    assert place.summary.read_bytes() == record
    assert [row["hardware"] for row in run_rows(plan, plan.job("first", "sgd"))] == ["elsewhere"]
    assert [row["hardware"] for row in run_rows(plan, plan.job("second", "sgd"))] == ["test"]
    assert [state.state for state in states(plan, plan.job("first", "sgd"))] == ["finished"]

    write(folder, "second", block(optimizer("sgd"), steps=1, evaluate_every=1, seeds=[0, 1], start_from=START))
    capsys.readouterr()
    assert train.main(["second", "sgd", *options(folder)]) == 0
    assert "run 2 of 3: autoencoder sgd" in capsys.readouterr().err
    assert origin_of(place) is None
    assert place.weights.exists()


def test_a_damaged_origin_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = make_folder(tmp_path / "config")
    write(folder, "first", block(optimizer("sgd"), steps=1, evaluate_every=1))
    write(folder, "second", block(optimizer("sgd"), steps=1, evaluate_every=1, start_from=START))
    plan = load(folder)
    place = RunFolder.of(plan.results, plan.job("first", "sgd").run_ids[0])
    write_json(place.origin, "../elsewhere")
    assert train.main(["first", "sgd", *options(folder)]) == 1
    assert capsys.readouterr().err == f"{place.origin}: damaged: it does not contain the name of a machine\n"
