"""The claims about the inverse update period (C09) and the learning rate (C18) on hand-made runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, NO_RUNS, conditions, learning_rates, untrained
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.hyperparameters import decide_period_loss, decide_sensitivity


def _c09(metrics: pd.DataFrame) -> Decision:
    return decide_period_loss(Trained("autoencoder_inversion", NO_RUNS, metrics), conditions("C09"))


def _inversion(often: float, rare: float, *, seeds: int = 6, failed: tuple[int, ...] = ()) -> pd.DataFrame:
    about = "autoencoder_inversion", "autoencoder", "mkor", range(seeds)
    updated_often = run_rows(*about, period=10, start=often, floor=often, failed=failed)[0]
    return pd.DataFrame([*updated_often, *run_rows(*about, period=100, start=rare, floor=rare)[0]])


@pytest.mark.parametrize(
    ("often", "rare", "verdict"), [(0.02, 0.03, "confirmed"), (0.03, 0.02, "refuted"), (0.02, 0.02, "inconclusive")]
)
def test_c09_period_loss(often, rare, verdict):
    """The losses do not fall, so that the margin, a share of the fall, is 0."""
    decision = _c09(_inversion(often, rare))
    assert decision.verdict == verdict
    assert decision.seeds == "seeds 0-5"
    assert "mkor, period 100 - 10" in decision.measured


def test_c09_without_a_difference_above_two_percent_of_the_fall():
    rows = _inversion(0.02, 0.02)
    falling = rows.assign(value=rows["value"] + 100.0 * (rows["step"] == 0))
    assert _c09(falling).verdict == "no difference"


def test_c09_is_refuted_by_one_optimizer_or_pair_of_periods():
    worse = _inversion(0.03, 0.02).assign(optimizer="kaisa")
    decision = _c09(pd.concat([_inversion(0.02, 0.03), worse]))
    assert decision.verdict == "refuted"
    assert "kaisa, period 100 - 10 refuted; mkor, period 100 - 10 confirmed" in decision.why
    often = _inversion(0.02, 0.03)
    oftener = often[often["inverse_update_period"] == 10].assign(inverse_update_period=1)
    oftener = oftener.assign(value=oftener["value"] + 1, run="every step " + oftener["run"])
    assert "mkor, period 10 - 1 refuted; mkor, period 100 - 10 confirmed" in _c09(pd.concat([often, oftener])).why


def test_c09_is_the_area_under_the_curve():
    """Truth: by hand; a loss of 4 that falls to 0 in a line has the mean 2, one that falls in the first step less."""
    rows = _inversion(0.0, 0.0, seeds=2)
    steps = rows["step"].astype(float) / rows["step"].max()
    slow, fast = 4 * (1 - steps), 4.0 * (steps == 0)
    decision = _c09(rows.assign(value=slow.where(rows["inverse_update_period"] == 100, fast)))
    first = float(steps[steps > 0].min())
    assert decision.estimates["mkor, period 100 - 10"].value == pytest.approx(2 - 2 * first)


def test_c09_with_a_diverged_run_is_inconclusive_and_says_so():
    """Dropping the run that failed would make the period that failed look good."""
    decision = _c09(_inversion(0.02, 0.03, failed=(2,)))
    assert decision.verdict == "inconclusive"
    assert decision.measured == "mkor, period 100 - 10: 1 runs broke down"


def test_c09_leaves_out_what_was_not_trained():
    """A run that is planned and missing is no failure of its period."""
    rows = _inversion(0.02, 0.03)
    missing = rows[rows["seed"] == 0].drop_duplicates("run").assign(status="missing", step=None, split=None, value=None)
    trained = rows[rows["seed"] != 0].astype(missing.dtypes)
    decision = _c09(pd.concat([trained, missing]))
    assert (decision.verdict, decision.seeds) == ("confirmed", "seeds 1-5")


def test_c09_compares_the_test_loss_alone():
    """Another split and another metric would each change the verdict."""
    rows = _inversion(0.02, 0.03)
    against = rows.assign(value=-1000 * rows["value"])
    others = [against.assign(split="train"), against.assign(metric="accuracy")]
    alone = _c09(rows)
    assert _c09(pd.concat([*others, rows])) == alone


def test_c09_without_runs_is_not_tested():
    decision = _c09(NO_METRICS)
    assert decision.verdict == "not tested"
    assert "autoencoder_inversion" in decision.why


def _c18(trained: Trained) -> Decision:
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
    decision = _c18(learning_rates(_counts(mkor, kaisa, no_clip)))
    assert decision.verdict == verdict
    names = ["KAISA with clip", "KAISA without clip", "HyLo", "SGD"]
    assert [part.split(":")[0] for part in decision.measured.split("; ")] == names


def test_c18_judges_the_mean_of_best_accuracies_and_states_the_counts():
    """Truth: at one rate of four KAISA with clip is at .95 and MKOR at .5."""
    decision = _c18(learning_rates(_counts([2, 2, 2])))
    assert decision.measured.startswith("KAISA with clip: -0.112; KAISA without clip: 0;")
    assert "mkor 2, 2, 2; kaisa 3, 3, 3; kaisa_no_clip 2, 2, 2" in decision.details
    assert "mkor 3 at 1, 3 at 0.1; kaisa 3 at 10, 3 at 1, 3 at 0.1" in decision.details
    assert "The count of mkor minus a rival's: KAISA with clip -1, -1, -1;" in decision.details
    assert "Rates that reach validation accuracy ≥ 0.9, by seed:" in decision.details


def test_c18_gives_counts_of_six_seeds_the_interval_of_order_statistics():
    decision = _c18(learning_rates(_counts([4] * 6)))
    assert "The count of mkor minus a rival's: KAISA with clip 1 [1, 1];" in decision.details


def test_a_run_that_diverged_counts_as_untrained():
    """Truth: one rate of MKOR's that diverged counts as .1 and not .95; KAISA without clip has .5 there."""
    trained = learning_rates(_counts([3, 3, 3], 2, 2))
    diverged = (trained.runs["optimizer"] == "mkor") & (trained.runs["hyperparameters"] == {"lr": 10.0})
    runs = trained.runs.assign(status=trained.runs["status"].mask(diverged, "diverged"))
    decision = _c18(replace(trained, runs=runs))
    assert decision.measured.startswith("KAISA with clip: -0.1;")
    assert decision.verdict == "refuted"


def test_c18_compares_the_seeds_that_have_ended_at_every_rate():
    trained = learning_rates(_counts([4] * 3))
    runs = trained.runs.copy()
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 2), "status"] = "missing"
    two = _c18(replace(trained, runs=runs))
    assert (two.verdict, two.seeds) == ("confirmed", "0-1")
    runs.loc[(runs["optimizer"] != "mkor") & (runs["seed"] < 2), "status"] = "missing"
    why = _c18(replace(trained, runs=runs)).why
    assert why == "mkor and kaisa share no seed that has ended at every learning rate."


def test_c18_without_a_rival_or_a_whole_grid_is_not_tested():
    trained = learning_rates(_counts([4]))
    runs: pd.DataFrame = trained.runs
    without = _c18(replace(trained, runs=runs[runs["optimizer"] != "kaisa_no_clip"]))
    assert without.why == "resnet_cifar10_lr has no run of kaisa_no_clip."
    runs.loc[(runs["optimizer"] == "mkor") & (runs["hyperparameters"] == {"lr": 10.0}), "status"] = "missing"
    assert _c18(trained).why == "No seed of mkor has ended at every learning rate."
    assert _c18(untrained("resnet_cifar10_lr")).verdict == "not tested"
