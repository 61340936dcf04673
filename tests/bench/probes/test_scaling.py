"""The scaling probe: a real measurement on two processes, and bytes counted once."""

from __future__ import annotations

from tests.support.small_models import autoencoder
from workflow.bench.probes import scaling
from workflow.bench.probes._optimizers import optimizers


def test_bytes_of_ranks_are_counted_once():
    """Every rank hands the same payload to an all-reduce; a broadcast's counts at its source, and rows add up."""
    ranks = [[{"all_reduce": 8, "broadcast": 5}, {}], [{"all_reduce": 8}, {"broadcast": 7}]]
    assert scaling.sent_in_cycle(ranks) == {"all_reduce": 8, "broadcast": 12}
    assert scaling.sent_in_cycle([[{"all_gather": 3}], [{"all_gather": 4}]]) == {"all_gather": 7}


def test_measured_rows():
    model = autoencoder(batch_size=16)
    chosen = optimizers(model, 1e-4, [*scaling.OPTIMIZERS, "singd"])
    rows = list(scaling.rows(model, chosen, "cpu", "test-cpu", (1, 2), repeats=1))
    steps = [row for row in rows if row.quantity == "step_ms"]
    # SINGD does not run on several ranks.
    assert {(row.optimizer, row.workers) for row in steps} == {
        *((label, workers) for label in ("sgd", "mkor", "kaisa") for workers in (1, 2)),
        ("singd", 1),
    }
    assert {row.source for row in rows} == {"measured"}
    assert all(row.value > 0 for row in steps)
    assert all(row.batch == 16 // row.workers for row in steps)
    # Truth: 64-6-4-6-64 with biases: inputs 65 + 7 + 5 + 7, and a count a layer; outputs are known from the biases.
    sent = {(row.optimizer, row.collective): row.value for row in rows if row.quantity == "sent_bytes"}
    assert sent["mkor", "all_reduce"] == 4 * (84 + 4)
    triangles = sum(d * (d + 1) // 2 for d in (65, 7, 5, 7, 6, 4, 6, 64))
    assert sent["kaisa", "all_reduce"] == 4 * (triangles + 4)
    assert sent["kaisa", "broadcast"] == 4 * sum(d * d + d for d in (65, 7, 5, 7, 6, 4, 6, 64))
    assert not any(optimizer == "sgd" for optimizer, _ in sent)
