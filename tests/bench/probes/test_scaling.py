"""The scaling probe: its model by hand, and a real measurement on two processes."""

from __future__ import annotations

import pytest

from tests.support.small_subjects import autoencoder
from workflow.bench.analysis.fits import AlphaBeta
from workflow.bench.probes import scaling
from workflow.bench.probes._models import contenders
from workflow.bench.probes._timed_loop import PHASES
from workflow.bench.probes.scaling import Work, by_step, modelled, spread, totals

LINKS = {"all_reduce": AlphaBeta(1e-3, 1e-9), "broadcast": AlphaBeta(2e-3, 1e-9)}


def phases(**ms: float) -> dict[str, float]:
    return {**dict.fromkeys(PHASES, 0.0), **ms}


LOCAL = {
    100: phases(forward=6.0, backward=14.0, factor=3.0, precondition=2.0, update=1.0),
    50: phases(forward=3.0, backward=7.0, factor=3.0, precondition=2.0, update=1.0),
}


def test_one_worker_costs_what_it_costs_alone():
    found = modelled(1, LOCAL, [{"all_reduce": 1000}], Work(4000, {}, 1.0), LINKS)
    assert found["step"] == pytest.approx(sum(LOCAL[100].values()))
    assert found["communication"] == found["gradients"] == 0


def test_the_model_of_four_workers_by_hand():
    """Truth: 20 / 4 + 3 + 2 + 1 ms; a ring of 4 sends 6 messages; one step in two speaks."""
    found = modelled(4, LOCAL, [{"all_reduce": 8_000_000}, {}], Work(4_000_000, {}, 1.0), LINKS)
    assert found["divided"] == pytest.approx(5.0)
    assert found["gradients"] == pytest.approx(6 * 1.0 + 1.5 * 4.0)
    assert found["communication"] == pytest.approx((6 * 1.0 + 1.5 * 8.0) / 2)
    assert found["step"] == pytest.approx(5 + 3 + 2 + 1 + 12 + 9)


def test_spread_refreshes_cost_the_most_loaded_rank_and_a_broadcast_an_owner():
    """Truth: costs 3, 2, 1 over two ranks are 3 and 2 + 1; over four ranks three of them own a layer."""
    work = Work(0, {"a": 3.0, "b": 2.0, "c": 1.0}, 1.0)
    assert spread(work, 1) == (1.0, 1)
    assert spread(work, 2) == (0.5, 2)
    assert spread(work, 4) == (0.5, 3)
    found = modelled(2, LOCAL, [{"broadcast": 1_000_000}], work, LINKS)
    assert found["factor"] == pytest.approx(1.5)
    assert found["communication"] == pytest.approx(2 * (2.0 + 0.5))


def test_bytes_of_ranks_are_put_together_once():
    """An all-reduce's payload is every rank's own; a broadcast's counts where it leaves."""
    ranks = [[{"all_reduce": 8, "broadcast": 5}, {}], [{"all_reduce": 8}, {"broadcast": 7}]]
    assert by_step(ranks) == [{"all_reduce": 8, "broadcast": 5}, {"broadcast": 7}]
    assert totals(ranks) == {"all_reduce": 8, "broadcast": 12}


def test_measured_and_modelled_rows():
    subject = autoencoder(batch_size=16)
    found = contenders(subject, 1e-4, "sgd", "mkor", "kaisa")
    rows = list(scaling.rows(subject, found, "cpu", "here", (1, 2), repeats=1, payloads=(256, 4096)))
    steps = [row for row in rows if row.quantity == "step_ms"]
    assert {row.workers for row in steps if row.source == "measured"} == {1, 2}
    assert {row.workers for row in steps if row.source == "model"} == {1, 2, 4, 8, 16}  # one example a worker at last
    assert {row.optimizer for row in steps} == {"sgd", "mkor", "kaisa"}
    assert all(row.value > 0 for row in steps)
    assert all(row.batch == 16 // row.workers for row in steps)
    # Truth: 64-6-4-6-64 with biases: inputs 65 + 7 + 5 + 7, outputs 6 + 4 + 6 + 64, and a count a layer.
    sent = {(row.optimizer, row.collective): row.value for row in rows if row.quantity == "sent_bytes"}
    assert sent["mkor", "all_reduce"] == 4 * (84 + 80 + 4)
    triangles = sum(d * (d + 1) // 2 for d in (65, 7, 5, 7, 6, 4, 6, 64))
    assert sent["kaisa", "all_reduce"] == 4 * (triangles + 4)
    assert sent["kaisa", "broadcast"] == 4 * sum(d * d + d for d in (65, 7, 5, 7, 6, 4, 6, 64))
    assert not any(optimizer == "sgd" for optimizer, _ in sent)
    links = {(row.quantity, row.collective): row.value for row in rows if row.quantity in ("alpha_us", "beta_ns")}
    assert len(links) == 4
    assert all(value >= 0 for value in links.values())


def test_one_worker_alone_has_no_model():
    subject = autoencoder(batch_size=16)
    rows = list(scaling.rows(subject, contenders(subject, 1e-4, "sgd"), "cpu", "here", (1,), repeats=1))
    assert {row.source for row in rows} == {"measured"}
