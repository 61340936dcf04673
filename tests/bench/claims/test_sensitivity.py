"""The claim about learning rates (C18) on hand-made runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import pytest

from tests.support.synthetic_claims import conditions, learning_rates, untrained
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.hyperparameters import decide_sensitivity


def _decide(trained: Trained) -> Decision:
    return decide_sensitivity(trained, conditions("C18"))


def _counts(mkor: Sequence[int], kaisa: int = 3, no_clip: int = 2) -> Mapping[str, Sequence[int]]:
    others = {"kaisa": kaisa, "kaisa_no_clip": no_clip, "hylo": 1, "sgd": 1}
    return {"mkor": mkor, **{label: [count] * len(mkor) for label, count in others.items()}}


@pytest.mark.parametrize(
    ("mkor", "kaisa", "no_clip", "verdict"),
    [
        ([4, 4, 4], 3, 2, "confirmed"),
        ([1, 1, 1], 3, 2, "refuted"),
        ([3, 3, 3], 4, 2, "refuted"),
        ([4, 3, 2], 3, 2, "inconclusive"),
    ],
)
def test_c18_needs_mkor_to_be_ahead_of_every_rival(mkor, kaisa, no_clip, verdict):
    decision = _decide(learning_rates(_counts(mkor, kaisa, no_clip)))
    assert decision.verdict == verdict
    assert [part.split(":")[0] for part in decision.measured.split("; ")] == [
        "KAISA with clip",
        "KAISA without clip",
        "HyLo",
        "SGD",
    ]


def test_c18_judges_the_mean_of_best_accuracies_and_states_the_counts():
    """Truth: at one rate of four KAISA with clip is at .95 and MKOR at .5."""
    decision = _decide(learning_rates(_counts([2, 2, 2])))
    assert decision.measured.startswith("KAISA with clip: -0.112; KAISA without clip: 0;")
    assert "mkor 2, 2, 2; kaisa 3, 3, 3; kaisa_no_clip 2, 2, 2" in decision.details
    assert "mkor 3 at 1, 3 at 0.1; kaisa 3 at 10, 3 at 1, 3 at 0.1" in decision.details
    assert "The count of mkor minus a rival's: KAISA with clip -1, -1, -1;" in decision.details
    assert "Rates that reach validation accuracy ≥ 0.9, by seed:" in decision.details


def test_c18_gives_counts_of_six_seeds_the_interval_of_order_statistics():
    decision = _decide(learning_rates(_counts([4] * 6)))
    assert "The count of mkor minus a rival's: KAISA with clip 1 [1, 1];" in decision.details


def test_a_run_that_diverged_counts_as_untrained():
    """Truth: one rate of MKOR's that diverged counts as .1 and not .95; KAISA without clip has .5 there."""
    trained = learning_rates(_counts([3, 3, 3], 2, 2))
    diverged = (trained.runs["optimizer"] == "mkor") & (trained.runs["hyperparameters"] == {"lr": 10.0})
    runs = trained.runs.assign(status=trained.runs["status"].mask(diverged, "diverged"))
    decision = _decide(replace(trained, runs=runs))
    assert decision.measured.startswith("KAISA with clip: -0.1;")
    assert decision.verdict == "refuted"


def test_c18_compares_the_seeds_that_have_ended_at_every_rate():
    trained = learning_rates(_counts([4] * 3))
    runs = trained.runs.copy()
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 2), "status"] = "missing"
    two = _decide(replace(trained, runs=runs))
    assert (two.verdict, two.seeds) == ("confirmed", "0-1")
    runs.loc[(runs["optimizer"] != "mkor") & (runs["seed"] < 2), "status"] = "missing"
    why = _decide(replace(trained, runs=runs)).why
    assert why == "mkor and kaisa share no seed that has ended at every learning rate."


def test_c18_without_a_rival_or_a_whole_grid_is_not_tested():
    trained = learning_rates(_counts([4]))
    runs: pd.DataFrame = trained.runs
    without = _decide(replace(trained, runs=runs[runs["optimizer"] != "kaisa_no_clip"]))
    assert without.why == "resnet_cifar10_lr has no run of kaisa_no_clip."
    runs.loc[(runs["optimizer"] == "mkor") & (runs["hyperparameters"] == {"lr": 10.0}), "status"] = "missing"
    assert _decide(trained).why == "No seed of mkor has ended at every learning rate."
    assert _decide(untrained("resnet_cifar10_lr")).verdict == "not tested"
