"""The claim about the loss at long periods (C09) on hand-made runs."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, conditions
from workflow.bench.claims.periods import decide_period_loss


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
    decision = decide_period_loss({"autoencoder_inversion": _inversion(often, rare)}, conditions("C09"))
    assert decision.verdict == verdict
    assert decision.seeds == "autoencoder 0-5"
    assert "autoencoder mkor after 150" in decision.measured


def test_c09_needs_every_contrast_to_agree():
    both = {"autoencoder_inversion": _inversion(0.02, 0.03), "bert_inversion": _inversion(0.03, 0.02)}
    assert decide_period_loss(both, conditions("C09")).verdict == "inconclusive"


def test_c09_with_a_diverged_run_is_inconclusive_and_names_it():
    """Dropping the run that failed would make the rule that failed look good."""
    decision = decide_period_loss({"autoencoder_inversion": _inversion(0.02, 0.03, failed=(2,))}, conditions("C09"))
    assert decision.verdict == "inconclusive"
    assert "did not finish: 1 of autoencoder mkor after 150" in decision.details


def test_c09_leaves_out_what_was_not_trained():
    """A run that is planned and missing is no failure of its period."""
    rows = _inversion(0.02, 0.03)
    missing = rows[rows["seed"] == 0].drop_duplicates("run").assign(status="missing", step=None, split=None, value=None)
    trained = rows[rows["seed"] != 0].astype(missing.dtypes)
    decision = decide_period_loss({"autoencoder_inversion": pd.concat([trained, missing])}, conditions("C09"))
    assert (decision.verdict, decision.seeds) == ("confirmed", "autoencoder 1-5")


def test_c09_compares_the_test_loss_at_two_periods_only():
    """Another split, another metric and another period would each change the verdict."""
    rows = _inversion(0.02, 0.03)
    against = rows.assign(value=-1000 * rows["value"])
    often = rows.assign(inverse_update_period=1, run="every step " + rows["run"])
    others = [against.assign(split="train"), against.assign(metric="accuracy"), often]
    alone = decide_period_loss({"autoencoder_inversion": rows}, conditions("C09"))
    assert decide_period_loss({"autoencoder_inversion": pd.concat([*others, rows])}, conditions("C09")) == alone


def test_c09_counts_the_seeds_that_both_periods_have():
    rows = _inversion(0.02, 0.03)
    one_less = rows[(rows["seed"] < 5) | (rows["inverse_update_period"] == 10)]
    assert decide_period_loss({"autoencoder_inversion": one_less}, conditions("C09")).seeds == "autoencoder 0-4"


def test_c09_without_runs_is_not_tested():
    decision = decide_period_loss({"autoencoder_inversion": NO_METRICS}, conditions("C09"))
    assert decision.verdict == "not tested"
    assert "autoencoder_inversion" in decision.why
