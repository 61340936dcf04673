"""Bytes that ranks keep and send, measured in real processes, against what is computed and formulas by method."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import torch

from baselines import available, method_class
from baselines.kfac.kaisa import KAISA
from baselines.natural.eva import Eva
from baselines.natural.hylo import HyLo
from mkor_core import MKOR, Method
from tests.support.small_models import autoencoder, images, tokens
from workflow.bench.analysis import fits
from workflow.bench.probes import _ranks, communication, memory, scaling, sharding
from workflow.bench.probes._counting import LiveBytes
from workflow.bench.probes._models import optimizers
from workflow.bench.probes._sharding import Setup
from workflow.bench.probes._state_bytes import (
    LayerRows,
    computed_first_order_bytes,
    first_order_bytes,
    preconditioner_bytes,
    rows_by_layer,
)
from workflow.bench.probes._timing import TimedLoop
from workflow.bench.probes.communication import OPTIMIZERS, PLACED, ROWS, of_paper, predicted

DIMENSIONS = (8, 16, 32)
FLOAT = 4
METHODS = sorted(
    {*OPTIMIZERS, *PLACED, "kaisa_mem_opt_sharded", *(name for name in available() if method_class(name) is not None)}
)


def sent_formula(label: str, d: int, workers: int, rank: int) -> dict[str, int]:
    """Return the bytes of one layer's factor update by collective: of a rank, or, for a broadcast, of its source.

    Of a sharded layer a rank has d^2 / workers numbers. It sends them to the owner, rank 0, which sends d^2 / workers
    numbers of the update to every other rank; or a window of 4 columns adds 4 d numbers and two norms, Eva four sums.
    MKOR and Eva add mean vectors and a count, MKOR-H also the loss; in half precision the count goes separately. KAISA
    adds upper triangles of two moments and a count, then its owner broadcasts eigenvectors and eigenvalues to the
    gradient workers, or the update to the other ranks; thermodynamic K-FAC broadcasts nothing. HyLo, CG-FAC and
    B-KFAC gather the rows. RS-KFAC sends as KAISA does, up to its rank. Newton-Muon adds the triangle of one moment and
    three numbers, MKOR-Muon and MAC one mean vector and a count, SMAC mean squares too. FOOF adds one triangle, and
    broadcasts one inverse.
    """
    exchanged = FLOAT * d * d // workers * ((workers - 1) if rank == 0 else 1)
    return {
        "mkor": {"all_reduce": FLOAT * (2 * d + 1)},
        "mkor_h": {"all_reduce": FLOAT * (2 * d + 2)},
        "eva": {"all_reduce": FLOAT * (2 * d + 1)},
        "mkor_bfloat16": {"all_reduce": FLOAT + 2 * 2 * d},
        "kaisa": {"all_reduce": FLOAT * (d * (d + 1) + 1), "broadcast": FLOAT * 2 * (d * d + d)},
        "kaisa_mem_opt": {"all_reduce": FLOAT * (d * (d + 1) + 1), "broadcast": FLOAT * d * d},
        "mkor_owners_ddp": {"all_reduce": FLOAT * (2 * d + 1), "broadcast": FLOAT * d * d},
        "mkor_owners_sharded": {"all_reduce": FLOAT * (2 * d + 1), "all_to_all": exchanged},
        "mkor_windowed_sharded": {"all_reduce": FLOAT * (2 * d + 1 + 4 * d + 2)},
        "eva_sharded": {"all_reduce": FLOAT * (2 * d + 1 + 4)},
        "kaisa_mem_opt_sharded": {"all_reduce": FLOAT * (d * (d + 1) + 2), "all_to_all": exchanged},
        "hylo": {"all_gather": FLOAT * 2 * ROWS * d},
        "cgfac": {"all_gather": FLOAT * 2 * ROWS * d},
        "thermo_kfac": {"all_reduce": FLOAT * (d * (d + 1) + 1)},
        "b_kfac": {"all_gather": FLOAT * 2 * ROWS * d},
        "rs_kfac": {"all_reduce": FLOAT * (d * (d + 1) + 1), "broadcast": FLOAT * 2 * (d * d + d)},
        "newton_muon": {"all_reduce": FLOAT * (d * (d + 1) // 2 + 3)},
        "mkor_muon": {"all_reduce": FLOAT * (d + 1)},
        "mac": {"all_reduce": FLOAT * (d + 1)},
        "smac": {"all_reduce": FLOAT * (2 * d + 1)},
        "foof": {"all_reduce": FLOAT * (d * (d + 1) // 2 + 1), "broadcast": FLOAT * d * d},
    }[label]


@pytest.fixture(scope="module")
def sent_rows() -> list[communication.Row]:
    return list(communication.rows(METHODS, DIMENSIONS, (2, 4), "test-cpu"))


def test_every_method_s_collectives_send_the_predicted_bytes_of_the_formulas(sent_rows):
    assert {(row.optimizer, row.dimension, row.workers) for row in sent_rows} == {
        (label, d, workers) for label in METHODS for d in DIMENSIONS for workers in (2, 4)
    }
    for row in sent_rows:
        formula = sent_formula(row.optimizer, row.dimension, row.workers, row.rank)
        assert row.bytes == row.predicted_bytes == formula[row.collective] > 0, row


def test_only_owners_broadcast(sent_rows):
    broadcasting = {(row.optimizer, row.rank) for row in sent_rows if row.collective == "broadcast"}
    assert broadcasting == {(name, 0) for name in ("kaisa", "foof", "rs_kfac", "kaisa_mem_opt", "mkor_owners_ddp")}
    assert {row.optimizer for row in sent_rows if row.collective == "all_gather"} == {"b_kfac", "cgfac", "hylo"}
    assert {row.rank for row in sent_rows if row.workers == 4 and row.collective == "all_reduce"} == {0, 1, 2, 3}


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


LABELS = ("base", "mkor_owners_ddp", "base_sharded", "mkor_owners_sharded", "mkor_windowed_sharded", "eva_sharded")


@pytest.fixture(scope="module")
def sharded_rows() -> list[sharding.Row]:
    # 64-6-4-6-64: on three ranks no width is divided evenly, and the third has no rows of the layer of 4.
    return list(sharding.rows(autoencoder(batch_size=24), LABELS, (3,), "test-cpu"))


def test_what_ranks_keep_and_send_is_what_the_formulas_give(sharded_rows):
    for row in sharded_rows:
        if row.quantity != "peak_live":
            assert row.bytes == row.computed_bytes, row
    assert {row.rank for row in sharded_rows} == {0, 1, 2}
    assert {row.optimizer for row in sharded_rows} == {*LABELS, "sgd", "sgd_sharded"} - {"base", "base_sharded"}


def test_uneven_parts_by_hand(sharded_rows):
    """Truth: of 64, 6 and 4 rows three ranks get 22, 22, 20; 2, 2, 2; and 2, 2, 0, each with a bias's number."""
    kept = {(row.optimizer, row.rank): row.bytes for row in sharded_rows if row.quantity == "parameters"}
    for rank, (of_64, of_4) in enumerate([(22, 2), (22, 2), (20, 0)]):
        assert kept["sgd_sharded", rank] == 4 * (2 * 65 + of_4 * 7 + 2 * 5 + of_64 * 7)
        assert kept["sgd", rank] == 4 * (6 * 65 + 4 * 7 + 6 * 5 + 64 * 7)


