"""The sharding probe: what ranks keep and send equals the formulas, and live bytes are counted."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.support.small_models import autoencoder
from workflow.bench.probes import sharding
from workflow.bench.probes._live_bytes import LiveBytes

LABELS = ("base", "mkor_owners_ddp", "base_sharded", "mkor_owners_sharded", "mkor_windowed_sharded", "eva_sharded")


@pytest.fixture(scope="module")
def rows() -> list[sharding.Row]:
    # 64-6-4-6-64: on three ranks no width is divided evenly, and the third has no rows of the layer of 4.
    return list(sharding.rows(autoencoder(batch_size=24), LABELS, (3,), "test-cpu"))


def test_what_ranks_keep_and_send_is_what_the_formulas_give(rows):
    for row in rows:
        if row.quantity != "peak_live":
            assert row.bytes == row.computed_bytes, row
    assert {row.rank for row in rows} == {0, 1, 2}
    assert {row.optimizer for row in rows} == {*LABELS, "sgd", "sgd_sharded"} - {"base", "base_sharded"}


def test_uneven_parts_by_hand(rows):
    """Truth: of 64, 6 and 4 rows three ranks get 22, 22, 20; 2, 2, 2; and 2, 2, 0, each with a bias's number."""
    kept = {(row.optimizer, row.rank): row.bytes for row in rows if row.quantity == "parameters"}
    for rank, (of_64, of_4) in enumerate([(22, 2), (22, 2), (20, 0)]):
        assert kept["sgd_sharded", rank] == 4 * (2 * 65 + of_4 * 7 + 2 * 5 + of_64 * 7)
        assert kept["sgd", rank] == 4 * (6 * 65 + 4 * 7 + 6 * 5 + 64 * 7)


def test_owners_exchange_blocks_and_blocks_exchange_sums(rows):
    sent = {(row.optimizer, row.quantity, row.collective) for row in rows if row.quantity.startswith("sent")}
    collectives = {label: {name for shown, _, name in sent if shown == label} for label in LABELS}
    assert collectives["mkor_owners_ddp"] == {"all_reduce", "broadcast"}
    assert collectives["mkor_owners_sharded"] == {"all_reduce", "all_to_all"}
    assert collectives["mkor_windowed_sharded"] == collectives["eva_sharded"] == {"all_reduce"}
    assert ("mkor_owners_sharded", "sent_otherwise", "all_reduce") not in sent
    assert ("mkor_windowed_sharded", "sent_otherwise", "all_reduce") in sent


def test_an_owner_has_the_whole_gradient_of_a_layer_at_some_time(rows):
    """Truth: the two largest layers have 390 and 448 numbers, and an owner each; windows need no whole gradient."""
    live = {(row.optimizer, row.rank): row.bytes for row in rows if row.quantity == "peak_live"}
    assert sum(live["mkor_owners_sharded", rank] >= 4 * 390 for rank in range(3)) >= 2
    assert 0 < live["eva_sharded", 0] < live["mkor_owners_sharded", 0]
    assert ("sgd_sharded", 0) not in live


def test_live_bytes_are_those_of_memory_that_is_not_freed():
    given = torch.ones(100)
    with LiveBytes() as live:
        view = given[:50]
        kept = view + 1  # 200 bytes
        assert (live.now, live.peak) == (200, 200)
        kept.add_(given[50:])
        for _ in range(3):
            del_me = given * 2  # 400 bytes, one at a time but for the new one
        assert live.now == 600
        del del_me
        gc.collect()
        assert live.now == 200
    assert live.peak == 1000
    assert kept[0] == 3
