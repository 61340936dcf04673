"""A short trial of every method on a device: does it step, does the host wait, and are its updates right."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.contenders import OptimizerContender, of_method
from benchmarks.methods import BenchmarkMethod, build_or_reason
from benchmarks.models import Block

CYCLES: Final = 2
"""Cycles of an update and a plain step under sync-debug mode, after one without it, which sets up the state."""
_WAIT: Final = "synchronizing CUDA operation"
"""A part of the message of `torch.cuda.set_sync_debug_mode`."""


class Trial(NamedTuple):
    """One method on one block."""

    block: str
    optimizer: str
    status: str
    """``ok``; ``waits``: it works, but the host waits for the device within steps; ``not finite``: a weight is NaN or
    infinite; ``missing``: its package is not installed."""
    waits: int | None
    """Waits of the host in `CYCLES` cycles; None on a CPU."""
    one_minus_cosine: float | None
    """Between the updates here and in float64 on the CPU, of a second-order method; None on a model with BatchNorm,
    whose gradients of a few examples depend on rounding."""
    detail: str | None
    """The first wait, or the missing package."""
    device: str
    hardware: str
    torch: str


def trial(method: BenchmarkMethod, block: Block, device: torch.device, hardware: str) -> Trial:
    """Return what a method does on a block at its narrowest width."""
    width = block.widths[0]
    contender = of_method(method, block, width, device)
    waits: list[str] | None = None
    difference: float | None = None
    if isinstance(contender, str):
        status, detail = "missing", contender
    else:
        has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in contender.model.modules())
        if method.is_second_order and not has_batch_norm:
            difference = update_difference(method, block, width, device)
        if device.type == "cuda":
            waits = waits_in_steps(method, block, width, device)
        _steps(contender)
        finite = all(bool(weight.isfinite().all()) for weight in contender.model.parameters())
        status = "not finite" if not finite else "waits" if waits else "ok"
        detail = waits[0] if waits else ""
    return Trial(
        block.name,
        method.label,
        status,
        None if waits is None else len(waits),
        difference,
        detail or None,
        device.type,
        hardware,
        str(torch.__version__),
    )


def waits_in_steps(method: BenchmarkMethod, block: Block, width: int, device: torch.device) -> list[str]:
    """Return where the host waits for the GPU in whole training steps: source lines, one for each wait.

    The first steps, which set up the state, may wait.
    """
    try:
        contender = _warmed_up(method, block, width, device)
        with _sync_debug("error"):
            _steps(contender)
    except RuntimeError as error:
        if _WAIT not in str(error):
            raise
    else:
        return []
    contender = _warmed_up(
        method, block, width, device
    )  # the error may have left the other one in the middle of a step
    with _sync_debug("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _steps(contender)
    return [f"{one.filename}:{one.lineno}" for one in caught if _WAIT in str(one.message)]


def _warmed_up(method: BenchmarkMethod, block: Block, width: int, device: torch.device) -> OptimizerContender:
    contender = of_method(method, block, width, device)
    assert not isinstance(contender, str)  # another one has been made
    contender.warm_up()
    return contender


def _steps(contender: OptimizerContender) -> None:
    for _ in range(2 * CYCLES):
        contender.give_gradients()
        contender.optimizer.step()


@contextmanager
def _sync_debug(mode: str) -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def update_difference(method: BenchmarkMethod, block: Block, width: int, device: torch.device) -> float:
    """Return 1 - cos of the updates after an update and a plain step, here and in float64 on the CPU."""
    torch.manual_seed(0)
    reference, inputs = block.make(width).double().train(), block.few(width).double()
    here = copy.deepcopy(reference).float().to(device)
    expected = _updates(method, reference, inputs)
    found = _updates(method, here, inputs.float().to(device))
    return 1 - float(nn.functional.cosine_similarity(found.cpu().double(), expected, dim=0))


def _updates(method: BenchmarkMethod, model: nn.Module, inputs: Tensor) -> Tensor:
    built = build_or_reason(method, model, 2)
    assert not isinstance(built, str)  # its contender has been made
    contender = OptimizerContender(model, inputs, *built)
    for _ in range(2):
        contender.give_gradients()
        contender.optimizer.step()
    grads: Sequence[Tensor | None] = [parameter.grad for parameter in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads if grad is not None])