def test_owners_exchange_blocks_and_blocks_exchange_sums(sharded_rows):
    sent = {(row.optimizer, row.quantity, row.collective) for row in sharded_rows if row.quantity.startswith("sent")}
    collectives = {label: {name for shown, _, name in sent if shown == label} for label in LABELS}
    assert collectives["mkor_owners_ddp"] == {"all_reduce", "broadcast"}
    assert collectives["mkor_owners_sharded"] == {"all_reduce", "all_to_all"}
    assert collectives["mkor_windowed_sharded"] == collectives["eva_sharded"] == {"all_reduce"}
    assert ("mkor_owners_sharded", "sent_otherwise", "all_reduce") not in sent
    assert ("mkor_windowed_sharded", "sent_otherwise", "all_reduce") in sent


def test_an_owner_has_the_whole_gradient_of_a_layer_at_some_time(sharded_rows):
    """Truth: the two largest layers have 390 and 448 numbers, and an owner each; windows need no whole gradient."""
    live = {(row.optimizer, row.rank): row.bytes for row in sharded_rows if row.quantity == "peak_live"}
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


COUNTER = 8  # bytes of an int64
MODELS = [images(), tokens(), autoencoder()]
FIRST_ORDER = {"sgd": {"momentum_buffer"}, "lamb": {"exp_avg", "exp_avg_sq"}}
"""Tensors as large as the parameter, by optimizer."""


def state_formula(method: Method, layers: Sequence[LayerRows]) -> dict[str, int]:
    """Return the bytes of a method's state by tensor, written out by hand from the methods' equations.

    MKOR: two inverse factors ``d^2``, their scales and vectors ``rank d``, or ``window`` columns and weights; KAISA:
    two factors and their eigenvectors and eigenvalues, or their inverses, and a count; Eva: two means and a count;
    HyLo: r kept rows ``r (d_in + d_out)`` and a kernel ``r^2``.
    """
    sizes: dict[str, int] = {}

    def add(name: str, size: int) -> None:
        sizes[name] = sizes.get(name, 0) + size

    for (d_out, d_in), rows in layers:
        sides = (("left", d_out), ("right", d_in))
        match method:
            case MKOR():
                number = method.factor_dtype.itemsize
                add("updates", COUNTER)
                for side, d in sides:
                    add(f"{side}_vectors", number * method.rank * d)
                    add(side, number * d * (d if method.window is None else method.window))
                    add(f"{side}_scale", FLOAT)
                    if method.window is not None:
                        add(f"{side}_weights", FLOAT * method.window)
                        add(f"{side}_dropped", FLOAT)
            case KAISA():
                add("batches", COUNTER)
                for side, d in sides:
                    add(side, FLOAT * d * d)
                    if method.compute_method == "eigen":
                        add(f"{side}_vectors", FLOAT * d * d)
                        add(f"{side}_values", FLOAT * d)
                    else:
                        add(f"{side}_inverse", FLOAT * d * d)
            case HyLo():
                kept = max(int(method.sample_fraction * rows), 1)
                for side, d in sides:
                    add(side, FLOAT * kept * d)
                add("kernel_inverse", FLOAT * kept * kept)
            case Eva():
                for side, d in sides:
                    add(side, FLOAT * d)
                add("batches", COUNTER)
    return sizes


