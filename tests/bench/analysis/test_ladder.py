"""The ladder: shares of KFAC's gain, the declared prediction, and what MKOR's parts are worth, from set losses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from tests.support.synthetic import write_rows
from tests.support.synthetic_ladder import LADDER, deviation, write_ladder
from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.ladder import (
    CENTRING,
    NO_GAIN,
    Ladder,
    Prediction,
    decisions_by_workload,
    in_general,
    ladders,
    on_workload,
    predictions,
    runs_of,
    sentences,
)
from workflow.bench.analysis.study_ratios import log_ratios, units_of
from workflow.bench.analysis.target_sweep import FINAL
from workflow.bench.results.columns import RUN_COLUMNS
from workflow.bench.results.tables import NoDataError, Results

STUDIES = 8


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ladder(tmp_path_factory.mktemp("results") / "test-cpu" / "evidence", range(16), STUDIES)


@pytest.fixture(scope="module")
def found(root: Path) -> dict[tuple[str, str, bool], Ladder]:
    listed, left_out = ladders(Results(root))
    assert left_out == []
    return {(ladder.workload, ladder.base, ladder.centred): ladder for ladder in listed}


def estimate(low: float, high: float) -> Estimate:
    return Estimate(math.sqrt(low * high) if low > 0 else (low + high) / 2, low, high, 8, "geometric mean", "t")


def test_each_workload_base_and_kind_of_inputs_is_a_ladder_of_its_own(root, found):
    assert found.keys() == LADDER.keys()
    for key, ladder in found.items():
        centring = {CENTRING} if not key[2] and (*key[:2], True) in LADDER else set()
        assert set(ladder.rungs) == {*LADDER[key], *centring}
        has_centred = ladder.runs["workload_parameters"].map(lambda given: "centred_inputs" in given)
        assert (has_centred == (key[2] | ladder.runs["optimizer"].str.startswith(CENTRING))).all()
    every = runs_of(found.values())
    assert not every.duplicated("run").any()
    assert set(every["run"]) == set(Results(root).runs("ladder")["run"])


def test_gains_are_the_logarithms_of_the_speeds_by_study(found):
    """Truth: a straight line that falls f times as steeply meets every target in 1 / f of the steps."""
    ladder = found["autoencoder", "sgd", False]
    for rung, speed in LADDER["autoencoder", "sgd", False].items():
        truth = {study: math.log(speed) + deviation(rung, study) for study in range(STUDIES)}
        assert ladder.gains[rung] == pytest.approx(truth)
        assert ladder.ratio(rung).value == pytest.approx(math.exp(-fmean(truth.values())))


def test_the_units_average_to_what_the_sweep_estimates(found):
    for ladder in found.values():
        for rung in ladder.rungs:
            ratios = log_ratios(ladder.sweep, ladder.label(rung), ladder.base)
            swept = ladder.sweep.steps_ratio(ladder.label(rung), ladder.base)
            assert len(ratios) == swept.studies == STUDIES
            assert math.exp(fmean(ratios.values())) == pytest.approx(swept.estimate.value)


def test_the_final_quality_is_one_of_the_targets(found):
    """Truth: on straight lines that arrive every target has the same ratio; a base that dropped this one has none."""
    compared = 0
    for ladder in found.values():
        for rung in ladder.rungs:
            if ladder.missed(rung).startswith("0 of"):
                assert ladder.at_final_quality(rung).value == pytest.approx(ladder.ratio(rung).value)
                compared += 1
        dropped = replace(ladder, sweep=ladder.sweep.at(*(share for share in ladder.sweep.targets if share != FINAL)))
        assert dropped.at_final_quality(ladder.rungs[0]) is None
    assert compared > 10
    assert next(iter(found.values())).at_final_quality("no such rung") is None


def test_units_are_studies_or_else_seeds():
    def runs(seeds: list[int], studies: list[float | None]) -> pd.DataFrame:
        return pd.DataFrame({"seed": seeds, "study": pd.Series(studies, dtype=float)})

    both = runs([0, 1, 2, 3], [0, 1, 0, 1])
    assert units_of(both) == {0: {0, 2}, 1: {1, 3}}
    assert units_of(both, runs([0, 1, 2], [0, 1, 0])) == {0: {0, 2}, 1: {1}}
    assert units_of(runs([4, 5], [0, 0])) == {4: {4}, 5: {5}}
    assert units_of(runs([4, 5], [None, None])) == {4: {4}, 5: {5}}


def test_a_share_is_the_ratio_of_the_mean_gains(found):
    """Truth: MAC's speed of 2 is half of KFAC's gain of 4 but for the deviations of both, of which these are means."""
    share = found["autoencoder", "sgd", False].share("mac")
    gains = [
        fmean(math.log(speed) + deviation(rung, study) for study in range(STUDIES))
        for rung, speed in (("mac", 2.0), ("kfac", 4.0))
    ]
    assert share.value == pytest.approx(gains[0] / gains[1])
    assert share.low < 0.5 < share.high
    assert (share.n, share.interval_method) == (STUDIES, "Fieller")
    whole = found["autoencoder", "sgd", False].share("kfac")
    assert (whole.value, whole.low, whole.high) == pytest.approx((1, 1, 1))


def test_without_a_gain_of_kfac_there_is_no_share(found):
    ladder = found["alexnet", "adamw", False]
    assert ladder.share("mkor") is None
    assert ladder.no_share("mkor") == NO_GAIN
    assert ladder.ratio("mkor").high < 1
    assert found["alexnet", "adamw", True].no_share("mkor") == "no runs of KFAC"
    assert found["autoencoder", "sgd", False].no_share("mkor") == ""


GAIN, NONE = estimate(0.5, 0.7), estimate(0.9, 1.1)
ALONE = Estimate(0.5, math.nan, math.nan, 1, "single value", "none")


@pytest.mark.parametrize(
    ("plain", "centred", "kept", "decision"),
    [
        (GAIN, NONE, (-0.2, 0.4), "holds"),
        (GAIN, NONE, (-0.2, 0.499), "holds"),
        (GAIN, NONE, (-0.2, 0.5), "open"),
        (GAIN, estimate(0.3, 1.2), (0.1, 1.4), "open"),
        (GAIN, estimate(0.8, 1.0), (0.5, 0.7), "fails"),
        (GAIN, estimate(0.9, 0.99), (0.1, 0.2), "fails"),
        (GAIN, estimate(1.01, 1.2), (-0.3, -0.1), "fails"),
        (GAIN, NONE, None, "open"),
        (estimate(0.8, 1.0), NONE, (0.1, 0.2), "not tested"),
        (estimate(0.8, 0.999), NONE, (0.1, 0.2), "holds"),
        (None, NONE, None, "not tested"),
        (ALONE, NONE, None, "not tested"),
        (GAIN, None, None, "open"),
        (GAIN, ALONE, None, "open"),
    ],
)
def test_the_prediction_is_decided_as_it_was_declared(plain, centred, kept, decision):
    """Truth: the rules of docs/experiments/ladder.md."""
    assert Prediction("", "", plain, centred, estimate(*kept) if kept else None).decision == decision


@pytest.mark.parametrize(
    ("centred", "kept", "said"),
    [
        (estimate(1.01, 1.2), (-0.3, -0.1), "fails, slower"),
        (estimate(0.9, 0.99), (0.1, 0.2), "fails, gain left"),
        (estimate(0.8, 1.0), (0.5, 0.7), "fails, gain left"),
        (NONE, (-0.2, 0.4), "holds"),
    ],
)
def test_a_failed_prediction_says_which_way(centred, kept, said):
    assert Prediction("", "", GAIN, centred, estimate(*kept)).said == said


@pytest.mark.parametrize(
    ("decisions", "decision"),
    [
        (["holds", "holds"], "holds"),
        (["holds"], "holds"),
        (["holds", "not tested"], "holds"),
        (["holds", "open"], "open"),
        (["open", "not tested"], "open"),
        (["open", "fails"], "fails"),
        (["holds", "fails"], "fails"),
        (["not tested", "not tested"], "not tested"),
    ],
)
def test_a_workload_is_decided_over_its_base_optimizers(decisions, decision):
    assert on_workload(decisions) == decision


@pytest.mark.parametrize(
    ("decisions", "decision"),
    [
        ("holds holds holds open", "holds"),
        ("holds holds holds fails", "open"),
        ("holds holds open open", "open"),
        ("holds holds fails fails", "fails"),
        ("fails open not_tested not_tested", "open"),
    ],
)
def test_in_general_three_workloads_must_hold_and_two_must_fail(decisions, decision):
    assert in_general(dict(enumerate(decisions.replace("_", " ").split(" ")))) == decision


def test_the_prediction_on_ladders_set_by_hand(found):
    """Truth: centring takes MKOR's gain on the autoencoder and leaves .9 of it on AlexNet; over AdamW it takes it."""
    declared = {(one.workload, one.base): one for one in predictions(found.values())}
    assert {place: one.decision for place, one in declared.items()} == {
        ("autoencoder", "sgd"): "holds",
        ("alexnet", "sgd"): "fails",
        ("alexnet", "adamw"): "holds",
    }
    offset = fmean(deviation("mkor", study) for study in range(STUDIES))
    kept = declared["alexnet", "sgd"].kept
    assert kept.value == pytest.approx((math.log(1.7) + offset) / (math.log(1.8) + offset))
    assert decisions_by_workload(declared.values()) == {"autoencoder": "holds", "alexnet": "fails"}


