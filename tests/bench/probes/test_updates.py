"""Probes of single updates: what follows mathematically from each rule, and what half precision makes of it."""

from __future__ import annotations

import math

import pytest
import torch

from mkor_core import MKOR
from mkor_core.reference import RULES
from workflow.bench.probes import half_precision, numerics
from workflow.bench.probes.half_precision import finite_updates, lemma_bound, update_errors, updated


@pytest.fixture(params=RULES)
def method(request) -> MKOR:
    return MKOR(update_rule=request.param)


def test_every_update_rule_is_measured():
    assert {method.update_rule for method in numerics.METHODS} == {*RULES}


def test_smallest_eigenvalues_are_those_of_the_dense_inverse():
    """Truth: under the exact rule J is the inverse of the averaged matrix, so its smallest eigenvalue is the inverse of
    that matrix's largest one; a stabilizer that never acts leaves the average unchanged.
    """
    method = MKOR(stabilizer_threshold=1e30)
    vectors = 0.1 * torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    average, truth = torch.eye(6, dtype=torch.float64), 1.0
    for vector in vectors:
        average = method.decay * average + (1 - method.decay) * torch.outer(vector, vector)
        truth = min(truth, 1 / torch.linalg.eigvalsh(average)[-1].item())
    value, updates = numerics._follow(method, vectors)
    assert updates == 20
    assert value == pytest.approx(truth, rel=1e-12)


def test_a_negative_eigenvalue_is_seen(monkeypatch):
    """Truth: a rule that subtracts three times a unit vector's outer product leaves the eigenvalue 1 - 3."""
    monkeypatch.setattr(numerics, "next_factor", lambda method, inverse, v: inverse - 3 * torch.outer(v, v))
    vectors = torch.eye(4, dtype=torch.float64)[:1]
    value, updates = numerics._follow(MKOR(update_rule="released"), vectors)
    assert value == pytest.approx(-2.0, abs=1e-14)
    assert updates == 1


def test_a_sequence_ends_when_the_factor_exceeds_its_precision():
    """The published rule stretches a persistent mean without bound; the exact rule shrinks it."""
    vectors = torch.ones(200, 4, dtype=torch.float64)
    value, updates = numerics._follow(MKOR(update_rule="published"), vectors)
    assert value > 0
    assert 0 < updates < 200
    assert numerics._follow(MKOR(update_rule="sherman_morrison"), vectors)[1] == 200


def test_every_factor_stays_positive_definite_within_its_precision(method):
    rows = list(numerics.smallest_eigenvalues(method, dimensions=(4,)))
    assert {row.dtype for row in rows} == {"float64", "float32"}
    assert {row.sequence for row in rows} == {"independent", "persistent mean"}
    assert min(row.value for row in rows) > 0


def test_only_the_exact_rule_inverts_the_average(method):
    """Truth: the Sherman-Morrison formula; the printed rule adds where that subtracts."""
    residuals = [row.value for row in numerics.inverse_residuals(method, dimensions=(4, 32))]
    if method.update_rule == "sherman_morrison":
        assert max(residuals) < 1e-12
    else:
        assert min(residuals) > 0.1


def test_cosines_are_of_a_descent_direction_in_every_step(method):
    """Truth: with J = I, the first step of the released rule, V is D up to its norm, which rescaling restores."""
    rows = list(numerics.descent_cosines(method, steps=12))
    assert [row.trial for row in rows] == list(range(12))
    assert all(0 < row.value <= 1 + 1e-6 for row in rows)
    if method.update_rule == "released":
        assert rows[0].value == pytest.approx(1.0, abs=1e-6)


def test_training_that_diverges_ends_its_rows(method, monkeypatch):
    monkeypatch.setattr(numerics, "LEARNING_RATE", math.inf)
    rows = list(numerics.descent_cosines(method, steps=5))
    assert len(rows) == 1
    assert (rows[0].updates, rows[0].of) == (1, 5)


def test_numbers_do_not_change_from_run_to_run(method):
    first, again = (list(numerics.inverse_residuals(method, dimensions=(4,))) for _ in range(2))
    assert first == again


def test_the_bound_is_lemma_3_2_s():
    """Truth: by hand, gamma 0.5, m 2, d 3: (0.5 + 4 * 0.5 / 0.25 * 8 * 9) 2^-11."""
    assert lemma_bound(0.5, 2.0, 3, torch.float16) == pytest.approx((0.5 + 8 * 72) * 2**-11)
    assert lemma_bound(0.5, 2.0, 3, torch.bfloat16) == pytest.approx((0.5 + 8 * 72) * 2**-8)


def test_stored_factors_lose_one_rounding_only(method):
    """Truth: computed in float32 and stored, an entry is off by half a unit in the last place of its size."""
    vector = torch.randn(8, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    inverse = torch.eye(8, dtype=torch.float16)
    truth = RULES[method.update_rule](inverse.double(), vector.double(), method.decay)
    error = (updated(method, inverse, vector, "stored").double() - truth).abs().max().item()
    assert error <= 2**-11 * truth.abs().max().item() * 1.001


def test_errors_carry_their_bound(method):
    rows = list(update_errors(method, dimensions=(4,)))
    assert len(rows) == 2 * 2 * 2 * half_precision.TRIALS
    assert {row.check for row in rows} == {"error"}
    for row in rows:
        dtype = getattr(torch, row.dtype)
        if math.isfinite(row.largest_entry):
            assert row.bound == pytest.approx(lemma_bound(method.decay, row.largest_entry, 4, dtype))
            assert not row.value < 0  # NaN where the update itself overflowed


def test_the_exact_rule_stays_below_the_bound():
    rows = list(update_errors(MKOR(), dimensions=(16,)))
    assert all(row.value < row.bound for row in rows)


def test_the_exact_rule_stays_finite_and_the_published_one_does_not():
    """The published rule doubles a factor along a persistent mean; the largest float16 is 65,504."""
    exact = list(finite_updates(MKOR(), number=200))
    assert all(row.value == row.bound == 200 for row in exact)
    published = [row for row in finite_updates(MKOR(update_rule="published"), number=200) if row.dtype == "float16"]
    assert all(row.value < 200 for row in published if row.sequence == "persistent mean")
    assert all(math.isfinite(row.largest_entry) for row in published)


def test_the_first_non_finite_update_is_counted(monkeypatch):
    def breaks_at_the_third(method, inverse, vector):
        return inverse * (math.inf if inverse[0, 0] >= 4 else 2)

    monkeypatch.setattr(half_precision, "next_factor", breaks_at_the_third)
    rows = list(finite_updates(MKOR(update_rule="released"), number=10))
    assert {row.value for row in rows} == {2}
    assert {row.largest_entry for row in rows} == {4.0}
