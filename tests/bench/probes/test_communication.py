"""The communication probe: the collectives count, to the byte, what is predicted and what formulas by method give."""

from __future__ import annotations

import pytest

from baselines import available, method_class
from workflow.bench.analysis import fits
from workflow.bench.probes import communication
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes.communication import OPTIMIZERS, PLACED, ROWS, of_paper, predicted

DIMENSIONS = (8, 16, 32)
FLOAT32_BYTES = 4
METHODS = sorted(
    {*OPTIMIZERS, *PLACED, "kaisa_mem_opt_sharded", *(name for name in available() if method_class(name) is not None)}
)


def formula(label: str, d: int, workers: int, rank: int) -> dict[str, int]:
    """Return the bytes of one layer's factor update by collective: of a rank, or, for a broadcast, of its source.

    Of a sharded layer a rank has d^2 / workers numbers. It sends them to the owner, rank 0, which sends d^2 / workers
    numbers of the update to every other rank; or a window of 4 columns adds 4 d numbers and two norms, Eva four sums.
    MKOR and Eva add mean vectors and a count, MKOR-H also the loss; in half precision the count goes separately. KAISA
    adds upper triangles of two moments and a count, then its owner broadcasts eigenvectors and eigenvalues to the
    gradient workers, or the update to the other ranks; thermodynamic K-FAC broadcasts nothing. HyLo, CG-FAC and
    B-KFAC gather the rows. RS-KFAC sends as KAISA does, up to its rank. Newton-Muon adds the triangle of one moment and
    three numbers, MKOR-Muon and MAC one mean vector and a count. FOOF adds one triangle, and broadcasts one inverse.
    """
    exchanged = FLOAT32_BYTES * d * d // workers * ((workers - 1) if rank == 0 else 1)
    return {
        "mkor": {"all_reduce": FLOAT32_BYTES * (2 * d + 1)},
        "mkor_h": {"all_reduce": FLOAT32_BYTES * (2 * d + 2)},
        "eva": {"all_reduce": FLOAT32_BYTES * (2 * d + 1)},
        "mkor_bfloat16": {"all_reduce": FLOAT32_BYTES + 2 * 2 * d},
        "kaisa": {"all_reduce": FLOAT32_BYTES * (d * (d + 1) + 1), "broadcast": FLOAT32_BYTES * 2 * (d * d + d)},
        "kaisa_mem_opt": {"all_reduce": FLOAT32_BYTES * (d * (d + 1) + 1), "broadcast": FLOAT32_BYTES * d * d},
        "mkor_owners_ddp": {"all_reduce": FLOAT32_BYTES * (2 * d + 1), "broadcast": FLOAT32_BYTES * d * d},
        "mkor_owners_sharded": {"all_reduce": FLOAT32_BYTES * (2 * d + 1), "all_to_all": exchanged},
        "mkor_windowed_sharded": {"all_reduce": FLOAT32_BYTES * (2 * d + 1 + 4 * d + 2)},
        "eva_sharded": {"all_reduce": FLOAT32_BYTES * (2 * d + 1 + 4)},
        "kaisa_mem_opt_sharded": {"all_reduce": FLOAT32_BYTES * (d * (d + 1) + 2), "all_to_all": exchanged},
        "hylo": {"all_gather": FLOAT32_BYTES * 2 * ROWS * d},
        "cgfac": {"all_gather": FLOAT32_BYTES * 2 * ROWS * d},
        "thermo_kfac": {"all_reduce": FLOAT32_BYTES * (d * (d + 1) + 1)},
        "b_kfac": {"all_gather": FLOAT32_BYTES * 2 * ROWS * d},
        "rs_kfac": {"all_reduce": FLOAT32_BYTES * (d * (d + 1) + 1), "broadcast": FLOAT32_BYTES * 2 * (d * d + d)},
        "newton_muon": {"all_reduce": FLOAT32_BYTES * (d * (d + 1) // 2 + 3)},
        "mkor_muon": {"all_reduce": FLOAT32_BYTES * (d + 1)},
        "mac": {"all_reduce": FLOAT32_BYTES * (d + 1)},
        "foof": {"all_reduce": FLOAT32_BYTES * (d * (d + 1) // 2 + 1), "broadcast": FLOAT32_BYTES * d * d},
    }[label]


@pytest.fixture(scope="module")
def rows() -> list[communication.Row]:
    return list(communication.rows(METHODS, DIMENSIONS, (2, 4), "test-cpu"))


def test_every_method_s_collectives_send_the_predicted_bytes(rows):
    assert {(row.optimizer, row.dimension, row.workers) for row in rows} == {
        (label, d, workers) for label in METHODS for d in DIMENSIONS for workers in (2, 4)
    }
    for row in rows:
        assert row.bytes == row.predicted_bytes > 0, row


def test_bytes_are_those_of_the_formulas(rows):
    for row in rows:
        assert row.bytes == formula(row.optimizer, row.dimension, row.workers, row.rank)[row.collective], row


def test_only_owners_broadcast(rows):
    assert {(row.optimizer, row.rank) for row in rows if row.collective == "broadcast"} == {
        ("kaisa", 0),
        ("foof", 0),
        ("rs_kfac", 0),
        ("kaisa_mem_opt", 0),
        ("mkor_owners_ddp", 0),
    }
    assert {row.optimizer for row in rows if row.collective == "all_gather"} == {"b_kfac", "cgfac", "hylo"}
    assert {row.rank for row in rows if row.workers == 4 and row.collective == "all_reduce"} == {0, 1, 2, 3}


@pytest.mark.parametrize(("label", "order"), [("mkor", 1), ("mkor_bfloat16", 1), ("eva", 1), ("hylo", 1), ("kaisa", 2)])
def test_orders_in_d_are_those_of_table_1(label, order):
    """Truth: Table 1's order, which the predictions reach for large d."""
    sizes = [4096, 8192, 16384]
    setup = Setup.of(label)
    slope = fits.power_law(sizes, [sum(predicted(setup, d, 2, 0).values()) for d in sizes]).exponent
    assert slope == pytest.approx(order, abs=1e-3)
    if label != "hylo":  # its b^2 does not depend on d
        assert fits.power_law(sizes, [of_paper(label, d, 2) for d in sizes]).exponent == pytest.approx(order)


def test_the_paper_s_numbers():
    """Truth: Table 1 by hand, d = 10, 2 ranks of `ROWS` rows."""
    b = 2 * ROWS
    assert of_paper("mkor", 10, 2) == 4 * 10
    assert of_paper("kaisa", 10, 2) == 4 * 400
    assert of_paper("hylo", 10, 2) == 4 * (20 * b + b * b)
    assert of_paper("kaisa_mem_opt", 10, 2) is None


def test_first_order_optimizers_have_no_rows():
    assert list(communication.rows(["sgd", "soap"], DIMENSIONS, (2,), "test-cpu")) == []
