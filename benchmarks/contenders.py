"""The contenders of `benchmarks.steps`: optimizers on a block, and the references that they are compared with.

Each has a turn, which returns its times in milliseconds. A turn of an optimizer is a step that updates the
preconditioner and one that does not (its period is 2), each after a real forward and backward pass on a small batch,
which is not timed: hooks capture real statistics, and gradients are real. Work that an optimizer does inside the
backward pass, as SINGD does its own and every method its capture, is therefore not in these times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from typing_extensions import override

from benchmarks.methods import RATE, BenchmarkMethod, build_or_reason
from benchmarks.models import EncoderBlock
from mkor_core import MKOR, Preconditioner
from mkor_core.capture.discovery import find_layers
from workflow.bench.probes import _timing

TURN_MS: Final = 40.0
"""Cheap steps are repeated within a turn until they take this long together."""
MOST_CYCLES: Final = 4
"""The most cycles of two steps in a turn."""
LONG_MS: Final = 300.0
"""A cycle as long as this is not repeated to find out which of its steps updates."""


class Times(NamedTuple):
    """A contender's milliseconds in one turn: of a step that updates, and of one that does not."""

    update: float
    plain: float

    @classmethod
    def alike(cls, ms: float) -> Times:
        """Return the times of steps that are alike."""
        return cls(ms, ms)

    def amortized(self, period: int) -> float:
        """Return the mean over a period, which has one update."""
        return (self.update + (period - 1) * self.plain) / period


class OptimizerContender:
    """An optimizer on a model.

    Args:
        model: the model, on its device.
        inputs: the small batch that gives statistics and gradients.
        optimizer: the optimizer.
        preconditioner: the preconditioner attached to it, if any.
        alternates: whether every second step updates something; otherwise all steps are alike.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        optimizer: Optimizer,
        preconditioner: Preconditioner | None = None,
        *,
        alternates: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.preconditioner = preconditioner
        self._inputs = inputs
        self._alternates = alternates
        self._device = inputs.device
        self._update_is_first = True
        self._cycles = 1
        self.cycle_ms = math.nan
        """Milliseconds of the latest cycle of the warm-up."""

    def warm_up(self) -> None:
        """Set up the state, find out which of two successive steps updates, and how many cycles fill a turn."""
        cycles = [self._cycle()]
        while len(cycles) < 3 and sum(cycles[-1]) < LONG_MS:
            cycles.append(self._cycle())
        timed = cycles[1:] or cycles
        self._update_is_first = sum(first for first, _ in timed) >= sum(second for _, second in timed)
        self.cycle_ms = sum(timed[-1])
        self._cycles = max(1, min(MOST_CYCLES, math.ceil(TURN_MS / self.cycle_ms)))

    def turn(self) -> Times:
        """Time whole cycles of an update and a plain step."""
        cycles = [self._cycle() for _ in range(self._cycles)]
        first, second = (sum(ms) / len(cycles) for ms in zip(*cycles, strict=True))
        if not self._alternates:
            return Times.alike((first + second) / 2)
        return Times(first, second) if self._update_is_first else Times(second, first)

    def give_gradients(self) -> None:
        """Run a forward and backward pass on the small batch."""
        self.optimizer.zero_grad()
        loss = self.model(self._inputs).square().mean()
        loss.backward()
        if self.preconditioner is not None:
            self.preconditioner.observe(loss.detach())

    def train(self, steps: int) -> None:
        """Train some steps, without a wait between them."""
        for _ in range(steps):
            self.give_gradients()
            self.optimizer.step()

    def _cycle(self) -> list[float]:
        """Return the milliseconds of two updates."""
        ms = []
        for _ in range(2):
            self.give_gradients()
            ms.append(_timing.milliseconds(self.optimizer.step, self._device))
        return ms


def of_method(
    method: BenchmarkMethod, block: EncoderBlock, width: int, device: torch.device
) -> OptimizerContender | str:
    """Return a method's contender, which updates in every second step; or the reason why there is none."""
    model, inputs = _made(block, width, device)
    built = build_or_reason(method, model, 2)
    if isinstance(built, str):
        return built
    return OptimizerContender(model, inputs, *built, alternates=method.period_field is not None)


