"""The half-precision probe: its bound by hand, its errors from exact numbers, its sequences to their end."""

from __future__ import annotations

import math

import pytest
import torch

from mkor_core import MKOR
from mkor_core.reference import RULES
from workflow.bench.probes import half_precision
from workflow.bench.probes.half_precision import finite_updates, lemma_bound, update_errors, updated


def test_the_bound_is_lemma_3_2_s():
    """Truth: by hand, gamma 0.5, m 2, d 3: (0.5 + 4 * 0.5 / 0.25 * 8 * 9) 2^-11."""
    assert lemma_bound(0.5, 2.0, 3, torch.float16) == pytest.approx((0.5 + 8 * 72) * 2**-11)
    assert lemma_bound(0.5, 2.0, 3, torch.bfloat16) == pytest.approx((0.5 + 8 * 72) * 2**-8)


@pytest.mark.parametrize("rule", RULES)
def test_stored_factors_lose_one_rounding_only(rule):
    """Truth: computed in float32 and stored, an entry is off by half a unit in the last place of its size."""
    method = MKOR(update_rule=rule)
    vector = torch.randn(8, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    inverse = torch.eye(8, dtype=torch.float16)
    truth = RULES[rule](inverse.double(), vector.double(), method.decay)
    error = (updated(method, inverse, vector, "stored").double() - truth).abs().max().item()
    assert error <= 2**-11 * truth.abs().max().item() * 1.001


@pytest.mark.parametrize("rule", RULES)
def test_errors_carry_their_bound(rule):
    rows = list(update_errors(MKOR(update_rule=rule), dimensions=(4,)))
    assert len(rows) == 2 * 2 * 2 * half_precision.TRIALS
    assert {row.check for row in rows} == {"error"}
    for row in rows:
        dtype = getattr(torch, row.dtype)
        if math.isfinite(row.largest_entry):
            assert row.bound == pytest.approx(lemma_bound(MKOR(update_rule=rule).decay, row.largest_entry, 4, dtype))
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
