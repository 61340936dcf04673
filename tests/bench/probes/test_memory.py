"""The memory probe: formulas against the tensors themselves, and a real measurement in a fresh process."""

from __future__ import annotations

import pytest
import torch

from mkor_core import MKOR, Method
from mkor_core.method import LayerShape
from tests.support.small_subjects import autoencoder, images, tokens
from workflow.bench.probes import _ranks, memory
from workflow.bench.probes._models import contenders
from workflow.bench.probes._timed_loop import Loop
from workflow.bench.probes.memory import LayerRows, preconditioner_bytes


@pytest.mark.parametrize("subject", [images(), tokens(), autoencoder()], ids=lambda subject: subject.name)
@pytest.mark.parametrize("label", memory.METHODS)
def test_formulas_give_the_bytes_of_the_true_state(subject, label):
    """Truth: the state that the method holds after two steps."""
    (contender,) = contenders(subject, 1e-4, label)
    loop = Loop(subject, contender, "cpu")
    loop.step()
    layers = memory.rows_by_layer(loop.model, subject.data.exclude, loop.step)
    assert preconditioner_bytes(loop.preconditioner.method, layers) == loop.preconditioner.memory_by_tensor()


def test_mkor_keeps_two_inverse_factors():
    """Truth: by hand, for a layer of 3 outputs and 5 inputs: 9 + 25 numbers, two vectors, one count."""
    assert preconditioner_bytes(MKOR(), [LayerRows(LayerShape(3, 5), 7)]) == {
        "updates": 8,
        "left_vectors": 12,
        "left": 36,
        "right_vectors": 20,
        "right": 100,
    }
    half = preconditioner_bytes(MKOR(factor_dtype=torch.bfloat16), [LayerRows(LayerShape(3, 5), 7)])
    assert (half["left"], half["right"]) == (18, 50)


def test_a_method_without_a_formula_is_refused():
    class Other(MKOR.__base__):
        statistic = initial_state = accumulates = refreshes = accumulate = refresh = precondition = None

    assert issubclass(Other, Method)
    with pytest.raises(TypeError, match="Other"):
        preconditioner_bytes(Other(), [LayerRows(LayerShape(3, 5), 7)])


def test_rows_are_examples_or_leading_indices():
    subject = images(batch_size=8)
    (contender,) = contenders(subject, 1e-4, "mkor")
    loop = Loop(subject, contender, "cpu")
    assert [rows for _, rows in memory.rows_by_layer(loop.model, (), loop.step)] == [8, 8, 8]
    subject = tokens(batch_size=4)
    loop = Loop(subject, contenders(subject, 1e-4, "mkor")[0], "cpu")
    found = memory.rows_by_layer(loop.model, subject.data.exclude, loop.step)
    assert {rows for _, rows in found} == {4 * 6, 4}  # tokens; sequences, in the pooler and the head behind it


@pytest.mark.parametrize("subject", [autoencoder(), tokens()], ids=lambda subject: subject.name)
def test_measured_is_computed_in_a_fresh_process(subject):
    (contender,) = contenders(subject, 1e-4, "kaisa")
    (rows,) = _ranks.run(1, memory.rows_of, subject, contender, "cpu", "here")
    by_kind = {(row.quantity, row.tensor): row for row in rows}
    assert {row.quantity for row in rows} == {
        *("peak", "peak_over_start", "parameters", "gradients", "first_order_state", "preconditioner_state")
    }
    numbers = sum(parameter.numel() for parameter in subject.data.model(0).parameters())
    assert by_kind["parameters", None].bytes == 4 * numbers
    for row in rows:
        if row.computed_bytes is not None:
            assert row.bytes == row.computed_bytes, row
    assert {tensor for kind, tensor in by_kind if kind == "first_order_state"} == set(memory.FIRST_ORDER[subject.base])
    assert 0 <= by_kind["peak_over_start", None].bytes < by_kind["peak", None].bytes


def test_a_state_of_many_megabytes_shows_in_the_peak():
    """KAISA's 8 matrices of 1,024 x 1,024 are 34 MB; SGD has none of them."""
    subject = autoencoder(hidden=(1024,))
    peaks = {}
    for contender in contenders(subject, 1e-4, "sgd", "kaisa"):
        (rows,) = _ranks.run(1, memory.rows_of, subject, contender, "cpu", "here")
        peaks[contender.label] = next(row.bytes for row in rows if row.quantity == "peak_over_start")
    assert peaks["kaisa"] - peaks["sgd"] > 8 * 2**20