def stepped(model, label: str) -> TimedLoop:
    (optimizer,) = optimizers(model, 1e-4, [label])
    loop = TimedLoop(model, optimizer, "cpu")
    loop.step()
    return loop


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("label", sorted({*memory.OPTIMIZERS, *available()} - {"base"}))
def test_every_method_s_state_can_be_computed(model, label):
    """Truth: the state after a step; and the formulas, of the methods that have one here."""
    loop = stepped(model, label)
    if loop.preconditioner is not None:
        layers, method = rows_by_layer(loop.model, model.data.exclude, loop.step), loop.preconditioner.method
        computed = preconditioner_bytes(method, layers)
        assert computed == loop.preconditioner.memory_by_tensor()
        assert computed == state_formula(method, layers) or label not in memory.OPTIMIZERS
    else:
        (optimizer,) = optimizers(model, 1e-4, [label])
        measured = first_order_bytes(loop.optimizer)
        assert measured
        computed = computed_first_order_bytes(model, optimizer)
        if label in ("kld_wrm", "singd") and not computed:
            pytest.skip(f"{label} cannot step on the meta device without statistics of its layers")
        # A real batch leaves some layers without a gradient, e.g. a pooler that the loss does not use.
        assert computed.keys() == measured.keys()
        assert all(computed[name] >= size > 0 for name, size in measured.items())


@pytest.mark.parametrize("name", sorted(FIRST_ORDER))
def test_first_order_state_is_that_of_the_formula(name):
    """Truth: as many numbers as the parameters for every tensor."""
    model = images()
    (optimizer,) = optimizers(model, 1e-4, [name])
    numbers = sum(parameter.numel() for parameter in model.data.model(0).parameters())
    assert computed_first_order_bytes(model, optimizer) == dict.fromkeys(FIRST_ORDER[name], FLOAT * numbers)


def test_rows_are_examples_or_leading_indices():
    model = images(batch_size=8)
    loop = stepped(model, "mkor")
    assert [rows for _, rows in rows_by_layer(loop.model, (), loop.step)] == [8, 8, 8]
    model = tokens(batch_size=4)
    loop = stepped(model, "mkor")
    layers = rows_by_layer(loop.model, model.data.exclude, loop.step)
    assert {rows for _, rows in layers} == {4 * 6, 4}  # tokens; sequences, in the pooler and the head behind it


@pytest.mark.parametrize("model", [autoencoder(), tokens()], ids=lambda model: model.name)
def test_measured_is_computed_in_a_fresh_process(model):
    (optimizer,) = optimizers(model, 1e-4, ["kaisa"])
    (rows,) = _ranks.run(1, memory.rows, model, optimizer, "cpu", "test-cpu")
    by_kind = {(row.quantity, row.tensor): row for row in rows}
    states = {"first_order_state", "preconditioner_state"}
    assert {row.quantity for row in rows} == states | {"peak", "peak_over_start", "parameters", "gradients"}
    numbers = sum(parameter.numel() for parameter in model.data.model(0).parameters())
    assert by_kind["parameters", None].bytes == 4 * numbers
    for row in rows:
        if row.computed_bytes is not None:
            assert row.bytes == row.computed_bytes, row
    assert {tensor for kind, tensor in by_kind if kind == "first_order_state"} == FIRST_ORDER[model.base]
    assert 0 <= by_kind["peak_over_start", None].bytes < by_kind["peak", None].bytes


def test_a_state_of_many_megabytes_shows_in_the_peak():
    """KAISA's 8 matrices of 1,024 x 1,024 are 34 MB; SGD has none of them."""
    model = autoencoder(hidden=(1024,))
    peaks = {}
    for optimizer in optimizers(model, 1e-4, ["base", "kaisa"]):
        (rows,) = _ranks.run(1, memory.rows, model, optimizer, "cpu", "test-cpu")
        peaks[optimizer.label] = next(row.bytes for row in rows if row.quantity == "peak_over_start")
    assert peaks["kaisa"] - peaks["sgd"] > 8 * 2**20


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
