"""Claims about the update rule (C20 to C23) on hand-made rows."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from tests.support.synthetic import numerics
from tests.support.synthetic_claims import conditions, half_precision
from workflow.bench.claims.numerics import (
    decide_descent,
    decide_half_precision,
    decide_inverse,
    decide_positive_definite,
)


@pytest.mark.parametrize(
    ("eigenvalue", "verdict"), [(0.01, "confirmed"), (-1e-3, "refuted"), (float("nan"), "refuted")]
)
def test_c20_positive_definite(eigenvalue, verdict):
    decision = decide_positive_definite(numerics(eigenvalue=eigenvalue), conditions("C20"))
    assert decision.verdict == verdict
    assert "mathematics" in decision.evidence
    assert ("agrees" in decision.why) == (verdict == "confirmed")


def test_c20_and_c23_state_every_rules_smallest_value():
    """Truth: the values rise with the trials, from 0.01 and from 0.2."""
    everyone = "published {0}, released {0}, sherman_morrison {0}."
    eigenvalues = decide_positive_definite(numerics(), conditions("C20"))
    assert eigenvalues.details == f"Smallest eigenvalue by rule: {everyone.format(0.01)}"
    assert eigenvalues.interval == "[0.01, 0.04] over all sequences"
    assert decide_descent(numerics(), conditions("C23")).details == f"Smallest by rule: {everyone.format(0.2)}"


def test_c20_says_where_a_sequence_was_cut():
    probe = numerics().assign(updates=50, of=200)
    assert "4 of the sequences grew without bound" in decide_positive_definite(probe, conditions("C20")).details


@pytest.mark.parametrize(("residual", "verdict"), [(0.5, "refuted"), (1e-12, "confirmed")])
def test_c21_inverse(residual, verdict):
    decision = decide_inverse(numerics(published_residual=residual), conditions("C21"))
    assert decision.verdict == verdict
    assert "sherman_morrison 1e-12" in decision.details
    assert ("the printed rule adds it" in decision.why) == (verdict == "refuted")


@pytest.mark.parametrize(
    ("error", "finite", "verdict"),
    [(0.1, 10_000, "confirmed"), (2.0, 10_000, "refuted"), (0.1, 12, "refuted"), (math.inf, 10_000, "refuted")],
)
def test_c22_needs_bounded_errors_and_finite_factors(error, finite, verdict):
    decision = decide_half_precision(half_precision({"published": error}, {"published": finite}))
    assert decision.verdict == verdict
    assert decision.evidence == "numerics, the same at every tier"


def test_c22_is_about_the_printed_rule_and_states_the_others():
    decision = decide_half_precision(half_precision({"sherman_morrison": 0.02}, {"published": 12}))
    assert decision.measured == (
        "error: 0.1 of the bound; 10,000 updates: 0 of 1 sequences stay finite, the first to fail after 12 updates"
    )
    assert decision.details == (
        "For comparison, the sherman_morrison rule: error 0.02 of the bound, 1 of 1 sequences stay finite."
    )


def test_c22_takes_errors_relative_to_their_bounds():
    """Truth: an error of 0.5 is a quarter of a bound of 2, and 0.1 a half of one of 0.2."""
    rows = half_precision()
    of_error = (rows["check"] == "error") & (rows["update_rule"] == "published") & rows["value"].notna()
    rows.loc[of_error, "value"], rows.loc[of_error, "bound"] = [0.5, 0.1], [2.0, 0.2]
    decision = decide_half_precision(rows)
    assert decision.measured == "error: 0.5 of the bound; 10,000 updates: 1 of 1 sequences stay finite"
    assert decision.interval == "error: [0.25, 0.5] where finite"


def test_c22_names_the_first_sequence_to_fail():
    rows = half_precision(finite={"published": 12})
    later = rows[(rows["check"] == "finite") & (rows["update_rule"] == "published")].assign(value=30)
    decision = decide_half_precision(pd.concat([rows, later]))
    assert "0 of 2 sequences stay finite, the first to fail after 12 updates" in decision.measured


def test_c22_counts_an_update_that_overflows_and_not_one_from_an_overflowed_factor():
    """Truth: of three updates one starts beyond half precision, which has no bound, and one ends there."""
    decision = decide_half_precision(half_precision({"published": math.nan}))
    assert "not finite in 1 of 2 updates from a finite factor" in decision.measured
    assert decision.interval == "error: [0.01, 0.01] where finite"
    assert decision.seeds == "2 updates, 1 sequences"


@pytest.mark.parametrize("checks", [("error",), ("finite",), ("error", "finite")])
def test_c22_without_errors_or_sequences_of_the_printed_rule_is_not_tested(checks):
    rows = half_precision()
    lost = (rows["update_rule"] == "published") & rows["check"].isin(checks)
    assert decide_half_precision(rows[~lost]).verdict == "not tested"


@pytest.mark.parametrize(("cosine", "verdict"), [(0.2, "confirmed"), (-0.2, "refuted")])
def test_c23_descent(cosine, verdict):
    assert decide_descent(numerics(cosine=cosine), conditions("C23")).verdict == verdict


@pytest.mark.parametrize("decide", [decide_positive_definite, decide_inverse, decide_descent])
def test_numerics_that_did_not_run_are_not_tested(decide):
    assert decide(numerics().head(0), conditions("C21")).verdict == "not tested"


def test_c22_states_the_blends_at_which_the_printed_rule_stays_finite():
    """Truth: by hand; 0.8 fails in one of two sequences."""
    rows = half_precision()
    published = rows[(rows["check"] == "finite") & (rows["update_rule"] == "published")]
    of_blend = published.assign(check="blend", bound=1000.0)
    swept = [of_blend.assign(blend=blend, value=value) for blend, value in ((0.4, 1000.0), (0.8, 1000.0), (0.8, 12.0))]
    details = decide_half_precision(pd.concat([rows, *swept])).details
    assert "With the stabilizer's blend at 0.4 all sequences of 1,000 updates stay finite, at 0.8 some do" in details
    assert "blend" not in decide_half_precision(rows).details
