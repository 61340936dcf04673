"""Claims about covariances (C14 to C17) on hand-made rows: every verdict, both sides, and rows that say nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic_claims import conditions, rank1_error, spectra
from workflow.bench.claims.rank1 import decide_decay, decide_mean_vector, decide_rank1_error, decide_singular_factors


@pytest.mark.parametrize(
    ("best", "verdict"),
    [(0.2, "confirmed"), (0.8, "refuted"), ({"activation": 0.2, "gradient": 0.8}, "refuted")],
)
def test_c14_needs_both_sides(best, verdict):
    decision = decide_rank1_error(rank1_error(best=best), conditions("C14"))
    assert decision.verdict == verdict
    assert "6 of bert, 6 of resnet" in decision.details
    assert decision.seeds == "seeds 0-1"


def test_c14_is_judged_by_the_worst_layer():
    """Truth: by hand; a layer's value is the median of 0.2 and 0.15, plus 0 to 0.005."""
    rows = rank1_error(best=0.2)
    decision = decide_rank1_error(rows, conditions("C14"))
    assert decision.measured.startswith("bert activations: 0.18; bert gradients: 0.18;")
    assert "Medians over layers: bert activations 0.178;" in decision.details
    rows.loc[(rows["layer"] == "layer 2") & (rows["workload"] == "resnet"), "error"] += 0.6
    worse = decide_rank1_error(rows, conditions("C14"))
    assert worse.verdict == "refuted"
    assert "bert gradients confirmed; resnet activations refuted" in worse.why


def test_c14_leaves_moments_out_that_are_zero():
    rows = rank1_error(best=0.2)
    rows.loc[rows["layer"] == "layer 0", "error"] = np.nan
    assert decide_rank1_error(rows, conditions("C14")).verdict == "confirmed"
    rows.loc[rows["workload"] == "bert", "error"] = np.nan
    assert decide_rank1_error(rows, conditions("C14")).measured.startswith("resnet activations: ")
    rows["error"] = np.nan
    assert decide_rank1_error(rows, conditions("C14")).verdict == "not tested"


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.95, "confirmed"), (0.5, "refuted"), ({"activation": 0.95, "gradient": 0.3}, "refuted")],
)
def test_c15_share_of_the_best_energy(share, verdict):
    decision = decide_mean_vector(rank1_error(share=share), conditions("C15"))
    assert decision.verdict == verdict
    if isinstance(share, float):
        assert decision.measured.startswith(f"bert activations: {share:g}; bert gradients: {share:g};")


@pytest.mark.parametrize(("change", "verdict"), [(-0.05, "confirmed"), (0.05, "refuted"), (0.0, "refuted")])
def test_c16_late_minus_early_is_paired_by_layer(change, verdict):
    """Truth: every layer changes by the same, so that pairing leaves an interval without width."""
    decision = decide_decay(rank1_error(change=change), conditions("C16"))
    assert decision.verdict == verdict
    assert decision.measured == f"resnet activations: {change:g}; resnet gradients: {change:g}"
    assert decision.interval.startswith(f"resnet activations: [{change:g}, {change:g}];")
    assert f"Not in the paper: bert activations {change:g}" in decision.details


def test_c16_needs_two_steps():
    rows = rank1_error()
    assert decide_decay(rows[rows["step"] == 0], conditions("C16")).verdict == "not tested"


@pytest.mark.parametrize(("running", "verdict"), [((1.0, 100.0), "confirmed"), ((1.0, 5.0), "refuted")])
def test_c17_is_judged_by_running_averages(running, verdict):
    """Those of the batches double in both cases."""
    decision = decide_singular_factors(spectra(running), conditions("C17"))
    assert decision.verdict == verdict
    assert f"bert: {running[1]:g} (0 of 6 layers singular at the end, identity's weight 0.005)" in decision.measured
    assert "The factors of single batches: bert 2 [2, 2], 0 of 6 layers singular at both ends" in decision.details


def test_c17_counts_a_factor_that_becomes_singular():
    """Below the resolution of float32 an eigenvalue is rounding, whatever the condition number says."""
    decision = decide_singular_factors(spectra(singular=6), conditions("C17"))
    assert decision.verdict == "confirmed"
    assert decision.measured.startswith("bert: infinite (6 of 6 layers singular at the end, ")
    rows = spectra()
    rows.loc[rows["step"] == 100, "smallest"] = rows["resolution"]
    assert "bert: infinite (6 of 6 layers" in decide_singular_factors(rows, conditions("C17")).measured


def test_c17_needs_every_workload():
    rows = spectra()
    rows.loc[(rows["workload"] == "resnet") & (rows["step"] == 100), "condition_number"] = 5.0
    assert decide_singular_factors(rows, conditions("C17")).verdict == "refuted"


def test_c17_takes_layers_for_its_sample_and_not_their_seeds():
    """Truth: the same numbers from three seeds say no more of the layers than those from one."""
    seeds = pd.concat([spectra().assign(seed=seed) for seed in range(3)])
    one, three = (decide_singular_factors(rows, conditions("C17")) for rows in (spectra(), seeds))
    assert (three.measured, three.interval, three.seeds) == (one.measured, one.interval, "seeds 0-2")


def test_c17_needs_two_steps():
    rows = spectra()
    assert decide_singular_factors(rows[rows["step"] == 0], conditions("C17")).verdict == "not tested"
    of_resnet = rows[(rows["step"] == 0) | (rows["workload"] == "resnet")]
    assert decide_singular_factors(of_resnet, conditions("C17")).measured.startswith("resnet: 100 (0 of 6 layers")
