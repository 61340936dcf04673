"""The exchange of a step's statistics between ranks: sums are added, rows are gathered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core.capture.layer import Layer, ShardedLayer, wide_dtype
from mkor_core.capture.reductions import mean_locations
from mkor_core.capture.statistics import LayerShape, Statistic, Sums
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Coder, Coding
from mkor_core.ranks.schedule import Schedule

Exchanged = tuple[list[Sums], list[Tensor]]
"""The layers' statistics and the losses (none or one) over all ranks."""


def exchange(
    layers: Sequence[Layer],
    captured: Mapping[str, Sums],
    loss: Tensor | None,
    *,
    statistic: Statistic,
    group: ProcessGroup | None,
    scale: Tensor | None = None,
    coder: Coder | None = None,
    schedule: Schedule | None = None,
) -> tuple[dict[str, Sums], Tensor | None]:
    """Return every layer's statistics over all ranks, and the mean loss; on one process, the arguments.

    Sums travel in one flat all-reduce together with the loss: x, the number and, unless the gradient of the bias tells
    it, g of every layer. The gradient of a sharded bias is put together by the same sum. A layer that this rank did not
    use takes part with zeros, since all ranks must send the same shapes. A method that exchanges in half precision
    sends means in place of sums, which would overflow, after a small all-reduce of the numbers.

    Args:
        layers: the layers.
        captured: this rank's statistics, by layer.
        loss: this rank's, if the method follows it.
        statistic: what is exchanged.
        group: the ranks.
        scale: the loss scale by which gradients are multiplied; None for 1.
        schedule: of second moments; None: they travel in one message.
        coder: gives the rows that this rank sends their coding; None: they travel as they are. Sums always do.
    """
    world = comm.world_size(group)
    if world == 1:
        return dict(captured), loss
    # A rank's loss is the mean over its own part of the batch.
    losses = [] if loss is None else [loss / world]
    local = [
        _with_bias_gradient(layer, captured.get(layer.name) or _blank(layer, statistic), statistic, world, scale)
        for layer in layers
    ]
    if statistic.gathers_rows:
        coding = None if coder is None else coder.coding("rows", comm.rank(group))
        total = _gather(local, group, coding)
        losses = comm.sum_across_ranks(losses, group)  # a gathering of rows cannot carry them
    elif statistic.message_dtype is not None:
        total, losses = _add_means(local, losses, statistic.message_dtype, group)
    elif schedule is not None:
        total, losses = _add_scheduled(local, losses, group, schedule)
    elif statistic.kind == "moment":
        total, losses = _add_symmetric(local, losses, group)
    else:
        total, losses = _add(local, losses, group)
    by_name = {layer.name: sums for layer, sums in zip(layers, total, strict=True)}
    if statistic.gathers_rows:
        # The host knows the numbers of rows by now, so layers that no rank used are simply left out.
        by_name = {name: rows for name, rows in by_name.items() if len(rows.x)}
    return by_name, losses[0] if losses else None


def _blank(layer: Layer, statistic: Statistic) -> Sums:
    """Return the statistic of a layer that this rank did not use: zeros, or no rows."""
    weight = layer.parameters[0]
    zero = torch.zeros((), dtype=wide_dtype(weight.dtype), device=weight.device)
    if statistic.gathers_rows:
        # With 0 rows this rank joins the gathering, in which every rank must take part.
        return Sums(zero.new_zeros(0, layer.d_in), zero.new_zeros(0, layer.d_out), zero)
    # Expanded scalars take no memory until they are packed for sending.
    x_shape, g_shape = statistic.sum_shapes(LayerShape(layer.d_out, layer.d_in))
    g = zero.expand(g_shape) if statistic.sums_gradients(layer) else None
    # A convolution whose g is its bias's gradient has a tensor of locations on the ranks that used it, and so sends a
    # second count (`_counts`). It must be sent here too, or the ranks' buffers would differ in length.
    return Sums(zero.expand(x_shape), g, zero, zero if g is None and layer.is_convolution else 1.0)


def _with_bias_gradient(layer: Layer, sums: Sums, statistic: Statistic, world: int, scale: Tensor | None) -> Sums:
    """Return the sums with this rank's part of the gradient of a sharded bias as g, if that has it."""
    # The gradient of a whole bias has been averaged by data parallelism and is the same on all ranks; it need not be
    # sent. Of a sharded one each rank has some rows: with d_out = 4 on 2 ranks, [a, b, 0, 0] and [0, 0, c, d] add up.
    if not isinstance(layer, ShardedLayer) or statistic.sums_gradients(layer) or statistic.sides == "input":
        return sums
    return sums._replace(g=layer.bias_gradient_part(world, scale).to(sums.x.dtype))


def _gather(local: Sequence[Sums], group: ProcessGroup | None, coding: Coding | None) -> list[Sums]:
    """Return the rows of all ranks, layer by layer."""
    sides = [side for rows in local for side in (rows.x, rows.g) if side is not None]
    gathered = comm.gather_rows(sides, group, coding)
    # x and g of the first layer, then of the second, ...
    return [
        Sums(x, g, torch.full_like(rows.number, len(x)))
        for rows, x, g in zip(local, gathered[::2], gathered[1::2], strict=True)
    ]