def test_what_the_left_factor_and_the_memory_are_worth(found):
    """Truth: the speeds. MKOR is faster than one side on AlexNet alone; one side is no faster than one vector there."""
    prediction, *worths = sentences([*found.values()], str.upper)
    assert "In general: open (holds: AUTOENCODER; fails: ALEXNET)" in prediction
    left = "MKOR's left factor (mkor against one_side) saves iterations on"
    centring = "MKOR in place of centring (mkor against centred) saves iterations on"
    assert worths[:5] == [
        f"{left} 1 of 2 workloads with SGD as base (ALEXNET)",
        f"{left} 1 of 1 workloads with AdamW as base (ALEXNET)",
        # One vector has no runs over AdamW.
        "MKOR's memory (one_side against one_vector) saves iterations on 0 of 2 workloads with SGD as base",
        # Centring makes a base as fast as MKOR makes AdamW on AlexNet.
        f"{centring} 2 of 2 workloads with SGD as base (AUTOENCODER, ALEXNET)",
        f"{centring} 0 of 1 workloads with AdamW as base",
    ]
    assert worths[5].endswith("where nothing differs, 2.5 % of them save iterations by chance")
    reaches = {
        place: sorted(100 * max(share.high - share.value, share.value - share.low) for share in shares)
        for place in ("autoencoder", "alexnet")
        if (ladder := found[place, "sgd", False])
        and (shares := [ladder.share(rung) for rung in ladder.rungs if rung != "kfac"])
    }
    said = ", ".join(f"{place.upper()} with SGD {each[0]:.0f} to {each[-1]:.0f}" for place, each in reaches.items())
    # KFAC has no gain over AdamW on AlexNet.
    assert worths[6] == f"The intervals of shares reach so many points to one side: {said}"


