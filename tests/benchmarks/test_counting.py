"""Counts of kernels, host waits and bytes on the meta device: single operators, and what a preconditioner adds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.counting import count_steps, method_with_period, table, training_step
from benchmarks.models import Encoder
from mkor_core import MKOR
from workflow.bench.probes._counting import META, Counting, Counts
from workflow.bench.support.config import ConfigError

N = 10


def vector() -> torch.Tensor:
    return torch.empty(N, device=META)


def matrix() -> torch.Tensor:
    return torch.empty(N, N, device=META)


F32 = 4
OPERATIONS = {
    # kernels, waits, bytes read, bytes written
    "add": (lambda: vector() + vector(), (1, 0, 2 * N * F32, N * F32)),
    "add in place": (lambda: vector().add_(vector()), (1, 0, 2 * N * F32, N * F32)),
    "copy": (lambda: vector().copy_(vector()), (1, 0, N * F32, N * F32)),
    "fill": (lambda: vector().zero_(), (1, 0, 0, N * F32)),
    "product": (lambda: matrix() @ matrix(), (1, 0, 2 * N * N * F32, N * N * F32)),
    "product into": (lambda: torch.mm(matrix(), matrix(), out=matrix()), (1, 0, 2 * N * N * F32, N * N * F32)),
    "outer product": (lambda: matrix().addr_(vector(), vector()), (1, 0, (N * N + 2 * N) * F32, N * N * F32)),
    "expanded": (lambda: vector().expand(N, N).sum(), (1, 0, N * F32, F32)),
    "embedding": (
        lambda: matrix()[torch.empty(2, dtype=torch.int64, device=META)],
        (1, 0, 2 * N * F32 + 2 * 8, 2 * N * F32),
    ),
    "foreach": (lambda: torch._foreach_add_([vector(), vector()], 1.0), (1, 0, 2 * N * F32, 2 * N * F32)),
    "fused": (
        lambda: torch._fused_sgd_(
            *([vector()], [vector()], [vector()]),
            weight_decay=0.1,
            momentum=0.9,
            lr=0.1,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        ),
        (1, 0, 3 * N * F32, 2 * N * F32),
    ),
    "views": (lambda: matrix().T.reshape(-1, N)[:2].unsqueeze(0).detach(), (0, 0, 0, 0)),
    "allocation": (lambda: torch.empty_like(matrix()), (0, 0, 0, 0)),
    "host": (lambda: torch.ones(N) + 1, (0, 0, 0, 0)),
    "item": (lambda: vector()[0].item(), (0, 1, 0, 0)),
    "number to tensor": (lambda: torch.as_tensor(0.5, device=META), (0, 1, 0, 0)),
    "copy to the host": (lambda: vector().to("cpu"), (0, 1, 0, 0)),
    "copy from the host": (lambda: torch.ones(N).to(META), (0, 1, 0, 0)),
    "asynchronous copy to the host": (lambda: torch.empty(N).copy_(vector(), non_blocking=True), (0, 0, 0, 0)),
    "new tensor": (lambda: vector().new_tensor([1.0, 2.0]), (0, 1, 0, 0)),
    "errors of a decomposition": (lambda: torch.linalg.eigh(matrix()), (1, 1, N * N * F32, (N * N + N) * F32)),
    "errors of an inverse": (lambda: torch.linalg.inv(matrix()), (1, 1, N * N * F32, N * N * F32 + 4)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operator_is_counted(name):
    call, expected = OPERATIONS[name]
    with Counting() as counts:
        call()
    assert (counts.kernels, counts.waits, counts.bytes_read, counts.bytes_written) == expected


def test_operators_whose_results_depend_on_values_are_waits():
    mask = torch.empty(N, dtype=torch.bool, device=META)
    for call in (mask.nonzero, lambda: vector()[mask], lambda: vector().masked_select(mask)):
        with Counting() as counts, pytest.raises((NotImplementedError, RuntimeError)):
            call()
        assert counts.waits == 1


def test_a_foreach_operator_tells_over_how_many_tensors_it_went():
    with Counting() as counts:
        torch._foreach_mul_([vector() for _ in range(7)], 2.0)
    assert (counts.kernels, counts.foreach_tensors) == (1, 7)


def test_counts_add_up():
    with Counting() as one:
        vector() + 1
    with Counting() as both:
        vector() + 1
        matrix() @ matrix()
    rest = both.minus(one)
    assert rest.by_operator == {"mm": 1}
    assert rest.bytes_by_operator == {"mm": 3 * N * N * F32}
    assert one.minus(both).by_operator == {"mm": -1}
    assert both.minus(rest) == one
    assert both.minus(both) == Counts()


def test_a_training_step_counts_forward_and_backward():
    """Truth: by hand. Forward: the product, the sum. Backward: the sum's gradient, a product and a sum of rows."""
    model = nn.Sequential(nn.Linear(3, 2, device=META), Sum())
    counts = training_step(model, torch.empty(5, 3, device=META), None)
    assert counts.by_operator == {"addmm": 1, "sum": 2, "ones_like": 1, "mm": 1}


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


def test_a_step_counts_the_hooks_and_the_preconditioner():
    """An update costs more than a plain step, every layer costs as much as the first, and the model's part is none."""
    with META:
        small, large = Encoder(1, 16, 32), Encoder(3, 16, 32)
    inputs = torch.empty(2, 4, 16, device=META)
    few, many = (count_steps(MKOR(inverse_update_period=2), model, inputs) for model in (small, large))
    assert 0 < few.plain.kernels < few.update.kernels
    assert few.plain.kernels <= many.plain.kernels
    assert few.update.bytes < many.update.bytes
    assert few.plain.bytes > 2 * sum(p.numel() for p in small.parameters()) * F32


def test_the_command_prints_a_row_for_each_method(monkeypatch):
    def small() -> Encoder:
        with META:
            return Encoder(1, 1024, 8)

    monkeypatch.setattr("benchmarks.counting.bert_large", small)
    lines = list(table(["mkor", "eva"], tokens=2, examples=2))
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["mkor", "eva"]
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    detailed = list(table(["kaisa"], tokens=2, examples=2, detail=True))
    assert any(line.split()[:2] == ["plain", "mm"] and line.endswith("GB") for line in detailed)
    assert any(line.split()[:3] == ["update", "wait:", "_linalg_eigh"] for line in detailed)


def test_only_second_order_methods_have_a_step_to_count():
    with pytest.raises(ConfigError, match="'sgd': must be a second-order method"):
        method_with_period("sgd", 2)
