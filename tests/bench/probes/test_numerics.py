"""The numerics probe: results that follow mathematically from each rule, and the columns that claims read."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

from mkor_core import MKOR
from workflow.bench.probes import numerics
from workflow.bench.probes._rows import write_rows

RULES = ("sherman_morrison", "published", "released")


@pytest.fixture(params=RULES)
def method(request) -> MKOR:
    return MKOR(update_rule=request.param)


def test_every_update_rule_is_measured():
    assert sorted(method.update_rule for method in numerics.METHODS) == sorted(RULES)


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


def test_rows_become_a_csv_with_their_provenance(tmp_path):
    rows = list(numerics.inverse_residuals(MKOR(), dimensions=(4,)))
    write_rows(tmp_path / "probes" / "numerics.csv", iter(rows))
    table = pd.read_csv(tmp_path / "probes" / "numerics.csv")
    assert list(table.columns) == [*numerics.Row._fields, "code_fingerprint", "git_commit"]
    assert list(table["value"]) == [row.value for row in rows]
    assert [path.name for path in (tmp_path / "probes").iterdir()] == ["numerics.csv"]