def test_dropped_targets_are_named(found):
    ladder = found["autoencoder", "sgd", True]
    early = replace(ladder, sweep=replace(ladder.sweep, dropped={0.3: "too early"}))
    dropped = "autoencoder with centred inputs: Dropped are the targets at 30 % of sgd's steps, too early."
    assert sentences([early], str)[-1].startswith(dropped)


def test_a_pair_of_which_one_run_arrives_is_counted(found):
    """Truth: with plain inputs SGD meets its own eight targets in all 16 seeds, and the rung that is too slow none."""
    ladder = found["autoencoder", "sgd", False]
    assert ladder.missed("mkor") == "0 of 128"
    slow = replace(ladder.sweep.courses["mkor"], crossings={seed: [math.inf] * 8 for seed in range(16)})
    late = replace(ladder, sweep=replace(ladder.sweep, courses={**ladder.sweep.courses, "mkor": slow}))
    assert late.missed("mkor") == "128 of 128"


def test_centred_inputs_are_a_workload_of_their_own_in_captions(root, found):
    """Truth: a label that lacks a seed with centred inputs alone is said to."""
    runs = runs_of(found.values())
    centred = runs["workload"] == "alexnet with centred inputs"
    assert runs[centred]["workload_parameters"].map(lambda given: given["centred_inputs"]).all()
    lacks = centred & (runs["optimizer"] == "mkor") & (runs["seed"] == 3)
    assert "Missing: alexnet with centred inputs mkor seed 3" in caption(Results(root), runs[~lacks])


def test_a_ladder_without_targets_is_named(root: Path, tmp_path: Path):
    runs = Results(root).runs("ladder")
    untargeted = runs["workload"] == "alexnet"
    write_rows(tmp_path / "ladder.runs.csv", RUN_COLUMNS, runs.assign(target=runs["target"].mask(untargeted)))
    (tmp_path / "ladder.csv").write_bytes((root / "ladder.csv").read_bytes())
    listed, left_out = ladders(Results(tmp_path))
    assert {ladder.workload for ladder in listed} == {"autoencoder"}
    assert left_out[0] == "alexnet over sgd, plain inputs, sets no target"


def test_no_runs_is_one_clear_line(tmp_path: Path):
    with pytest.raises(NoDataError, match="run the experiment ladder first"):
        ladders(Results(tmp_path))
