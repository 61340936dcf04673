"""Bytes of optimizer state by tensor: of live optimizers, and computed from shapes on PyTorch's ``meta`` device.

The ``meta`` device has shapes but no memory, so computing costs nothing, whatever the size of the model. There are no
formulas by method: the method's own code gives the tensors that it keeps. Formulas are the tests' ground truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from baselines import build_optimizer
from mkor_core import Method, Preconditioner
from mkor_core.capture.discovery import find_layers
from mkor_core.capture.statistics import Captured, LayerShape, Rows, join_rows
from mkor_core.saving.entries import without_preconditioner
from workflow.bench.probes._counting import META
from workflow.bench.probes._models import ProbeModel, TimedOptimizer


class LayerRows(NamedTuple):
    """A layer's shape, and how many rows a batch has there: examples for a Conv2d, leading indices for a Linear."""

    shape: LayerShape
    rows: int


def captured(method: Method, x: Tensor, g: Tensor) -> Captured:
    """Return the statistic that a method gets of a Linear's rows in one step; x: ``[n, d_in]``, g: ``[n, d_out]``."""
    n = len(x)
    match method.statistic.kind:
        case "mean":
            return Captured(x.sum(0), g.sum(0), x.new_tensor(float(n)))
        case "moment":
            return Captured(x.T @ x / n, g.T @ g / n, x.new_tensor(1.0))
        case "rows":
            return (method.statistic.condense or join_rows)([Rows(x, g, 1)], 0)


def preconditioner_bytes(method: Method, layers: Sequence[LayerRows]) -> dict[str, int]:
    """Return the bytes of a method's float32 state by tensor, after one step that accumulates and refreshes.

    Shapes may depend on a batch's rows: HyLo keeps a part of them. Empty if the method reads values of tensors, which
    the ``meta`` device does not have.
    """
    sizes: Counter[str] = Counter()
    try:
        for (d_out, d_in), rows in layers:
            state = method.initial_state(LayerShape(d_out, d_in), torch.float32, META)
            x, g = (torch.empty(rows, d, device=META) for d in (d_in, d_out))
            method.accumulate(state, captured(method, x, g), 0)
            method.refresh(state, 0)
            sizes.update({name: tensor.nbytes for name, tensor in state.items()})
    except (NotImplementedError, RuntimeError):
        return {}
    return dict(sizes)


def first_order_bytes(optimizer: Optimizer) -> dict[str, int]:
    """Return the bytes of a first-order optimizer's state by tensor, summed over parameters."""
    state = without_preconditioner(optimizer.state_dict())
    # Some optimizers keep more than tensors of single parameters, e.g. SINGD its factors by layer.
    others = {name: value for name, value in state.items() if name not in ("state", "param_groups")}
    sizes: Counter[str] = Counter()
    for kept in (*state["state"].values(), others):
        for name, value in kept.items():
            if tensors := [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]:
                sizes[name] += sum(tensor.nbytes for tensor in tensors)
    return dict(sizes)


def all_bytes(optimizer: Optimizer, preconditioner: Preconditioner | None) -> int:
    """Return the bytes of the state of an optimizer and its preconditioner."""
    own = sum(first_order_bytes(optimizer).values())
    return own + (0 if preconditioner is None else preconditioner.memory_bytes())


def computed_first_order_bytes(model: ProbeModel, optimizer: TimedOptimizer) -> dict[str, int]:
    """Return the `first_order_bytes` after a step on the ``meta`` device; empty if the optimizer cannot step there.

    SINGD, for one, identifies parameters by their addresses, which are all 0 there.
    """
    with META:
        network = model.data.model(seed=0)
    instance = build_optimizer(optimizer.method, network, optimizer.hyperparameters, exclude=model.data.exclude)
    for parameter in network.parameters():
        parameter.grad = torch.empty_like(parameter)
    try:
        instance.step()
    except (KeyError, NotImplementedError, RuntimeError):
        return {}
    return first_order_bytes(instance)


def rows_by_layer(model: nn.Module, exclude: tuple[str, ...], step: Callable[[], object]) -> list[LayerRows]:
    """Return the rows of every preconditioned layer in a batch; step: runs one forward pass of the model."""
    layers = find_layers(model, exclude)
    rows: dict[nn.Module, int] = {}

    def hook(module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # Linear: [..., d_out] has a row for each leading index; Conv2d: [examples, d_out, height, width].
        rows[module] = output.shape[0] if isinstance(module, nn.Conv2d) else output.numel() // output.shape[-1]

    handles = [layer.module.register_forward_hook(hook) for layer in layers.values()]
    step()
    for handle in handles:
        handle.remove()
    return [LayerRows(LayerShape(layer.d_out, layer.d_in), rows[layer.module]) for layer in layers.values()]
