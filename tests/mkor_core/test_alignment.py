"""The operands of products start on the bytes from which a GPU loads wide words. Truth: their strides, on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baselines import KAISA
from baselines.kfac.thermo_kfac import ThermoKFAC
from baselines.muon.newton_muon import NewtonMuon
from baselines.natural._wake import WakeRegularized
from baselines.natural.foof import FOOF
from benchmarks.models import EncoderLayer
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.devices import ALIGNMENT, aligned
from mkor_core.engines import engine
from mkor_core.maths.linalg import product
from tests.support.operators import Operators
from workflow.bench.probes._counting import META, Counting

PRODUCTS = {"mm", "mv", "bmm", "addmm", "addmm_", "addmv", "addmv_", "baddbmm", "baddbmm_", "addbmm", "addbmm_"}
"""Operators that multiply matrices; their last two tensors are the operands."""


class Operands(Operators):
    """Collects the operands of products that have rows of unaligned starts."""

    @property
    def unaligned(self) -> list[tuple[Any, ...]]:
        operands = [
            (operator.name, operand)
            for operator in self.named(*PRODUCTS)
            for operand in [arg for arg in operator.args if isinstance(arg, Tensor)][-2:]
        ]
        return [(name, tuple(x.shape), x.stride()) for name, x in operands if not starts_well(x)]


def starts_well(operand: Tensor) -> bool:
    """Return whether all rows, or all columns, lie in one piece and start on multiples of `ALIGNMENT`.

    A column alone, ``[d, 1]``, counts as d rows, as a GPU's library takes it. A vector ``[d]`` may have any step.
    """
    if operand.dim() == 1:
        return operand.storage_offset() * operand.element_size() % ALIGNMENT == 0
    ways = [operand] if operand.shape[-1] == 1 else [operand, operand.mT]
    return any(starts_plainly(way) for way in ways)


def starts_plainly(rows: Tensor) -> bool:
    places = [rows.storage_offset(), *(step for size, step in zip(rows.shape, rows.stride(), strict=True) if size > 1)]
    if rows.shape[-1] > 1 and places.pop() != 1:
        return False
    return all(place * rows.element_size() % ALIGNMENT == 0 for place in places)


def models() -> Iterable[nn.Module]:
    yield nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    yield nn.Sequential(nn.Conv2d(4, 16, 2), nn.Flatten(), nn.Linear(16 * 9, 32))


METHODS: list[Method] = [
    MKOR(inverse_update_period=1),
    MKOR(inverse_update_period=1, window=4),
    MKOR(inverse_update_period=1, sides="input"),
    KAISA(factor_update_period=1, inverse_update_period=1),
    KAISA(factor_update_period=1, inverse_update_period=1, compute_method="inverse"),
    FOOF(factor_update_period=1, inverse_update_period=1),
    NewtonMuon(update_period=1),
    ThermoKFAC(factor_update_period=1, inverse_update_period=1),
    *(
        WakeRegularized(
            subproblem=subproblem,
            damping=0.1,
            factor_decay=0.9,
            rms_clip=None,
            factor_update_period=1,
            inverse_update_period=1,
            lr=lambda: 0.1,
        )
        for subproblem in ("SO", "Q")
    ),
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
            assert len(seen.named(*PRODUCTS)) > 0
            assert seen.unaligned == []


LARGE: dict[str, tuple[Method, int]] = {
    "mkor": (MKOR(inverse_update_period=1), 2),
    "window 4": (MKOR(inverse_update_period=1, window=4), 6),
    "kaisa, eigen": (KAISA(factor_update_period=1, inverse_update_period=1), 2),
    "kaisa, inverse": (KAISA(factor_update_period=1, inverse_update_period=1, compute_method="inverse"), 2),
}
"""Methods, and the steps after which all their products have occurred: a full window of 4 is cut in the fifth."""


@pytest.mark.parametrize("name", LARGE)
def test_no_product_at_the_shapes_of_bert_large_has_an_unaligned_operand(name: str):
    """On the meta device: stacks of 8, 2 and 2 layers with biases, J_R of 1025 and 4097. The hooks' products count."""
    method, steps = LARGE[name]
    with META:
        model = nn.Sequential(EncoderLayer(1024, 4096), EncoderLayer(1024, 4096))
    preconditioner = Preconditioner(model, method, lr=0.1)
    with Counting(), Operands() as seen:  # `Counting` answers where a value is read
        for _ in range(steps):
            model.zero_grad()
            model(torch.empty(2, 128, 1024, device=META)).square().mean().backward()
            preconditioner.step()
    assert len(seen.named(*PRODUCTS)) > 100
    assert seen.unaligned == []


UNALIGNED = {
    "rows": (torch.empty(33, 33), torch.empty(33, 32)),
    "columns": (torch.empty(33, 33).T, torch.empty(33, 32)),
    "a stack": (torch.empty(260).as_strided((2, 32, 4), (130, 4, 1)), torch.empty(2, 4, 32)),
    "a column": (torch.empty(33, 1), torch.empty(1, 32)),
    "the start": (torch.empty(32, 36)[:, 1:33], torch.empty(32, 32)),
    "no piece": (torch.empty(32, 64)[:, ::2], torch.empty(32, 32)),
}


@pytest.mark.parametrize("name", UNALIGNED)
def test_the_check_finds(name: str):
    """A factor with a bias that was stored without care, 33 contiguous columns, and other operands."""
    first, second = UNALIGNED[name]
    with Operands() as seen:
        first @ second
    assert (tuple(first.shape), first.stride()) in [(shape, stride) for _, shape, stride in seen.unaligned]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 5, 16, 33])
def test_an_aligned_product_is_the_product(columns: int, dtype: torch.dtype):
    a, b = torch.randn(7, 9).to(dtype), torch.randn(9, columns).to(dtype)
    result = product(a, b)
    assert result.stride(0) * dtype.itemsize % ALIGNMENT == 0
    torch.testing.assert_close(result, a @ b)
    assert not aligned((3, columns), dtype, a.device).any()
