"""Sharded parameters and activations (DTensors of FSDP2, HSDP and tensor parallelism) as blocks of matrices.

The ranks that hold the other blocks of a matrix are the groups of a device mesh, one for each of its dimensions.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed import ProcessGroup

Groups = tuple[ProcessGroup, ...]


class Block(NamedTuple):
    """The part of a layer's D that this rank holds: some rows, and of these some columns of the weight."""

    rows: tuple[int, int]
    """The first row, and the one after the last."""
    columns: tuple[int, int]
    """The same for the weight's columns. The bias's column has this block's rows on every rank that shares them."""
    row_groups: Groups
    """The ranks that hold other rows of the same columns."""
    column_groups: Groups
    """The ranks that hold other columns of the same rows."""
    counts_bias: bool
    """Whether the bias's column counts as this rank's in a sum over the blocks."""
    row_shards: int
    """The number of blocks into which the rows are divided."""


class ActivationShard(NamedTuple):
    """The part of a layer's input, output or gradient that this rank has, if tensor-parallel ranks share a batch."""

    offset: int = 0
    """Its first column."""
    column_shards: int = 1
    """The number of ranks among which columns are divided, or whose values must be added up."""
    weight: float = 1.0
    """What sums are multiplied by so that they add up over all ranks: the number of ranks among which rows are divided,
    divided by the number of those that share the batch."""

    def shared_by(self, ranks: int) -> ActivationShard:
        """Return the same shard of a batch that some ranks shard."""
        return self._replace(weight=self.weight / ranks)


WHOLE = ActivationShard()


def is_dtensor(value: object) -> bool:
    """Return whether a tensor is a DTensor."""
    # There is none before this module has been imported, and to import it here would take a while.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank holds, the tensor itself if it is no DTensor; a view of its memory."""
    part: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return part


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor; a collective call if it is divided among ranks, or to be added up."""
    full: Tensor = tensor.full_tensor() if is_dtensor(tensor) else tensor
    return full


def place_gradient(parameter: Any) -> None:
    """Divide a gradient among ranks as its parameter is, in place of sums that are still to be added up; collective.

    Autograd leaves such sums where tensor-parallel ranks share a parameter and divide the tokens.
    """
    grad = parameter.grad
    if is_dtensor(grad) and grad.placements != parameter.placements:
        # From Partial, this is a reduce-scatter to Shard and an all-reduce to Replicate.
        parameter.grad = grad.redistribute(placements=parameter.placements)


def block_of(name: str, weight: Any, bias: Any) -> Block | None:
    """Return the block of a layer's parameters; None if they are whole on every rank.

    Raises:
        TypeError: the parameters of the layer ``name`` are cut in a way of which D has no blocks.
    """
    if not is_dtensor(weight):
        return None
    # Where this rank's part lies in the weight. Of a weight [8, 6] whose rows are divided between 2 ranks, the second
    # rank has offsets (4, 0) and sizes (4, 6).
    (chunk,) = weight.__create_chunk_list__()
    (first_row, first_column, *_), (rows, columns, *_) = chunk.offsets, chunk.sizes
    groups: dict[int, list[ProcessGroup]] = {0: [], 1: []}  # by the dimension of the weight that is cut
    row_shards, is_first = 1, True
    for axis, placement in enumerate(weight.placements):
        # Such as the axis of HSDP along which ranks hold the same block: it divides nothing.
        if placement.is_replicate():
            continue
        cut = getattr(placement, "dim", None)
        if cut not in groups or (cut == 1 and weight.dim() > 2):
            raise TypeError(f"The weight of layer {name!r} is placed as {placement}: only its rows can be divided.")
        groups[cut].append(weight.device_mesh.get_group(axis))
        if cut == 0:
            # FSDP and tensor parallelism may both cut the rows: over 2 x 4 ranks there are 8 blocks of them.
            row_shards *= weight.device_mesh.size(axis)
        else:
            # All ranks of this axis have the same entries of the bias. Only the first may add them to a sum.
            is_first = is_first and weight.device_mesh.get_local_rank(axis) == 0
    # A column of the weight is a channel, of which D has kh kw columns for a Conv2d. For a Linear, shape[2:] is empty
    # and its numel() is 1.
    kernel = weight.shape[2:].numel()
    first_column, columns = first_column * kernel, columns * kernel
    if bias is not None and _rows(bias) != (first_row, first_row + rows):
        raise TypeError(f"The bias of layer {name!r} is not divided at the rows of its weight.")
    return Block(
        (first_row, first_row + rows),
        (first_column, first_column + columns),
        tuple(groups[0]),
        tuple(groups[1]),
        is_first,
        row_shards,
    )


def ranks_of_a_batch(model: nn.Module, world: int) -> int:
    """Return how many neighbouring ranks share a batch: those of tensor parallelism, 1 without it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for module in model.modules():
        if fsdp is not None and isinstance(module, fsdp.FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # before torch 2.12
            for group in groups:
                if group is not None:
                    # FSDP's mesh has one rank for each batch: with 8 ranks and a mesh of 4, pairs of ranks share one.
                    return max(1, world // int(group.mesh_info.mesh.size()))
    # DTensors without FSDP are those of tensor parallelism, and all ranks of their mesh share a batch.
    sharded: list[Any] = [parameter for parameter in model.parameters() if is_dtensor(parameter)]
    return max((parameter.device_mesh.size() for parameter in sharded), default=1)


def shard_of(tensor: Any) -> ActivationShard:
    """Return the shard of an input or of an output's gradient, of which no other rank holds a replica.

    `ActivationShard.shared_by` takes replicas into account.
    """
    if not is_dtensor(tensor):
        return WHOLE
    last = tensor.dim() - 1
    column_shards, row_shards = 1, 1
    for axis, placement in enumerate(tensor.placements):
        size = tensor.device_mesh.size(axis)
        # Sums over this axis give a column: one rank has it and the others 0, or (Partial) each has a summand. A cut
        # through another dimension, the batch or the tokens, divides the rows.
        if placement.is_partial() or getattr(placement, "dim", None) == last:
            column_shards *= size
        elif not placement.is_replicate():
            row_shards *= size
    return ActivationShard(_last_offset(tensor), column_shards, float(row_shards))


def _rows(bias: Any) -> tuple[int, int]:
    if not is_dtensor(bias):
        return 0, len(bias)
    (chunk,) = bias.__create_chunk_list__()
    return chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0]


def _last_offset(tensor: Any) -> int:
    """Return this rank's first column of a DTensor, which torch cuts into chunks of equal, rounded-up size."""
    size, offset = tensor.shape[-1], 0
    for axis, placement in enumerate(tensor.placements):
        if getattr(placement, "dim", None) == tensor.dim() - 1:
            chunk = -(-size // tensor.device_mesh.size(axis))
            # 5 columns over 4 ranks: chunks of 2, 2, 1 and 0. Without min(), the last would start at column 6.
            start = min(tensor.device_mesh.get_local_rank(axis) * chunk, size)
            offset, size = offset + start, min(chunk, size - start)
    return offset
