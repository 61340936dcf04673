"""The scaling probe: its model by hand, and a real measurement on two processes."""

from __future__ import annotations

import pytest

from tests.support.small_models import autoencoder
from workflow.bench.analysis.fits import AlphaBeta
from workflow.bench.probes import scaling
from workflow.bench.probes._optimizers import optimizers
from workflow.bench.probes._scaling_model import Work, by_step, modeled, spread, totals
from workflow.bench.probes._timed_loop import PHASES

LINKS = {
    "all_reduce": AlphaBeta(1e-3, 1e-9),
    "broadcast": AlphaBeta(2e-3, 1e-9),
    "all_gather": AlphaBeta(3e-3, 1e-9),
}


def phases(**ms: float) -> dict[str, float]:
    return {**dict.fromkeys(PHASES, 0.0), **ms}


LOCAL = {
    100: phases(forward=6.0, backward=14.0, factor=3.0, precondition=2.0, update=1.0),
    50: phases(forward=3.0, backward=7.0, factor=3.0, precondition=2.0, update=1.0),
}


def test_one_worker_costs_what_it_costs_alone():
    parts = modeled(1, LOCAL, [{"all_reduce": 1000}], Work(4000, {}, 1.0), LINKS)
    assert parts["step"] == pytest.approx(sum(LOCAL[100].values()))
    assert parts["communication"] == parts["gradients"] == 0


def test_the_model_of_four_workers_by_hand():
    """Truth: 20 / 4 + 3 + 2 + 1 ms; a ring of 4 sends 6 messages; one step in two communicates."""
    parts = modeled(4, LOCAL, [{"all_reduce": 8_000_000}, {}], Work(4_000_000, {}, 1.0), LINKS)
    assert parts["divided"] == pytest.approx(5.0)
    assert parts["gradients"] == pytest.approx(6 * 1.0 + 1.5 * 4.0)
    assert parts["communication"] == pytest.approx((6 * 1.0 + 1.5 * 8.0) / 2)
    assert parts["step"] == pytest.approx(5 + 3 + 2 + 1 + 12 + 9)


def test_spread_refreshes_cost_the_most_loaded_rank_and_a_broadcast_an_owner():
    """Truth: costs 3, 2, 1 over two ranks are 3 and 2 + 1; over four ranks three of them own a layer."""
    work = Work(0, {"a": 3.0, "b": 2.0, "c": 1.0}, 1.0)
    assert spread(work, 1) == (1.0, 1)
    assert spread(work, 2) == (0.5, 2)
    assert spread(work, 4) == (0.5, 3)
    parts = modeled(2, LOCAL, [{"broadcast": 1_000_000}], work, LINKS)
    assert parts["factor"] == pytest.approx(1.5)
    assert parts["communication"] == pytest.approx(2 * (2.0 + 0.5))


def test_gathered_rows_are_shared_by_the_ranks():
    """Truth: 4 ranks bring 2 MB each of 8 MB, whatever their number; a ring passes 3 times a rank's rows."""
    parts = modeled(4, LOCAL, [{"all_gather": 8_000_000}], Work(0, {}, 1.0), LINKS)
    assert parts["communication"] == pytest.approx(3 * (3.0 + 2.0))


def test_bytes_of_ranks_are_counted_once():
    """Every rank hands the same payload to an all-reduce; a broadcast's counts at its source, and rows add up."""
    ranks = [[{"all_reduce": 8, "broadcast": 5}, {}], [{"all_reduce": 8}, {"broadcast": 7}]]
    assert by_step(ranks) == [{"all_reduce": 8, "broadcast": 5}, {"broadcast": 7}]
    assert totals(ranks) == {"all_reduce": 8, "broadcast": 12}
    assert totals([[{"all_gather": 3}], [{"all_gather": 4}]]) == {"all_gather": 7}


def test_measured_and_modeled_rows():
    model = autoencoder(batch_size=16)
    chosen = optimizers(model, 1e-4, scaling.OPTIMIZERS)
    rows = list(scaling.rows(model, chosen, "cpu", "test-cpu", (1, 2), repeats=1, payloads=(256, 4096)))
    steps = [row for row in rows if row.quantity == "step_ms"]
    assert {row.workers for row in steps if row.source == "measured"} == {1, 2}
    assert {row.workers for row in steps if row.source == "model"} == {1, 2, 4, 8, 16}  # one example a worker at last
    assert {row.optimizer for row in steps} == {"sgd", "mkor", "kaisa"}
    assert all(row.value > 0 for row in steps)
    assert all(row.batch == 16 // row.workers for row in steps)
    # Truth: 64-6-4-6-64 with biases: inputs 65 + 7 + 5 + 7, and a count a layer; outputs are known from the biases.
    sent = {(row.optimizer, row.collective): row.value for row in rows if row.quantity == "sent_bytes"}
    assert sent["mkor", "all_reduce"] == 4 * (84 + 4)
    triangles = sum(d * (d + 1) // 2 for d in (65, 7, 5, 7, 6, 4, 6, 64))
    assert sent["kaisa", "all_reduce"] == 4 * (triangles + 4)
    assert sent["kaisa", "broadcast"] == 4 * sum(d * d + d for d in (65, 7, 5, 7, 6, 4, 6, 64))
    assert not any(optimizer == "sgd" for optimizer, _ in sent)
    links = {(row.quantity, row.collective): row.value for row in rows if row.quantity in ("alpha_us", "beta_ns")}
    assert len(links) == 4
    assert all(value >= 0 for value in links.values())


def test_one_worker_alone_has_no_model():
    model = autoencoder(batch_size=16)
    rows = list(scaling.rows(model, optimizers(model, 1e-4, ["sgd"]), "cpu", "test-cpu", (1,), repeats=1))
    assert {row.source for row in rows} == {"measured"}


def test_methods_that_gather_or_do_not_run_in_parallel_can_be_measured():
    model = autoencoder(batch_size=16)
    chosen = optimizers(model, 1e-4, ["hylo", "singd"])
    rows = list(scaling.rows(model, chosen, "cpu", "test-cpu", (1, 2), repeats=1, payloads=(256, 4096)))
    assert {row.collective for row in rows if row.quantity == "alpha_us"} == {"all_reduce", "broadcast", "all_gather"}
    steps = {(row.optimizer, row.source, row.workers) for row in rows if row.quantity == "step_ms"}
    assert {workers for label, source, workers in steps if (label, source) == ("hylo", "model")} == {1, 2, 4, 8, 16}
    assert {(source, workers) for label, source, workers in steps if label == "singd"} == {("measured", 1)}
