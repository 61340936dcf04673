"""The operands of products start on the bytes from which a GPU loads wide words. Truth: their strides, on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from baselines import KAISA
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.engines import engine
from mkor_core.maths.linalg import ALIGNMENT, aligned, product

PRODUCTS = {
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.mm.out: (0, 1),
    torch.ops.aten.bmm.default: (0, 1),
    torch.ops.aten.addmm_.default: (1, 2),
    torch.ops.aten.baddbmm_.default: (1, 2),
    torch.ops.aten.baddbmm.default: (1, 2),
    torch.ops.aten.addmm.default: (1, 2),
}
"""Operators that multiply matrices, and which of their arguments are operands."""
LEAST = 16
"""Operands with fewer rows or columns are those of a window's small matrices."""


class Operands(TorchDispatchMode):
    """Collects the operands of products that have rows of unaligned starts."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.unaligned = 0, list[tuple[Any, ...]]()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        operands = [args[index] for index in PRODUCTS.get(function, ())]
        self.products += bool(operands)
        self.unaligned += [(str(function), tuple(x.shape), x.stride()) for x in operands if not starts_well(x)]
        return function(*args, **(kwargs or {}))


def starts_well(operand: Tensor) -> bool:
    rows, columns = operand.stride()[-2:]
    if min(operand.shape[-2:]) < LEAST:
        return True
    apart = rows if columns == 1 else columns
    return 1 in (rows, columns) and apart * operand.element_size() % ALIGNMENT == 0


def models() -> Iterable[nn.Module]:
    yield nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    yield nn.Sequential(nn.Conv2d(4, 16, 2), nn.Flatten(), nn.Linear(16 * 9, 32))


METHODS: list[Method] = [
    MKOR(inverse_update_period=1),
    MKOR(inverse_update_period=1, window=4),
    MKOR(inverse_update_period=1, sides="input"),
    KAISA(factor_update_period=1, inverse_update_period=1),
    KAISA(factor_update_period=1, inverse_update_period=1, compute_method="inverse"),
]


@pytest.mark.parametrize("is_gathered", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:70])
def test_no_product_of_a_step_has_an_operand_whose_rows_start_between_wide_words(
    method: Method, is_gathered: bool, monkeypatch: pytest.MonkeyPatch
):
    if is_gathered:
        monkeypatch.setattr(engine, "goes_alone", lambda device: False)
    for model, shape in zip(models(), [(8, 32), (8, 4, 4, 4)], strict=True):
        preconditioner = Preconditioner(model, method, lr=0.1)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(shape)).square().mean().backward()
            with Operands() as seen:
                preconditioner.step()
            assert seen.products > 0
            assert seen.unaligned == []


def test_a_factor_with_a_bias_without_care_would_be_found():
    """The check can fail: 33 contiguous columns are unaligned."""
    with Operands() as seen:
        torch.randn(33, 33) @ torch.randn(33, 32)
    assert [shape for _, shape, _ in seen.unaligned] == [(33, 33)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 5, 16, 33])
def test_an_aligned_product_is_the_product(columns: int, dtype: torch.dtype):
    a, b = torch.randn(7, 9).to(dtype), torch.randn(9, columns).to(dtype)
    result = product(a, b)
    assert result.stride(0) * dtype.itemsize % ALIGNMENT == 0
    torch.testing.assert_close(result, a @ b)
    assert not aligned((3, columns), dtype, a.device).any()