def of_torch(
    block: EncoderBlock, width: int, device: torch.device, make: Callable[..., Optimizer]
) -> OptimizerContender:
    """Return one of PyTorch's own optimizers; make: called with the parameters."""
    model, inputs = _made(block, width, device)
    return OptimizerContender(model, inputs, make(model.parameters()))


FOREACH_SGD: Final = partial(SGD, lr=RATE, momentum=0.9, foreach=True)
FUSED_ADAMW: Final = partial(AdamW, lr=RATE, fused=True)


def _made(block: EncoderBlock, width: int, device: torch.device) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return block.make(width).to(device).train(), block.few(width).to(device)


def forward_backward(block: EncoderBlock, width: int, device: torch.device) -> Callable[[], Times]:
    """Return a turn of a forward and a backward pass on a true batch."""
    torch.manual_seed(0)
    model = block.make(width).to(device).train()
    inputs = block.batch(width).to(device)

    def work() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    work()
    return lambda: Times.alike(_timing.milliseconds(work, device))


def two_products(block: EncoderBlock, width: int, device: torch.device) -> Callable[[], Times]:
    """Return a turn of dense preconditioning's two matrix products alone, ``J_L D J_R``, for every layer's weight."""
    with torch.device("meta"):
        layers = find_layers(block.make(width), ()).values()
        shapes = [(layer.d_out, layer.module.weight[0].numel()) for layer in layers]
    torch.manual_seed(0)
    sides = [((m, m), (m, n), (m, n), (n, n), (m, n)) for m, n in shapes]
    matrices = [[torch.randn(*side, device=device) for side in of_layer] for of_layer in sides]

    def work() -> None:
        for left, grad, product, right, value in matrices:
            torch.mm(left, grad, out=product)
            torch.mm(product, right, out=value)

    work()
    return lambda: Times.alike(_timing.milliseconds(work, device))


FACTORS: Final = 8
"""Equal layers whose factors are updated in one step, as in a network: what a step does only once hardly counts."""


class _Parallel(nn.Module):
    """Layers of one output and no bias, whose outputs are added."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d, 1, bias=False) for _ in range(FACTORS))

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(x) for layer in self.layers]).square().mean()


def factor_update(d: int, device: torch.device) -> Callable[[], Times]:
    """Return a turn of one update of a dense factor ``[d, d]``: the stabilizer and the rank-1 update.

    The preconditioner's clock says how long a step of several layers was in the phase "factor".
    """
    torch.manual_seed(0)
    model = _Parallel(d).to(device)
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    inputs = torch.randn(8, d, device=device)
    spent: dict[str, float] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        start = _timing.now(device)
        yield
        spent[name] = spent.get(name, 0.0) + 1000 * (_timing.now(device) - start)

    preconditioner.phases = phase

    def turn() -> Times:
        spent.clear()
        calls = _calls(d)
        for _ in range(calls):
            model.zero_grad()
            model(inputs).backward()
            preconditioner.step()
        return Times.alike(spent["factor"] / (FACTORS * calls))

    turn()
    return turn


def vector_and_outer_product(d: int, device: torch.device) -> Callable[[], Times]:
    """Return a turn of the least that a factor's update does: ``J v`` and ``J += u u^T``, on matrices ``[d, d]``."""
    matrices = [torch.eye(d, device=device) for _ in range(FACTORS)]
    vector = torch.randn(d, device=device) / d
    product = torch.empty_like(vector)

    def work() -> None:
        for matrix in matrices:
            torch.mv(matrix, vector, out=product)
            matrix.addr_(product, product, alpha=-1e-6)

    work()
    return lambda: Times.alike(_timing.milliseconds(work, device, _calls(d)) / FACTORS)


def _calls(d: int) -> int:
    return max(1, min(16, 2048 * 2048 // (d * d)))
