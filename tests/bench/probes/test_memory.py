"""The memory probe: formulas by method against the computed and the true state; a measurement in a fresh process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from baselines import available
from baselines.kfac.kaisa import KAISA
from baselines.natural.eva import Eva
from baselines.natural.hylo import HyLo
from mkor_core import MKOR, Method
from mkor_core.capture.statistics import LayerShape
from tests.support.small_models import autoencoder, images, tokens
from workflow.bench.probes import _ranks, memory
from workflow.bench.probes._optimizers import optimizers
from workflow.bench.probes._state_bytes import (
    LayerRows,
    computed_first_order_bytes,
    first_order_bytes,
    preconditioner_bytes,
    rows_by_layer,
)
from workflow.bench.probes._timed_loop import TimedLoop

FLOAT32_BYTES = 4
COUNTER = 8  # bytes of an int64
MODELS = [images(), tokens(), autoencoder()]
FIRST_ORDER = {"sgd": {"momentum_buffer"}, "lamb": {"exp_avg", "exp_avg_sq"}}
"""Tensors as large as the parameter, by optimizer."""


def formula(method: Method, layers: Sequence[LayerRows]) -> dict[str, int]:
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
                    add(f"{side}_scale", FLOAT32_BYTES)
                    if method.window is not None:
                        add(f"{side}_weights", FLOAT32_BYTES * method.window)
                        add(f"{side}_dropped", FLOAT32_BYTES)
            case KAISA():
                add("batches", COUNTER)
                for side, d in sides:
                    add(side, FLOAT32_BYTES * d * d)
                    if method.compute_method == "eigen":
                        add(f"{side}_vectors", FLOAT32_BYTES * d * d)
                        add(f"{side}_values", FLOAT32_BYTES * d)
                    else:
                        add(f"{side}_inverse", FLOAT32_BYTES * d * d)
            case HyLo():
                kept = max(int(method.sample_fraction * rows), 1)
                for side, d in sides:
                    add(side, FLOAT32_BYTES * kept * d)
                add("kernel_inverse", FLOAT32_BYTES * kept * kept)
            case Eva():
                for side, d in sides:
                    add(side, FLOAT32_BYTES * d)
                add("batches", COUNTER)
    return sizes


def stepped(model, label: str) -> TimedLoop:
    (optimizer,) = optimizers(model, 1e-4, [label])
    loop = TimedLoop(model, optimizer, "cpu")
    loop.step()
    return loop


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("label", [label for label in memory.OPTIMIZERS if label != "base"])
def test_computed_bytes_are_those_of_the_formulas_and_of_the_true_state(model, label):
    """Truth: the formulas, and the state that the method holds after a step."""
    loop = stepped(model, label)
    layers = rows_by_layer(loop.model, model.data.exclude, loop.step)
    computed = preconditioner_bytes(loop.preconditioner.method, layers)
    assert computed == formula(loop.preconditioner.method, layers) == loop.preconditioner.memory_by_tensor()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("label", available())
def test_every_method_s_state_can_be_computed(model, label):
    """Truth: the state after a step."""
    loop = stepped(model, label)
    if loop.preconditioner is not None:
        layers = rows_by_layer(loop.model, model.data.exclude, loop.step)
        assert preconditioner_bytes(loop.preconditioner.method, layers) == loop.preconditioner.memory_by_tensor()
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
    assert computed_first_order_bytes(model, optimizer) == dict.fromkeys(FIRST_ORDER[name], FLOAT32_BYTES * numbers)


def test_mkor_keeps_two_inverse_factors():
    """Truth: by hand, for a layer of 3 outputs and 5 inputs: 9 + 25 numbers, two scales and vectors, one count."""
    assert preconditioner_bytes(MKOR(), [LayerRows(LayerShape(3, 5), 7)]) == {
        "updates": 8,
        "left_vectors": 12,
        "left": 36,
        "left_scale": 4,
        "right_vectors": 20,
        "right": 100,
        "right_scale": 4,
    }
    half = preconditioner_bytes(MKOR(factor_dtype=torch.bfloat16), [LayerRows(LayerShape(3, 5), 7)])
    assert (half["left"], half["right"]) == (18, 50)


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
    assert {row.quantity for row in rows} == {
        *("peak", "peak_over_start", "parameters", "gradients", "first_order_state", "preconditioner_state")
    }
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
