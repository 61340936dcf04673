"""What ranks tell each other of a step's statistics: sums are added, rows are gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core import comm
from mkor_core.capture import Captured, Layer, Rows, Sums, wide_dtype
from mkor_core.method import LayerShape, Method


def exchange(
    layers: Sequence[Layer],
    captured: Mapping[str, Captured],
    loss: Tensor | None,
    *,
    method: Method,
    group: ProcessGroup | None,
) -> tuple[dict[str, Captured], Tensor | None]:
    """Return every layer's statistics over all ranks, and the mean loss; on one process they are what came in.

    Sums travel in one flat all-reduce with the loss: ``x``, ``g`` and a count for every layer, used or not. A method
    that exchanges in half precision sends means, since sums overflow, after a small all-reduce of the counts.
    """
    world = comm.world_size(group)
    if world == 1:
        return dict(captured), loss
    losses = [] if loss is None else [loss / world]
    names = [layer.name for layer in layers]
    if method.sum_shapes(LayerShape(1, 1)) is None:
        gathered = [_gather(layer, captured.get(layer.name), group) for layer in layers]
        losses = comm.sum_across_ranks(losses, group)
        found: dict[str, Captured] = {name: [rows] for name, rows in zip(names, gathered, strict=True) if len(rows.x)}
    else:
        own = [_own_sums(layer, captured.get(layer.name), method) for layer in layers]
        if method.exchange_dtype is not None:
            summed, losses = _add_narrow(own, losses, method.exchange_dtype, group)
        elif method.statistic.kind == "moment":
            summed, losses = _add_symmetric(own, losses, group)
        else:
            summed, losses = _add(own, losses, group)
        found = dict(zip(names, summed, strict=True))
    return found, losses[0] if losses else None


def _own_sums(layer: Layer, sums: Captured | None, method: Method) -> Sums:
    if isinstance(sums, Sums):
        return sums
    shapes = method.sum_shapes(LayerShape(layer.d_out, layer.d_in))
    assert shapes is not None  # asked before
    weight = layer.module.weight
    blank = torch.zeros((), dtype=wide_dtype(weight.dtype), device=weight.device)
    return Sums(blank.expand(shapes[0]), blank.expand(shapes[1]), blank)


def _add(own: Sequence[Sums], losses: Sequence[Tensor], group: ProcessGroup | None) -> tuple[list[Sums], list[Tensor]]:
    flat = comm.sum_across_ranks([*(part for sums in own for part in sums), *losses], group)
    return [Sums(*flat[i : i + 3]) for i in range(0, 3 * len(own), 3)], flat[3 * len(own) :]


def _add_symmetric(
    own: Sequence[Sums], losses: Sequence[Tensor], group: ProcessGroup | None
) -> tuple[list[Sums], list[Tensor]]:
    packed = [Sums(comm.pack_symmetric(x), comm.pack_symmetric(g), number) for x, g, number in own]
    added, losses = _add(packed, losses, group)
    whole = [
        Sums(comm.unpack_symmetric(x, len(mine.x)), comm.unpack_symmetric(g, len(mine.g)), number)
        for (x, g, number), mine in zip(added, own, strict=True)
    ]
    return whole, losses


def _add_narrow(
    own: Sequence[Sums], losses: Sequence[Tensor], dtype: torch.dtype, group: ProcessGroup | None
) -> tuple[list[Sums], list[Tensor]]:
    heads = comm.sum_across_ranks([*(sums.number for sums in own), *losses], group)
    counts = heads[: len(own)]
    divisors = [count.clamp(min=1) for count in counts]
    means = [part.to(dtype) for sums, divisor in zip(own, divisors, strict=True) for part in (sums.x / divisor, sums.g)]
    wide = [part.to(divisors[i // 2].dtype) for i, part in enumerate(comm.sum_across_ranks(means, group))]
    summed = [
        Sums(wide[2 * i] * divisor, wide[2 * i + 1], count)
        for i, (divisor, count) in enumerate(zip(divisors, counts, strict=True))
    ]
    return summed, heads[len(own) :]


def _gather(layer: Layer, rows: Captured | None, group: ProcessGroup | None) -> Rows:
    weight = layer.module.weight
    blank = torch.zeros(0, dtype=wide_dtype(weight.dtype), device=weight.device)
    own = rows[0] if isinstance(rows, list) else Rows(blank.view(0, layer.d_in), blank.view(0, layer.d_out), 1)
    return Rows(comm.gather_rows(own.x, group), comm.gather_rows(own.g, group), own.locations)
