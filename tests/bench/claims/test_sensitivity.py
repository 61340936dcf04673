"""The claim about learning rates (C18) on hand-made runs."""

from __future__ import annotations

import pytest

from tests.support.synthetic_claims import NO_RUNS, learning_rates
from workflow.bench.claims.sensitivity import decide_sensitivity


@pytest.mark.parametrize(
    ("mkor", "kaisa", "no_clip", "verdict"),
    [
        ([4, 4, 4], [3, 3, 3], [2, 2, 2], "confirmed"),
        ([1, 1, 1], [3, 3, 3], [2, 2, 2], "refuted"),
        ([3, 3, 3], [4, 4, 4], [2, 2, 2], "refuted"),
        ([4, 3, 2], [3, 3, 3], [3, 3, 3], "inconclusive"),
    ],
)
def test_c18_judges_with_kaisas_clip_and_without(mkor, kaisa, no_clip, verdict):
    counts = {"mkor": mkor, "kaisa": kaisa, "kaisa_no_clip": no_clip, "hylo": [1] * 3, "sgd": [1] * 3}
    decision = decide_sensitivity(learning_rates(counts))
    assert decision.verdict == verdict
    assert decision.measured.startswith("KAISA with clip: ")
    assert "; KAISA without clip: " in decision.measured


def test_c18_counts_rates_by_seed_and_names_where():
    counts = {"mkor": [2, 1, 2], "kaisa": [3] * 3, "kaisa_no_clip": [2] * 3, "hylo": [1] * 3, "sgd": [0] * 3}
    decision = decide_sensitivity(learning_rates(counts))
    assert decision.verdict == "inconclusive"
    assert "mkor 2, 1, 2; kaisa 3, 3, 3; kaisa_no_clip 2, 2, 2" in decision.details
    assert "mkor 2 at 1, 3 at 0.1; kaisa 3 at 10, 3 at 1, 3 at 0.1" in decision.details
    assert "sgd none." in decision.details
    assert "MKOR's count is the larger in 0 of 3 seeds and 0 of 3 seeds" in decision.details


def test_c18_compares_the_seeds_that_all_have_ended():
    """Truth: MKOR has seeds 0 and 1; its rivals have both, and then seed 2 alone."""
    counts = {"mkor": [4] * 3, "kaisa": [3] * 3, "kaisa_no_clip": [2] * 3, "hylo": [1] * 3, "sgd": [1] * 3}
    runs = learning_rates(counts)
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 2), "status"] = "missing"
    two = decide_sensitivity(runs)
    assert (two.verdict, two.seeds) == ("confirmed", "0-1")
    assert two.details.startswith(
        "Mean, 95 % t interval; MKOR's count is the larger in 2 of 2 seeds and 2 of 2 seeds. "
        "Rates that reach a validation loss of 0.9, by seed: mkor 4, 4; kaisa 3, 3, 3;"
    )
    runs.loc[(runs["optimizer"] != "mkor") & (runs["seed"] < 2), "status"] = "missing"
    assert decide_sensitivity(runs).why == "mkor and its rivals share no seed that has ended at every learning rate."


def test_c18_without_a_rival_or_a_whole_grid_is_not_tested():
    counts = {"mkor": [4], "kaisa": [3], "kaisa_no_clip": [2], "hylo": [1], "sgd": [1]}
    runs = learning_rates(counts)
    without = decide_sensitivity(runs[runs["optimizer"] != "kaisa_no_clip"])
    assert without.why == "resnet_cifar10_lr has no run of kaisa_no_clip."
    runs.loc[(runs["optimizer"] == "mkor") & (runs["hyperparameters"] == {"lr": 10.0}), "status"] = "missing"
    assert decide_sensitivity(runs).why == "No seed of mkor has ended at every learning rate."
    assert decide_sensitivity(NO_RUNS).verdict == "not tested"
