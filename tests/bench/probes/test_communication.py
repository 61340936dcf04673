"""The communication probe: what the collectives count is what the formulas say, to the byte."""

from __future__ import annotations

import pytest

from workflow.bench.analysis import fits
from workflow.bench.probes import communication
from workflow.bench.probes.communication import METHODS, ROWS, of_paper, predicted

DIMENSIONS = (8, 16, 32)


@pytest.fixture(scope="module")
def rows() -> list[communication.Row]:
    return list(communication.rows(tuple(METHODS), DIMENSIONS, (2, 4), "here"))


def test_every_collective_sends_what_was_predicted(rows):
    assert {(row.optimizer, row.dimension, row.workers) for row in rows} == {
        (label, d, workers) for label in METHODS for d in DIMENSIONS for workers in (2, 4)
    }
    for row in rows:
        assert row.bytes == row.predicted_bytes > 0, row


def test_only_kaisa_broadcasts_and_only_from_its_owner(rows):
    assert {(row.optimizer, row.rank) for row in rows if row.collective == "broadcast"} == {
        ("kaisa", 0),
        ("kaisa_mem_opt", 0),
    }
    assert {row.optimizer for row in rows if row.collective == "all_gather"} == {"hylo"}
    assert {row.rank for row in rows if row.workers == 4 and row.collective == "all_reduce"} == {0, 1, 2, 3}


@pytest.mark.parametrize(("label", "order"), [("mkor", 1), ("mkor_bfloat16", 1), ("eva", 1), ("hylo", 1), ("kaisa", 2)])
def test_orders_in_d_are_those_of_table_1(label, order):
    """Truth: Table 1's order, which the formulas reach where d is large."""
    sizes = [4096, 8192, 16384]
    slope = fits.power_law(sizes, [sum(predicted(label, d).values()) for d in sizes]).exponent
    assert slope == pytest.approx(order, abs=1e-3)
    if label != "hylo":  # whose b^2 is not in d
        assert fits.power_law(sizes, [of_paper(label, d, 2) for d in sizes]).exponent == pytest.approx(order)


def test_the_paper_s_numbers():
    """Truth: Table 1 by hand, d = 10, 2 ranks of `ROWS` rows."""
    b = 2 * ROWS
    assert of_paper("mkor", 10, 2) == 4 * 10
    assert of_paper("kaisa", 10, 2) == 4 * 400
    assert of_paper("hylo", 10, 2) == 4 * (20 * b + b * b)
    assert of_paper("kaisa_mem_opt", 10, 2) is None


def test_an_unknown_method_has_no_formula():
    with pytest.raises(ValueError, match="mkro"):
        predicted("mkro", 4)
