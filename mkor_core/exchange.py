"""The exchange of a step's statistics between ranks: sums are added, rows are gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core import comm
from mkor_core.capture import Captured
from mkor_core.layer import Layer, wide_dtype
from mkor_core.method import LayerShape, Method

Exchanged = tuple[list[Captured], list[Tensor]]
"""The layers' statistics and the losses (none or one) over all ranks."""


def exchange(
    layers: Sequence[Layer],
    captured: Mapping[str, Captured],
    loss: Tensor | None,
    *,
    method: Method,
    group: ProcessGroup | None,
) -> tuple[dict[str, Captured], Tensor | None]:
    """Return every layer's statistics over all ranks, and the mean loss; on one process, the arguments.

    Sums travel in one flat all-reduce together with the loss: x, g and the number of every layer. A layer that this
    rank did not use takes part with zeros, since all ranks must send the same shapes. A method that exchanges in half
    precision sends means in place of sums, which would overflow, after a small all-reduce of the numbers.
    """
    world = comm.world_size(group)
    if world == 1:
        return dict(captured), loss
    losses = [] if loss is None else [loss / world]
    local = [captured.get(layer.name) or _blank(layer, method) for layer in layers]
    if method.gathers_rows:
        total = [_gather(rows, group) for rows in local]
        losses = comm.sum_across_ranks(losses, group)
    elif method.exchange_dtype is not None:
        total, losses = _add_means(local, losses, method.exchange_dtype, group)
    elif method.statistic.kind == "moment":
        total, losses = _add_symmetric(local, losses, group)
    else:
        total, losses = _add(local, losses, group)
    by_name = {layer.name: statistic for layer, statistic in zip(layers, total, strict=True)}
    if method.gathers_rows:
        # The host knows the numbers of rows by now, so layers that no rank used are simply left out.
        by_name = {name: rows for name, rows in by_name.items() if len(rows.x)}
    return by_name, losses[0] if losses else None


def _blank(layer: Layer, method: Method) -> Captured:
    """Return the statistic of a layer that this rank did not use: zeros, or no rows."""
    weight = layer.module.weight
    zero = torch.zeros((), dtype=wide_dtype(weight.dtype), device=weight.device)
    if method.gathers_rows:
        return Captured(zero.new_zeros(0, layer.d_in), zero.new_zeros(0, layer.d_out), zero)
    x_shape, g_shape = method.sum_shapes(LayerShape(layer.d_out, layer.d_in))
    return Captured(zero.expand(x_shape), zero.expand(g_shape), zero)


def _gather(rows: Captured, group: ProcessGroup | None) -> Captured:
    x, g = comm.gather_rows(rows.x, group), comm.gather_rows(rows.g, group)
    return Captured(x, g, torch.full_like(rows.number, len(x)))


def _add(local: Sequence[Captured], losses: Sequence[Tensor], group: ProcessGroup | None) -> Exchanged:
    # x, g and number of the first layer, then of the second, ..., then the loss.
    flat = comm.sum_across_ranks([*(part for sums in local for part in sums), *losses], group)
    return [Captured(*flat[i : i + 3]) for i in range(0, 3 * len(local), 3)], flat[3 * len(local) :]


def _add_symmetric(local: Sequence[Captured], losses: Sequence[Tensor], group: ProcessGroup | None) -> Exchanged:
    """Add symmetric x and g, of which only the upper triangles travel."""
    packed = [Captured(comm.pack_symmetric(x), comm.pack_symmetric(g), number) for x, g, number in local]
    added, losses = _add(packed, losses, group)
    total = [
        Captured(comm.unpack_symmetric(x, len(sums.x)), comm.unpack_symmetric(g, len(sums.g)), number)
        for (x, g, number), sums in zip(added, local, strict=True)
    ]
    return total, losses


def _add_means(
    local: Sequence[Captured], losses: Sequence[Tensor], dtype: torch.dtype, group: ProcessGroup | None
) -> Exchanged:
    """Add x divided by the number over all ranks, and g, both in ``dtype``; x is multiplied back afterwards.

    g needs no division: raw gradient rows are rows of the global mean loss.
    """
    # First the numbers of all layers, and the loss, in full precision.
    heads = comm.sum_across_ranks([*(sums.number for sums in local), *losses], group)
    numbers = heads[: len(local)]
    # Every rank divides by the number over all ranks, so that the sum of what they send is the global mean.
    divisors = [number.clamp(min=1) for number in numbers]
    halves = [
        part.to(dtype) for sums, divisor in zip(local, divisors, strict=True) for part in (sums.x / divisor, sums.g)
    ]
    wide = [part.to(divisors[i // 2].dtype) for i, part in enumerate(comm.sum_across_ranks(halves, group))]
    total = [
        Captured(wide[2 * i] * divisor, wide[2 * i + 1], number)
        for i, (divisor, number) in enumerate(zip(divisors, numbers, strict=True))
    ]
    return total, heads[len(local) :]
