"""Training curves as the site gets them: the figures' medians, one curve a label and setting, and their library."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_tables import write_learning_rates
from tests.support.synthetic_training import SECONDS, accuracy, write_training
from workflow.bench.analysis.styles import style_of
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.site import library
from workflow.bench.site.curves import ExperimentCurves, curves_of
from workflow.bench.support.config import ConfigError


def by_experiment(root: Any) -> dict[str, ExperimentCurves]:
    return {of.experiment: of for of in curves_of(Results(root))}


def measure(panel: dict[str, Any], name: str) -> dict[str, Any]:
    return next(of for of in panel["measures"] if of["name"] == name)


def test_a_curve_has_the_median_over_seeds_at_every_evaluation(tmp_path):
    """Truth: the formula of the synthetic accuracies; of three seeds the second is in the middle."""
    found = by_experiment(write_training(tmp_path))
    assert sorted(found) == ["alexnet_cifar100", "bert_base_squad", "bert_imdb", "resnet50_imagenet"]
    (panel,) = found["resnet50_imagenet"].panels
    assert panel["name"] == "Resnet20 data (ResNet-20)"
    accuracies = measure(panel, "validation accuracy")
    assert accuracies["goals"] == [0.9]
    curve = next(of for of in accuracies["curves"] if of["id"] == "mkor")
    assert curve["name"] == style_of("mkor").name
    assert (curve["step"], curve["runs"], curve["broken"]) == (list(range(0, 101, 10)), 3, 0)
    assert curve["value"] == pytest.approx([accuracy("mkor", 1, step) for step in curve["step"]], rel=1e-3)
    assert curve["seconds"] == pytest.approx([SECONDS["mkor"] * step for step in curve["step"]], rel=1e-3)
    assert set(curve["low"] + curve["high"]) == {None}, "three runs have no interval"
    json.dumps(found["resnet50_imagenet"].panels, allow_nan=False)


def test_the_rates_of_one_label_are_curves_of_their_own_and_diverged_ones_have_no_value(tmp_path):
    write_learning_rates(tmp_path)
    (panel,) = by_experiment(tmp_path)["resnet_cifar10_lr"].panels
    curves = {of["name"]: of for of in measure(panel, "validation accuracy")["curves"]}
    assert {name for name in curves if name.startswith("SGD")} == {
        f"SGD, rate {rate}" for rate in ("10", "1", "0.1", "0.01")
    }
    assert len({of["color"] for of in curves.values()}) == len(curves)
    assert curves["SGD, rate 0.1"]["value"][-1] == 0.95
    assert (curves["SGD, rate 10"]["broken"], curves["SGD, rate 10"]["runs"]) == (3, 3)


def test_a_run_that_diverged_counts_as_the_worst_after_its_last_evaluation(tmp_path):
    write_experiment(tmp_path, "x", [run_rows("x", "autoencoder", "sgd", range(3), failed=[0, 1])])
    (panel,) = by_experiment(tmp_path)["x"].panels
    (curve,) = measure(panel, "validation loss")["curves"]
    assert curve["broken"] == 2
    assert curve["value"][0] is not None
    assert curve["value"][-1] is None, "the median of one number and two infinities"


def test_tuned_values_make_no_curves_and_sizes_tell_data_sets_apart(tmp_path):
    parts = []
    for size in (32, 128):
        metrics, runs = run_rows("x", "autoencoder", "sgd", range(3))
        for row in (*metrics, *runs):
            row["run"] = f"{row['run']}-{size}"
        for run in runs:
            run |= {"workload_parameters": {"batch_size": size}, "hyperparameters": {"lr": 0.1 + run["seed"]}}
        parts.append((metrics, runs))
    write_experiment(tmp_path, "x", parts)
    found = by_experiment(tmp_path)["x"]
    assert [panel["name"].rpartition(", ")[2] for panel in found.panels] == ["batch size 32", "batch size 128"]
    assert [of["runs"] for panel in found.panels for of in panel["measures"][0]["curves"]] == [3, 3]
    assert found.optimizers == ["sgd"]


def test_a_folder_without_evaluations_has_no_curves_and_a_damaged_file_is_named(tmp_path):
    assert curves_of(Results(tmp_path)) == []
    write_training(tmp_path)
    (tmp_path / "bert_imdb.csv").write_text("run\nx\n")
    with pytest.raises(NoDataError, match=r"bert_imdb\.csv lacks the columns"):
        curves_of(Results(tmp_path))


def test_the_library_is_that_of_the_pinned_snakemake_with_its_licenses(tmp_path, monkeypatch):
    source = zlib.decompress(base64.b64decode(library.packed())).decode()
    assert "factory(global.vega = {})" in source
    assert "global.vegaLite = {}" in source
    head = source.partition("*/")[0]
    assert all(name in head for name in ("University of Washington Interactive Data Lab", "Mike Bostock"))
    monkeypatch.setattr(library, "_assets", lambda: tmp_path)
    with pytest.raises(ConfigError, match=r"vega/vega\.js is missing: install the Snakemake of requirements\.lock"):
        library.packed()
