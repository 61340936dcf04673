"""The claim about the loss at long periods (C09) on hand-made runs."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, NO_RUNS, conditions
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.hyperparameters import decide_period_loss


def _decide(metrics: pd.DataFrame) -> Decision:
    return decide_period_loss(Trained("autoencoder_inversion", NO_RUNS, metrics), conditions("C09"))


def _inversion(often: float, rare: float, *, seeds: int = 6, failed: tuple[int, ...] = ()) -> pd.DataFrame:
    rows = [
        row
        for period, floor in ((10, often), (100, rare))
        for row in run_rows(
            "autoencoder_inversion",
            "autoencoder",
            "mkor",
            range(seeds),
            period=period,
            start=floor,
            floor=floor,
            failed=failed if period == 10 else (),
        )[0]
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("often", "rare", "verdict"), [(0.02, 0.03, "confirmed"), (0.03, 0.02, "refuted"), (0.02, 0.02, "inconclusive")]
)
def test_c09_period_loss(often, rare, verdict):
    """The losses do not fall, so that the margin, a share of the fall, is 0."""
    decision = _decide(_inversion(often, rare))
    assert decision.verdict == verdict
    assert decision.seeds == "seeds 0-5"
    assert "mkor, period 100 - 10" in decision.measured


def test_c09_without_a_difference_above_two_percent_of_the_fall():
    rows = _inversion(0.02, 0.02)
    falling = rows.assign(value=rows["value"] + 100.0 * (rows["step"] == 0))
    assert _decide(falling).verdict == "no difference"


def test_c09_is_refuted_by_one_optimizer_or_pair_of_periods():
    worse = _inversion(0.03, 0.02).assign(optimizer="kaisa")
    decision = _decide(pd.concat([_inversion(0.02, 0.03), worse]))
    assert decision.verdict == "refuted"
    assert "kaisa, period 100 - 10 refuted; mkor, period 100 - 10 confirmed" in decision.why
    often = _inversion(0.02, 0.03)
    oftener = often[often["inverse_update_period"] == 10].assign(inverse_update_period=1)
    oftener = oftener.assign(value=oftener["value"] + 1, run="every step " + oftener["run"])
    assert "mkor, period 10 - 1 refuted; mkor, period 100 - 10 confirmed" in _decide(pd.concat([often, oftener])).why


def test_c09_is_the_area_under_the_curve():
    """Truth: by hand; a loss of 4 that falls to 0 in a line has the mean 2, one that falls in the first step less."""
    rows = _inversion(0.0, 0.0, seeds=2)
    steps = rows["step"].astype(float) / rows["step"].max()
    slow, fast = 4 * (1 - steps), 4.0 * (steps == 0)
    decision = _decide(rows.assign(value=slow.where(rows["inverse_update_period"] == 100, fast)))
    first = float(steps[steps > 0].min())
    assert decision.estimates["mkor, period 100 - 10"].value == pytest.approx(2 - 2 * first)


def test_c09_with_a_diverged_run_is_inconclusive_and_says_so():
    """Dropping the run that failed would make the period that failed look good."""
    decision = _decide(_inversion(0.02, 0.03, failed=(2,)))
    assert decision.verdict == "inconclusive"
    assert decision.measured == "mkor, period 100 - 10: 1 runs broke down"


def test_c09_leaves_out_what_was_not_trained():
    """A run that is planned and missing is no failure of its period."""
    rows = _inversion(0.02, 0.03)
    missing = rows[rows["seed"] == 0].drop_duplicates("run").assign(status="missing", step=None, split=None, value=None)
    trained = rows[rows["seed"] != 0].astype(missing.dtypes)
    decision = _decide(pd.concat([trained, missing]))
    assert (decision.verdict, decision.seeds) == ("confirmed", "seeds 1-5")


def test_c09_compares_the_test_loss_alone():
    """Another split and another metric would each change the verdict."""
    rows = _inversion(0.02, 0.03)
    against = rows.assign(value=-1000 * rows["value"])
    others = [against.assign(split="train"), against.assign(metric="accuracy")]
    alone = _decide(rows)
    assert _decide(pd.concat([*others, rows])) == alone


def test_c09_without_runs_is_not_tested():
    decision = _decide(NO_METRICS)
    assert decision.verdict == "not tested"
    assert "autoencoder_inversion" in decision.why
