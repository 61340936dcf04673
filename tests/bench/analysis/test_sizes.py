"""Iterations over the batch size and speedups over the width, from iterations and losses set by hand."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from tests.support.synthetic import write_rows
from tests.support.synthetic_ladder import (
    ITERATIONS,
    SIZES,
    SPEEDUPS,
    STEPS,
    WIDTHS,
    deviation,
    iterations,
    write_batch_sizes,
    write_widths,
)
from workflow.bench.analysis.batch_sizes import Batches, batches, slope
from workflow.bench.analysis.batch_sizes import sentences as sentences_on_batches
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.widths import PLACES, Extrapolated, Widths, sentences, widths
from workflow.bench.results.columns import RUN_COLUMNS
from workflow.bench.results.tables import NoDataError, Results

STUDIES = 3
FINAL, SWEEP = PLACES


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results") / "test-cpu" / "field"
    return write_widths(write_batch_sizes(root, range(6), STUDIES), range(6), STUDIES)


@pytest.fixture(scope="module")
def by_batch(root: Path) -> dict[str, Batches]:
    found, left_out = batches(Results(root))
    assert left_out == []
    return {of_workload.workload: of_workload for of_workload in found}


@pytest.fixture(scope="module")
def by_width(root: Path) -> Widths:
    return widths(Results(root))


# Batch sizes


def test_iterations_are_those_of_the_runs_by_study(by_batch):
    """Truth: 90 iterations at the smallest batch, which fall by a power, and a deviation for each study."""
    mkor = by_batch["autoencoder"].arrivals["mkor"]
    assert [*mkor] == [*SIZES]
    for place, size in enumerate(SIZES):
        logs = [math.log(iterations(0.5, size)) + deviation("mkor", study, place) for study in range(STUDIES)]
        assert mkor[size].logs == pytest.approx(dict(enumerate(logs)))
        found, half = mkor[size].iterations, 1.96 * stats.sem(logs) / 1.96 * stats.t.ppf(0.975, 2)
        assert found.value == pytest.approx(math.exp(fmean(logs)))
        assert (found.low, found.high) == pytest.approx((found.value * math.exp(-half), found.value * math.exp(half)))


def test_the_reference_reaches_the_target_at_every_size(by_batch):
    """Truth: SGD never reaches it on the autoencoder, AdamW always on the language model."""
    assert {name: (one.base, one.reference) for name, one in by_batch.items()} == {
        "autoencoder": ("sgd", "nadamw"),
        "language_model": ("adamw", "adamw"),
    }


def test_a_run_that_does_not_arrive_is_a_bound(by_batch):
    sgd = by_batch["autoencoder"].arrivals["sgd"][32]
    assert (sgd.reached, sgd.runs, sgd.is_censored) == (0, 6, True)
    assert sgd.iterations.value == pytest.approx(STEPS)
    assert not sgd.iterations.has_interval
    assert by_batch["autoencoder"].ratios("sgd", 32) == {}
    assert by_batch["autoencoder"].decision("sgd") == "not tested"
    assert by_batch["language_model"].slope("kaisa") is None


def test_the_slope_is_that_of_a_line_in_each_study(by_batch):
    """Truth: NumPy's line through each study's ratios, and scipy's t interval over the three slopes."""
    of_workload = by_batch["language_model"]
    logs = {
        label: np.array(
            [
                [math.log(iterations(ITERATIONS["language_model"][label], size)) + deviation(label, study, place)]
                for study in range(STUDIES)
                for place, size in enumerate(SIZES)
            ]
        ).reshape(STUDIES, len(SIZES))
        for label in ("mkor", "adamw")
    }
    slopes = [np.polyfit(np.log(SIZES), row, 1)[0] for row in logs["mkor"] - logs["adamw"]]
    found = of_workload.slope("mkor")
    assert found.value == pytest.approx(np.mean(slopes))
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 2, np.mean(slopes), stats.sem(slopes)))
    assert found.value == pytest.approx(0.2 - 0.45, abs=0.02)


def test_the_batch_prediction_is_decided_by_the_slopes_interval(by_batch):
    """Truth: the powers. NadamW's on the autoencoder is the reference's own; Muon gains less from the batch."""
    one, two = by_batch["autoencoder"], by_batch["language_model"]
    assert {label: one.decision(label) for label in one.arrivals} == {
        "sgd": "not tested",
        "mkor": "holds",
        "nadamw": "not tested",
        "kaisa": "open",
        "muon": "fails",
    }
    assert two.decision("mkor") == "holds"
    arrived, *said = sentences_on_batches([one, two], str, str.upper)
    assert arrived.startswith("Runs that reached the target, where not all did: autoencoder SGD 0 of 6 at 32, ")
    assert "; language_model KAISA 0 of 6 at 32, " in arrived
    assert "(NADAMW)" in said[0]
    assert "MKOR holds (-0.25" in said[0]
    assert "SGD not tested, " in said[0]


