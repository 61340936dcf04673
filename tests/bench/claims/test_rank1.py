"""Claims about covariances (C14 to C17) on hand-made rows: every verdict, both sides, and rows that say nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic_claims import rank1_error, spectra
from workflow.bench.claims.rank1 import decide_decay, decide_mean_vector, decide_rank1_error, decide_singular_factors
from workflow.bench.claims.verdicts import parse_conditions
from workflow.bench.results.tables import published


def _conditions(claim: str):
    return parse_conditions(published("claims").set_index("id")["holds_when"][claim])


@pytest.mark.parametrize(
    ("best", "verdict"),
    [(0.2, "confirmed"), (0.8, "refuted"), ({"activation": 0.2, "gradient": 0.8}, "inconclusive")],
)
def test_c14_is_decided_over_activations_and_gradients(best, verdict):
    decision = decide_rank1_error(rank1_error(best=best), _conditions("C14"))
    assert decision.verdict == verdict
    assert "6 of bert, 6 of resnet" in decision.details
    assert decision.seeds == "seeds 0-1"


def test_c14_reports_each_side_and_the_largest_error():
    """Truth: by hand; a layer's value is the median of 0.2 and 0.15, and of 0.8 and 0.75, plus 0 to 0.005."""
    rows = rank1_error(best={"activation": 0.2, "gradient": 0.8})
    details = decide_rank1_error(rows, _conditions("C14")).details
    assert "activations 0.178" in details
    assert "gradients 0.778" in details
    assert "The largest error is 0.805." in details


def test_c14_needs_the_workloads_to_agree():
    rows = rank1_error(best=0.2)
    rows.loc[rows["workload"] == "resnet", "error"] += 0.6
    decision = decide_rank1_error(rows, _conditions("C14"))
    assert decision.verdict == "inconclusive"
    assert "bert confirmed; resnet refuted" in decision.why


def test_c14_leaves_moments_out_that_are_zero():
    rows = rank1_error(best=0.2)
    rows.loc[rows["layer"] == "layer 0", "error"] = np.nan
    assert decide_rank1_error(rows, _conditions("C14")).verdict == "confirmed"
    rows.loc[rows["workload"] == "bert", "error"] = np.nan
    assert decide_rank1_error(rows, _conditions("C14")).measured.startswith("resnet: ")
    rows["error"] = np.nan
    assert decide_rank1_error(rows, _conditions("C14")).verdict == "not tested"


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.1, "confirmed"), (2.0, "refuted"), ({"activation": 1.05, "gradient": 2.0}, "inconclusive")],
)
def test_c15_mean_vector_over_best(ratio, verdict):
    decision = decide_mean_vector(rank1_error(ratio=ratio), _conditions("C15"))
    assert decision.verdict == verdict
    if isinstance(ratio, float):
        assert decision.measured == f"bert: {ratio:g}; resnet: {ratio:g}"


@pytest.mark.parametrize(("change", "verdict"), [(-0.05, "confirmed"), (0.05, "refuted"), (0.0, "refuted")])
def test_c16_late_minus_early_is_paired_by_layer(change, verdict):
    """Truth: every layer changes by the same, so that pairing leaves an interval without width."""
    decision = decide_decay(rank1_error(change=change), _conditions("C16"))
    assert decision.verdict == verdict
    assert decision.measured == f"bert: {change:g}; resnet: {change:g}"
    assert decision.interval == f"bert: [{change:g}, {change:g}]; resnet: [{change:g}, {change:g}]"


def test_c16_needs_two_steps():
    rows = rank1_error()
    assert decide_decay(rows[rows["step"] == 0], _conditions("C16")).verdict == "not tested"


@pytest.mark.parametrize(("batch", "verdict"), [((10.0, 1000.0), "confirmed"), ((10.0, 20.0), "refuted")])
def test_c17_is_judged_by_batches_and_not_by_running_averages(batch, verdict):
    """The running averages grow a hundredfold in both cases, for they start at the identity."""
    decision = decide_singular_factors(spectra(batch), _conditions("C17"))
    assert decision.verdict == verdict
    assert f"bert: {batch[1] / batch[0]:g} over 6 layers" in decision.measured
    assert decision.details.startswith("Over layers: median, 95 % bootstrap interval. A factor is singular if")
    assert "bert 100 [100, 100] (identity's weight 0.005)" in decision.details


def test_c17_states_the_identitys_largest_weight_at_the_last_step():
    rows = spectra()
    rows.loc[rows["step"] == 0, "start_weight"] = 1.0
    rows.loc[rows["layer"] == "layer 3", "start_weight"] /= 2
    assert "(identity's weight 0.005)" in decide_singular_factors(rows, _conditions("C17")).details


def test_c17_leaves_out_what_was_singular_from_the_start():
    some = decide_singular_factors(spectra(layers=8, singular=2), _conditions("C17"))
    assert some.verdict == "confirmed"
    assert "bert: 100 over 6 layers (2 of 8 layers singular at both ends)" in some.measured
    every = decide_singular_factors(spectra(singular=6), _conditions("C17"))
    assert every.verdict == "inconclusive"
    assert every.details.startswith("A factor is singular if")
    assert every.measured == "bert: 6 of 6 layers singular at both ends; resnet: 6 of 6 layers singular at both ends"


def test_c17_counts_a_factor_that_becomes_singular():
    """Below the resolution of float32 an eigenvalue is rounding, whatever the condition number says."""
    decision = decide_singular_factors(spectra((10.0, 1e9)), _conditions("C17"))
    assert decision.verdict == "confirmed"
    assert decision.measured == "bert: infinite over 6 layers; resnet: infinite over 6 layers"
    rows = spectra()
    rows.loc[rows["step"] == 100, "smallest"] = rows["resolution"]
    assert "bert: infinite over 6 layers" in decide_singular_factors(rows, _conditions("C17")).measured


def test_c17_takes_layers_for_its_sample_and_not_their_seeds():
    """Truth: the same numbers from three seeds say no more of the layers than those from one."""
    seeds = pd.concat([spectra().assign(seed=seed) for seed in range(3)])
    one, three = (decide_singular_factors(rows, _conditions("C17")) for rows in (spectra(), seeds))
    assert (three.measured, three.interval, three.seeds) == (one.measured, one.interval, "seeds 0-2")


def test_c17_needs_two_steps():
    rows = spectra()
    assert decide_singular_factors(rows[rows["step"] == 0], _conditions("C17")).verdict == "not tested"
    of_resnet = rows[(rows["step"] == 0) | (rows["workload"] == "resnet")]
    assert decide_singular_factors(of_resnet, _conditions("C17")).measured == "resnet: 100 over 6 layers"
