"""Claims about the update rule (C20 to C23) on hand-made rows."""

from __future__ import annotations

import math

import pytest

from tests.support.synthetic import numerics
from tests.support.synthetic_claims import half_precision
from workflow.bench.claims.numerics import (
    decide_descent,
    decide_half_precision,
    decide_inverse,
    decide_positive_definite,
)
from workflow.bench.claims.verdicts import parse_conditions
from workflow.bench.results.tables import published


def _conditions(claim: str):
    return parse_conditions(published("claims").set_index("id")["holds_when"][claim])


@pytest.mark.parametrize(
    ("eigenvalue", "verdict"), [(0.01, "confirmed"), (-1e-3, "refuted"), (float("nan"), "refuted")]
)
def test_c20_positive_definite(eigenvalue, verdict):
    decision = decide_positive_definite(numerics(eigenvalue=eigenvalue), _conditions("C20"))
    assert decision.verdict == verdict
    assert "mathematics" in decision.evidence
    assert ("agrees" in decision.why) == (verdict == "confirmed")


def test_c20_says_where_a_sequence_was_cut():
    probe = numerics().assign(updates=50, of=200)
    assert "4 of the sequences grew without bound" in decide_positive_definite(probe, _conditions("C20")).details


@pytest.mark.parametrize(("residual", "verdict"), [(0.5, "refuted"), (1e-12, "confirmed")])
def test_c21_inverse(residual, verdict):
    decision = decide_inverse(numerics(published_residual=residual), _conditions("C21"))
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
    assert "the sherman_morrison rule: error 0.02 of the bound, 1 of 1 sequences stay finite" in decision.details


def test_c22_counts_an_update_that_overflows_and_not_one_from_an_overflowed_factor():
    """Truth: of three updates one starts beyond half precision, which has no bound, and one ends there."""
    decision = decide_half_precision(half_precision({"published": math.nan}))
    assert "not finite in 1 of 2 updates from a finite factor" in decision.measured
    assert decision.interval == "error: [0.01, 0.01] where finite"
    assert decision.seeds == "2 updates, 1 sequences"


def test_c22_without_the_printed_rule_is_not_tested():
    rows = half_precision()
    assert decide_half_precision(rows[rows["update_rule"] != "published"]).verdict == "not tested"


@pytest.mark.parametrize(("cosine", "verdict"), [(0.2, "confirmed"), (-0.2, "refuted")])
def test_c23_descent(cosine, verdict):
    assert decide_descent(numerics(cosine=cosine), _conditions("C23")).verdict == verdict


@pytest.mark.parametrize("decide", [decide_positive_definite, decide_inverse, decide_descent])
def test_numerics_that_did_not_run_are_not_tested(decide):
    assert decide(numerics().head(0), _conditions("C21")).verdict == "not tested"