def test_one_study_has_a_slope_without_an_interval():
    found = slope({32: {0: 0.0}, 64: {0: -math.log(2)}})
    assert found.value == pytest.approx(-1)
    assert not found.has_interval
    assert slope({32: {0: 1.0}}) is None
    assert slope({32: {0: 1.0}, 64: {}}) is None
    assert slope({}) is None


@pytest.mark.parametrize("size", SIZES)
def test_a_planned_run_that_has_not_ended_counts_as_missed(root: Path, tmp_path: Path, size):
    runs = Results(root).runs("batch_size")
    at_size = runs["workload_parameters"].map(lambda given: given["batch_size"]) == size
    gone = at_size & (runs["optimizer"] == "adamw") & (runs["seed"] == 3)
    write_rows(tmp_path / "batch_size.runs.csv", RUN_COLUMNS, runs.assign(status=runs["status"].mask(gone, "missing")))
    found = {one.workload: one for one in batches(Results(tmp_path))[0]}["language_model"]
    assert (found.arrivals["adamw"][size].reached, found.arrivals["adamw"][size].runs) == (5, 6)
    assert found.reference == "nadamw"
    assert found.decision("adamw") == "not tested"


def test_sizes_without_a_run_decide_nothing(root: Path, tmp_path: Path):
    """Truth: two of four sizes would have a line, and not the one that the page declares."""
    runs = Results(root).runs("batch_size")
    large = runs["workload_parameters"].map(lambda given: given["batch_size"]) > SIZES[1]
    write_rows(tmp_path / "batch_size.runs.csv", RUN_COLUMNS, runs.assign(status=runs["status"].mask(large, "missing")))
    found, left_out = batches(Results(tmp_path))
    assert left_out == []
    assert {one.decision("mkor") for one in found} == {"not tested"}
    write_rows(tmp_path / "batch_size.runs.csv", RUN_COLUMNS, runs.assign(status="missing"))
    with pytest.raises(NoDataError, match="autoencoder has no run that ended"):
        batches(Results(tmp_path))


def test_without_a_reference_nothing_is_compared(root: Path, tmp_path: Path):
    runs = Results(root).runs("batch_size")
    late = (runs["optimizer"] == "nadamw") & (runs["seed"] == 3)
    write_rows(
        tmp_path / "batch_size.runs.csv", RUN_COLUMNS, runs.assign(crossing_step=runs["crossing_step"].mask(late))
    )
    found, _ = batches(Results(tmp_path))
    assert [one.reference for one in found] == [None, "adamw"]
    assert found[0].decision("mkor") == "not tested"
    assert "the prediction is not tested" in sentences_on_batches(found, str, str)[1]


def test_workloads_that_cannot_be_compared_are_named(root: Path, tmp_path: Path):
    runs = Results(root).runs("batch_size")
    alone = runs[(runs["workload"] == "autoencoder") | (runs["optimizer"] != "adamw")]
    targetless = alone.assign(target=alone["target"].mask(alone["workload"] == "autoencoder"))
    write_rows(tmp_path / "batch_size.runs.csv", RUN_COLUMNS, targetless)
    with pytest.raises(NoDataError, match=r"autoencoder has 0 targets.*language_model has no run of a base optimizer"):
        batches(Results(tmp_path))


# Widths


def test_speedups_are_the_speeds_of_the_lines(by_width):
    """Truth: a loss that falls f times as steeply meets each target in 1 / f of the steps."""
    assert [*by_width.sweeps] == [*WIDTHS]
    assert by_width.labels == [*SPEEDUPS]
    for where in PLACES:
        for label, speeds in SPEEDUPS.items():
            found = by_width.speedups(label, where)
            assert [*found] == [*WIDTHS]
            for place, (speed, one) in enumerate(zip(speeds, found.values(), strict=True)):
                offset = fmean(deviation(label, study, place) for study in range(STUDIES))
                assert one.value == pytest.approx(speed * math.exp(offset))


def test_the_largest_width_is_predicted_by_the_line_through_the_others(by_width):
    """Truth: on logarithmic axes 64, 128 and 256 are equally far apart, so the line has s(128)^2 / s(64) at 256."""
    for label, (first, second, third) in SPEEDUPS.items():
        found = by_width.extrapolated(label, SWEEP)
        assert found.predicted.value == pytest.approx(second**2 / first)
        assert found.measured.value == pytest.approx(third)
        assert found.ratio.value == pytest.approx(third * first / second**2)
        studies = [
            2 * deviation(label, study, 1) - deviation(label, study, 0) + math.log(second**2 / first)
            for study in range(STUDIES)
        ]
        low, high = np.exp(stats.t.interval(0.95, 2, np.mean(studies), stats.sem(studies)))
        assert (found.predicted.low, found.predicted.high) == pytest.approx((low, high))


