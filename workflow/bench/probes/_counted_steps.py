"""The work of an optimizer's step as its code does it: the kernels of one layer, counted on the ``meta`` device.

`_costs` has the least that a step must read and write; here is what this version's kernels do. A layer's share is that
of one of two equal layers: the code treats layers of one shape together, and bytes and operations are proportional to
their number (tests compare with whole models). Only the step of the preconditioner and of the base optimizer is
counted, not the capture of statistics in the backward pass. A kernel takes at least its bytes over the bandwidth or its
operations over the rate; launches cost nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from typing_extensions import override

from baselines import build_optimizer
from mkor_core import Method, Preconditioner
from workflow.bench.probes._costs import CostedLayer
from workflow.bench.probes._counting import DECOMPOSITIONS, META, Counting
from workflow.bench.probes._links import System
from workflow.bench.probes._models import PERIOD_FIELDS

_LAYERS: Final = 2
_PERIOD: Final = 2
"""Steps between updates, so that every second step has none."""
_SIDE: Final = 256
"""The side of the matrix of which a base optimizer's step is counted."""


class Kernel(NamedTuple):
    """What one kernel does."""

    decomposes: bool
    """Whether it is a decomposition, which no GPU does at its rate of matrix products."""
    operations: float
    bytes: float


@dataclass(frozen=True)
class CountedWork:
    """Kernels, with how many there are of each, or a share of one."""

    kernels: tuple[tuple[Kernel, float], ...]

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return sum(kernel.bytes * number for kernel, number in self.kernels)

    def milliseconds(self, system: System) -> float:
        """Return the least time of the kernels, one after the other, on a GPU of a system."""
        assumed, gpu = system.assumed, system.gpu
        rates = {False: gpu.tf32 * assumed.products, True: gpu.float32 * assumed.decompositions}
        bandwidth = gpu.bandwidth * assumed.memory
        seconds = (
            number * max(kernel.bytes / bandwidth, kernel.operations / rates[kernel.decomposes])
            for kernel, number in self.kernels
        )
        return 1000 * sum(seconds)


class Step(NamedTuple):
    """The preconditioner's step for one layer."""

    plain: CountedWork
    """Of a step that updates no factor."""
    update: CountedWork
    """Of one that does; no window is full yet, and the bytes of cutting one are those of a few columns."""


class _Kernels(Counting):
    """Counts kernels one by one."""

    def __init__(self) -> None:
        super().__init__(META)
        self.kernels: Counter[Kernel] = Counter()

    @override
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        counts = self.counts
        before = counts.kernels, counts.operations, counts.bytes
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if counts.kernels > before[0]:
            name = function.overloadpacket.__name__
            done = counts.operations - before[1], float(counts.bytes - before[2])
            self.kernels[Kernel(name in DECOMPOSITIONS, *done)] += 1
        return result


@cache
def of_layer(method: Method, layer: CostedLayer) -> Step:
    """Return the preconditioner's step for a layer, whatever the method's period of updates."""
    periods = {name: _PERIOD for name in PERIOD_FIELDS if getattr(method, name, None) is not None}
    with META:
        layers = nn.ModuleList(nn.Linear(layer.n, layer.m, bias=layer.has_bias) for _ in range(_LAYERS))
        rows = torch.empty(2, layer.n)
    preconditioner = Preconditioner(layers, replace(method, **periods), lr=0.1)  # kl_clip asks for a learning rate
    plain, update = _Kernels(), _Kernels()
    # The first two set up states.
    for counting in (_Kernels(), _Kernels(), update, plain):
        layers.zero_grad()
        sum((one(rows).sum() for one in layers), start=torch.zeros((), device=META)).backward()
        with counting:
            preconditioner.step()
    preconditioner.remove()
    of_one = (tuple((kernel, number / _LAYERS) for kernel, number in one.kernels.items()) for one in (plain, update))
    return Step(*map(CountedWork, of_one))


@cache
def of_base(name: str) -> CountedWork:
    """Return the step of a base optimizer for one parameter of a large matrix; name: its file's."""
    with META:
        network = nn.Sequential(*(nn.Linear(_SIDE, _SIDE, bias=False) for _ in range(_LAYERS)))
    optimizer = build_optimizer(name, network, {"lr": 0.1})
    counting = _Kernels()
    for step in range(2):  # the first one sets up the state
        for parameter in network.parameters():
            parameter.grad = torch.empty_like(parameter)
        with counting if step else _Kernels():
            optimizer.step()
    parameters = _LAYERS * _SIDE**2
    return CountedWork(
        tuple(
            (Kernel(kernel.decomposes, kernel.operations / parameters, kernel.bytes / parameters), float(number))
            for kernel, number in counting.kernels.items()
        )
    )