def _add(local: Sequence[Sums], losses: Sequence[Tensor], group: ProcessGroup | None) -> Exchanged:
    # The parts of the first layer, then of the second, ..., then the loss.
    added = iter(comm.sum_across_ranks([*(part for sums in local for part in _parts(sums)), *losses], group))
    # Each call takes the parts of one layer; what is left of the iterator is the loss, if there is one.
    total = [_from_parts(sums, added) for sums in local]
    return total, list(added)


def _parts(sums: Sums) -> list[Tensor]:
    """Return what ranks add up of a layer."""
    return [*_counts(sums), sums.x, *([] if sums.g is None else [sums.g])]


def _from_parts(like: Sums, parts: Iterator[Tensor]) -> Sums:
    """Return the sums whose `_parts` come next."""
    number, locations = _from_counts(like, parts)
    return Sums(next(parts), None if like.g is None else next(parts), number, locations)


def _counts(sums: Sums) -> list[Tensor]:
    """Return the number, and the number times the locations where they vary."""
    # Locations are a mean over examples. Weighted by their number they can be added up: 2 examples of 16 and 6 of 64
    # locations give (32 + 384) / 8 = 52.
    varying = [sums.locations * sums.number] if isinstance(sums.locations, Tensor) else []
    return [sums.number, *varying]


def _from_counts(like: Sums, counts: Iterator[Tensor]) -> tuple[Tensor, Tensor | float]:
    """Return the number and the mean locations whose `_counts` come next."""
    number = next(counts)
    return number, mean_locations(next(counts), number) if isinstance(like.locations, Tensor) else like.locations


def _add_symmetric(local: Sequence[Sums], losses: Sequence[Tensor], group: ProcessGroup | None) -> Exchanged:
    """Add symmetric x and g, of which only the upper triangles travel."""
    triangles = comm.Triangles()
    # d (d + 1) / 2 numbers for d^2; no g where the moments are those of inputs alone
    packed = [Sums(triangles.pack(x), None if g is None else triangles.pack(g), number) for x, g, number, _ in local]
    added, losses = _add(packed, losses, group)
    total = [
        Sums(
            triangles.unpack(sums.x, len(own.x)),
            None if sums.g is None or own.g is None else triangles.unpack(sums.g, len(own.g)),
            sums.number,
        )
        for sums, own in zip(added, local, strict=True)
    ]
    return total, losses


def _add_scheduled(
    local: Sequence[Sums], losses: Sequence[Tensor], group: ProcessGroup | None, schedule: Schedule
) -> Exchanged:
    """Add what `_add_symmetric` does, in the messages of a schedule: the numbers and losses, all x, all g backwards."""
    triangles = comm.Triangles()
    # With layers 1, 2, 3 the order is x1, x2, x3, g3, g2, g1, in which a forward and a backward pass would bring them.
    # A message may hold both the last x and the first g.
    matrices = [*(sums.x for sums in local), *(sums.g for sums in reversed(local) if sums.g is not None)]
    scalars = [*(sums.number for sums in local), *losses]
    messages = schedule.messages([len(matrix) * (len(matrix) + 1) // 2 for matrix in matrices])
    # All are launched before any is waited for. The scalars go first, since their sums are read first.
    waits = [
        comm.start_sum(scalars, group),
        *(comm.start_sum([triangles.pack(matrices[index]) for index in members], group) for members in messages),
    ]
    # A message is waited for when its first matrix is unpacked.
    arrived = (tensor for wait in waits for tensor in wait())
    scalars = [next(arrived) for _ in scalars]
    # Messages are ranges of neighbouring indices, so the sums arrive in the order of ``matrices``.
    added = [triangles.unpack(next(arrived), len(matrix)) for matrix in matrices]
    layers = len(local)
    inputs, gradients = added[:layers], reversed(added[layers:])  # back in the order of the layers
    total = [Sums(x, g, number) for x, g, number in zip(inputs, gradients, scalars[:layers], strict=True)]
    return total, scalars[layers:]


def _add_means(
    local: Sequence[Sums], losses: Sequence[Tensor], dtype: torch.dtype, group: ProcessGroup | None
) -> Exchanged:
    """Add x divided by the number over all ranks, and g, both in ``dtype``; x is multiplied back afterwards.

    g needs no division: raw gradient rows are rows of the global mean loss.
    """
    # First the numbers of all layers, and the loss, in full precision.
    heads = iter(comm.sum_across_ranks([*(count for sums in local for count in _counts(sums)), *losses], group))
    counts = [_from_counts(sums, heads) for sums in local]
    # Every rank divides by the number over all ranks, so that the sum of what they send is the global mean.
    # A layer that no rank used has the number 0 and x = 0, which stay 0.
    divisors = [number.clamp(min=1) for number, _ in counts]
    halves = [
        part.to(dtype)
        for sums, divisor in zip(local, divisors, strict=True)
        for part in (sums.x / divisor, sums.g)
        if part is not None
    ]
    added = iter(comm.sum_across_ranks(halves, group))
    total = [
        Sums(
            # A sum again, as methods expect it: they divide by the number themselves.
            next(added).to(divisor.dtype) * divisor,
            None if sums.g is None else next(added).to(divisor.dtype),
            number,
            locations,
        )
        for sums, divisor, (number, locations) in zip(local, divisors, counts, strict=True)
    ]
    return total, list(heads)  # after all counts, the loss is left