def test_the_slope_of_the_widths(by_width):
    """Truth: by hand. Of three points at equal distances the slope is that of the outer two."""
    found = by_width.slope("muon", SWEEP)
    ends = [math.log(3.1 / 2.0) + deviation("muon", s, 2) - deviation("muon", s, 0) for s in range(STUDIES)]
    assert found.value == pytest.approx(fmean(ends) / math.log(4))


def estimate(low: float, high: float) -> Estimate:
    return Estimate(math.sqrt(low * high), low, high, 3, "geometric mean", "t", is_ratio=True)


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (0.9, 1.2, "holds"),
        (1 / 1.5, 1.5, "holds"),
        (0.6, 1.2, "open"),
        (0.9, 1.6, "open"),
        (1.01, 1.1, "fails"),
        (0.5, 0.9, "fails"),
        (math.nan, math.nan, "open"),
    ],
)
def test_the_width_prediction_is_decided_as_it_was_declared(low, high, decision):
    """Truth: the rules of docs/experiments/width.md."""
    some = estimate(1, 2)
    assert Extrapolated(some, some, estimate(low, high)).decision == decision


def of_widths(root: Path, folder: Path, *widths: int) -> Path:
    """Write the runs of some widths alone; return the folder."""
    runs = Results(root).runs("width")
    kept = runs["workload_parameters"].map(lambda given: given["hidden_size"]).isin(widths)
    write_rows(folder / "width.runs.csv", RUN_COLUMNS, runs[kept])
    (folder / "width.csv").write_bytes((root / "width.csv").read_bytes())
    return folder


def test_two_widths_predict_the_third_before_it_is_run(root: Path, tmp_path: Path, by_width):
    """Truth: the prediction that all three widths have, which the largest never enters."""
    found = widths(Results(of_widths(root, tmp_path, 64, 128)))
    early, late = (one.extrapolated("mkor", SWEEP) for one in (found, by_width))
    assert early.predicted == late.predicted
    assert (early.measured, early.ratio, early.decision) == (None, None, "not tested")
    assert found.slope("mkor", FINAL) is not None
    assert "mkor not tested (not measured yet, predicted 1.2 [" in sentences(found, str)[0]
    assert len(sentences(by_width, str)) == 2


def test_one_smaller_width_predicts_nothing(root: Path, tmp_path: Path):
    found = widths(Results(of_widths(root, tmp_path, 128, 256)))
    assert found.extrapolated("mkor", SWEEP) is None
    assert sentences(found, str) == ["The prediction is not tested: it needs two widths below the held-out one"]


def test_a_label_that_misses_targets_is_not_tested(root: Path, tmp_path: Path):
    """Truth: KAISA diverges at the smallest width; its budget over AdamW's steps is the same in all runs."""
    folder = of_widths(root, tmp_path, *WIDTHS)
    runs = Results(root).runs("width")
    narrow = runs["workload_parameters"].map(lambda given: given["hidden_size"]) == 64
    gone = narrow & (runs["optimizer"] == "kaisa")
    write_rows(folder / "width.runs.csv", RUN_COLUMNS, runs.assign(status=runs["status"].mask(gone, "diverged")))
    found = widths(Results(folder))
    assert found.missed("kaisa", SWEEP) == {64: 1, 128: 0, 256: 0}
    assert {found.extrapolated("kaisa", where) for where in PLACES} == {None}
    assert {found.slope("kaisa", where) for where in PLACES} == {None}
    assert found.extrapolated("muon", SWEEP).decision != "not tested"
    assert all("Missed of its targets: kaisa 100 % at 64" in sentence for sentence in sentences(found, str))


def test_a_width_without_targets_is_named(root: Path, tmp_path: Path):
    folder = of_widths(root, tmp_path, *WIDTHS)
    runs = Results(root).runs("width")
    wide = runs["workload_parameters"].map(lambda given: given["hidden_size"]) == 256
    of_base = wide & (runs["optimizer"] == "adamw")
    write_rows(folder / "width.runs.csv", RUN_COLUMNS, runs[~of_base])
    assert sentences(widths(Results(folder)), str)[-1].startswith("Not shown: width 256 has no finished run of adamw")


@pytest.mark.parametrize("analysis", [batches, widths])
def test_no_runs_is_one_clear_line(analysis, tmp_path: Path):
    with pytest.raises(NoDataError, match=r"run the experiment (batch_size|width) first"):
        analysis(Results(tmp_path))
