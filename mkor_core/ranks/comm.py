"""Collectives that send flat buffers, one for each dtype, and count the bytes handed to them.

On one process every function returns its input, so callers never branch on the number of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mkor_core.devices import upload
from mkor_core.ranks.codec import Coding

ROUNDS = 3
"""In which many bytes are broadcast, so that their buffers take a third of the memory."""
LARGE = 2**26
"""From how many bytes on."""

_bytes: Counter[str] = Counter()  # of this process, over all preconditioners in it


def bytes_sent() -> dict[str, int]:
    """Return the payload bytes that this process has handed to each collective since `reset_bytes_sent`."""
    return dict(_bytes)


def reset_bytes_sent() -> None:
    """Start counting from zero."""
    _bytes.clear()


def count_bytes(collective: str, tensor: Tensor) -> None:
    """Add one call's payload to `bytes_sent`."""
    _bytes[collective] += tensor.numel() * tensor.element_size()


def is_distributed() -> bool:
    """Return whether the default process group is initialized."""
    return dist.is_available() and dist.is_initialized()


def world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of ranks in ``group`` (default: all), 1 without a process group."""
    return dist.get_world_size(group) if is_distributed() else 1


def rank(group: ProcessGroup | None = None) -> int:
    """Return this process's rank in ``group`` (default: all), 0 without a process group."""
    return dist.get_rank(group) if is_distributed() else 0


def require_rank(rank: int | None, group: ProcessGroup | None = None) -> None:
    """Raise a ValueError unless ``group`` has a rank, or it is None."""
    ranks = world_size(group)
    if rank is not None and not 0 <= rank < ranks:
        raise ValueError(f"rank={rank!r} is not one of the {ranks} ranks of the group: 0 to {ranks - 1}.")


def global_rank(rank: int, group: ProcessGroup | None = None) -> int:
    """Return the rank among all that a rank of ``group`` has."""
    # Broadcasts name their source by its global rank, also within a group: rank 0 of the group (1, 3) is rank 1.
    return rank if group is None else dist.get_global_rank(group, rank)


def sum_across_ranks(tensors: Sequence[Tensor], group: ProcessGroup | None = None) -> list[Tensor]:
    """Return every tensor summed over the ranks, by one flat all-reduce for each dtype."""
    return start_sum(tensors, group)()


def start_sum(tensors: Sequence[Tensor], group: ProcessGroup | None = None) -> Callable[[], list[Tensor]]:
    """Launch what `sum_across_ranks` does; return a function that waits for the sums and returns them."""
    if world_size(group) == 1 or not tensors:
        return lambda: list(tensors)
    launched: list[tuple[list[int], Tensor, Any]] = []
    # Sorted by dtype, in the same order on every rank: tensors of one dtype share a buffer.
    # The sort is stable, so within a dtype the tensors keep the caller's order, which must be the same on all ranks.
    by_dtype = sorted(range(len(tensors)), key=lambda i: str(tensors[i].dtype))
    for _, group_of_indices in groupby(by_dtype, key=lambda i: tensors[i].dtype):
        indices = list(group_of_indices)
        # A copy, so the caller's tensors keep this rank's values; ``launched`` keeps it alive while it is being summed.
        flat = torch.cat([tensors[i].reshape(-1) for i in indices])
        launched.append((indices, flat, dist.all_reduce(flat, group=group, async_op=True)))
        count_bytes("all_reduce", flat)

    def arrived() -> list[Tensor]:
        summed: dict[int, Tensor] = {}
        for indices, flat, work in launched:
            # For NCCL this makes the current stream wait, not the host; gloo blocks the host.
            work.wait()
            for i, part in zip(indices, flat.split([tensors[i].numel() for i in indices]), strict=True):
                summed[i] = part.view(tensors[i].shape)
        return [summed[i] for i in range(len(tensors))]

    return arrived


def sum_over_groups(parts: Sequence[tuple[Tensor, Sequence[ProcessGroup]]]) -> list[Tensor]:
    """Return tensors summed over their groups, one after the other; one flat all-reduce for each group and dtype.

    All ranks of a group pass tensors of the same shapes in the same order.
    """
    values = [tensor for tensor, _ in parts]
    # Example: on the 2 x 2 mesh [[0, 1], [2, 3]] rank 0 sums with rank 2, rank 1 with rank 3, and then rank 0 with rank
    # 1: the second sum contains all four. All ranks go through the mesh's dimensions in the same order; else they would
    # wait for each other in a circle, or add some terms twice.
    for group in dict.fromkeys(group for _, groups in parts for group in groups):
        indices = [index for index, (_, groups) in enumerate(parts) if group in groups]
        for index, total in zip(indices, sum_across_ranks([values[i] for i in indices], group), strict=True):
            values[index] = total
    return values


def gather_rows(
    tensors: Sequence[Tensor], group: ProcessGroup | None = None, coding: Coding | None = None
) -> list[Tensor]:
    """Return the rows of all ranks, in rank order, of every tensor ``[n, d]``; n may differ between ranks.

    The host waits once, for the numbers of rows of all tensors. With a coding, the tensors of a rank travel together.
    """
    if world_size(group) == 1 or not tensors:
        return list(tensors)
    if coding is not None:
        return _gather_coded(tensors, coding, group)
    # With x and g of one layer, 3 rows on rank 0 and 5 on rank 1: [[3, 3], [5, 5]] by rank, and after the transposition
    # [[3, 5], [3, 5]] by tensor.
    here = upload(torch.tensor([len(rows) for rows in tensors]), tensors[0].device)
    by_tensor = gather_numbers(here, group).T.tolist()
    return [torch.cat(_gather_rows(rows, numbers, group)) for rows, numbers in zip(tensors, by_tensor, strict=True)]


def _gather_coded(tensors: Sequence[Tensor], coding: Coding, group: ProcessGroup | None) -> list[Tensor]:
    """Return the decoded rows of all ranks, those of this rank too."""
    messages = coding.encode(tensors)
    # Of every tensor the number of rows and the bytes that they are coded in.
    here = torch.tensor([[len(rows), len(message)] for rows, message in zip(tensors, messages, strict=True)])
    numbers = gather_numbers(upload(here, tensors[0].device), group)
    # Numbers of rows are sent, uncounted, without a code too; the lengths, 8 bytes a tensor, are a cost of the code.
    count_bytes("all_gather", numbers[0, :, 1])
    by_rank: list[list[list[int]]] = numbers.tolist()
    # The messages of a rank travel end to end, as a column [bytes, 1], whose rows are bytes.
    totals = [sum(length for _, length in of_rank) for of_rank in by_rank]
    parts = _gather_rows(torch.cat(messages)[:, None], totals, group)
    decoded = [
        coding.decode(
            # This rank's part is decoded like the others': all ranks must go on with the same numbers.
            part[:, 0].split([length for _, length in of_rank]),
            [(rows, *tensor.shape[1:]) for (rows, _), tensor in zip(of_rank, tensors, strict=True)],
            tensors,
        )
        for of_rank, part in zip(by_rank, parts, strict=True)
    ]
    return [torch.cat(rows) for rows in zip(*decoded, strict=True)]


def _gather_rows(rows: Tensor, numbers: Sequence[int], group: ProcessGroup | None) -> list[Tensor]:
    """Return the rows by rank; numbers: how many each rank has."""
    # all_gather needs the same shape from every rank: pad to the most rows, and cut the padding off afterwards.
    # With 3, 5, 0 and 4 rows on 4 ranks, each sends 5.
    padded = torch.nn.functional.pad(rows, (0, 0, 0, max(numbers) - len(rows))).contiguous()
    gathered = [torch.empty_like(padded) for _ in numbers]
    dist.all_gather(gathered, padded, group=group)
    count_bytes("all_gather", padded)
    return [part[:number] for part, number in zip(gathered, numbers, strict=True)]


def gather_numbers(numbers: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the tensors of all ranks, stacked in rank order; of one shape and dtype. The bytes are not counted."""
    everywhere = [torch.empty_like(numbers) for _ in range(world_size(group))]
    if len(everywhere) == 1:  # perhaps without a process group
        return numbers[None]
    dist.all_gather(everywhere, numbers, group=group)
    return torch.stack(everywhere)


def all_to_all(
    sent: Sequence[Sequence[Tensor]],
    expected: Sequence[Sequence[tuple[int, ...]]],
    like: Tensor,
    group: ProcessGroup | None = None,
) -> list[list[Tensor]]:
    """Return the tensors that the other ranks send to this one, in one collective.

    Args:
        sent: the tensors to send, by destination; nothing to this rank itself.
        expected: the shapes of the tensors that arrive, by source.
        like: a tensor of the dtype and the device of all.
        group: the ranks; None means all.
    """
    sizes = [[prod(shape) for shape in shapes] for shapes in expected]
    if world_size(group) == 1:
        return [[]]
    # In the order of ranks, as all_to_all_single cuts the buffer. If rank 0 of 4 sends a to 1, and b and c to 3, the
    # buffer is a, b, c and its parts have the sizes 0, |a|, 0, |b| + |c|.
    parts = [part.reshape(-1) for parts in sent for part in parts]
    # A rank that sends nothing must make the call too, or the others wait for it forever.
    flat = torch.cat(parts) if parts else like.new_empty(0)
    received = like.new_empty(sum(map(sum, sizes)))
    dist.all_to_all_single(
        received, flat, [sum(size) for size in sizes], [sum(p.numel() for p in parts) for parts in sent], group=group
    )
    count_bytes("all_to_all", flat)
    by_source = received.split([sum(size) for size in sizes])
    return [
        [part.view(shape) for part, shape in zip(flat.split(size), shapes, strict=True)] if size else []
        for flat, size, shapes in zip(by_source, sizes, expected, strict=True)
    ]


def broadcast(tensors: Sequence[Tensor], source: int, group: ProcessGroup | None = None) -> list[Tensor]:
    """Return the tensors of the global rank ``source``, in one flat broadcast.

    All ranks pass tensors of the same shapes and one dtype. Bytes are counted on the source only.
    """
    if world_size(group) == 1 or not tensors:
        return list(tensors)
    # On the other ranks this only makes a buffer of the right size, whose values are overwritten.
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.broadcast(flat, source, group=group)
    if dist.get_rank() == source:
        count_bytes("broadcast", flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def broadcast_all(
    own: Sequence[Tensor],
    targets: Sequence[Sequence[Tensor]],
    group: ProcessGroup | None = None,
    coding: Coding | None = None,
) -> None:
    """Write the tensors that every rank has for all into ``targets``: two collectives, or `ROUNDS` times as many.

    What R ranks have, T bytes laid end to end, is cut into R equal pieces. An all-to-all brings each rank its piece,
    and an all-gather brings all pieces to all. A rank sends its own b bytes at most once in the first, T / R to each of
    the others in the second, however unequally the ranks' parts are. Of other ways,

    - a broadcast from each rank is one collective for each, one after the other: 146 for the layers of BERT-Large;
    - one all-gather pads the parts to the longest: with 1.2 GB on 146 of 1,024 ranks, 17 GB on the wire and in memory;
    - one all-to-all has each of those 146 send its 4 to 17 MB 1,023 times.

    From `LARGE` bytes on, the tensors travel in rounds, so that the buffers take T / ROUNDS and a tensor at most.

    Bytes are counted as broadcast: those of this rank's tensors. If the lengths of coded tensors depend on their
    entries, the ranks tell each other in a further collective, for which the host waits.

    Args:
        own: this rank's tensors, of the shapes of its targets.
        targets: by rank, tensors of one dtype to overwrite, this rank's too; the same shapes on all ranks.
        group: the ranks; None means all.
        coding: that of this rank's message; None: the tensors travel as they are.
    """
    here = rank(group)
    everything = [target for of_rank in targets for target in of_rank]
    if not everything:
        return
    if world_size(group) == 1:
        for target, tensor in zip(everything, own, strict=True):
            if target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor)
        return
    messages = [tensor.reshape(-1) for tensor in own] if coding is None else coding.encode(own)
    lengths = _lengths(messages, targets, coding, group)
    dtype = everything[0].dtype if coding is None else torch.uint8
    empty = torch.empty(0, dtype=dtype, device=everything[0].device)
    for indices in _rounds(lengths, dtype.itemsize):
        flat = torch.cat([empty, *(messages[index] for index in indices[here])])
        if len(flat):
            count_bytes("broadcast", flat)
        numbers = [lengths[source][index] for source, chosen in enumerate(indices) for index in chosen]
        stream = _pieces_of_all(
            flat, [sum(lengths[source][i] for i in each) for source, each in enumerate(indices)], group
        )
        arrived = iter(stream[: sum(numbers)].split(numbers))
        for source, chosen in enumerate(indices):
            for index in chosen:
                target, part = targets[source][index], next(arrived)
                if coding is not None:  # also on the sender, which goes on with the same numbers as the others
                    (part,) = coding.decode([part], [target.shape], [target])
                target.copy_(part.view(target.shape))


def _lengths(
    messages: Sequence[Tensor], targets: Sequence[Sequence[Tensor]], coding: Coding | None, group: ProcessGroup | None
) -> list[list[int]]:
    """Return the numbers or, with a coding, the bytes of all ranks' messages."""
    if coding is None:
        return [[target.numel() for target in of_rank] for of_rank in targets]
    known = [[coding.codec.length(target.shape, target.dtype) for target in of_rank] for of_rank in targets]
    if all(length is not None for of_rank in known for length in of_rank):
        return [[length or 0 for length in of_rank] for of_rank in known]
    # Every rank knows from the shapes and the codec whether a length is missing, so all enter this sum or none does.
    here = rank(group)
    zeros = [[0] * len(of_rank) for of_rank in targets]
    zeros[here] = [len(message) for message in messages]
    device = next(target for of_rank in targets for target in of_rank).device
    everywhere = upload(torch.tensor([length for of_rank in zeros for length in of_rank]), device)
    dist.all_reduce(everywhere, group=group)
    if messages:
        count_bytes("broadcast", everywhere[: len(messages)])
    found = iter(everywhere.tolist())
    return [[int(next(found)) for _ in of_rank] for of_rank in targets]


def _rounds(lengths: Sequence[Sequence[int]], itemsize: int) -> list[list[list[int]]]:
    """Return the rounds in which messages travel: of each, by rank, the indices of its messages."""
    number = ROUNDS if itemsize * sum(map(sum, lengths)) >= LARGE else 1
    rounds: list[list[list[int]]] = [[[] for _ in lengths] for _ in range(number)]
    filled = [0] * number
    for source, of_rank in enumerate(lengths):
        own = [0] * number
        for index, length in enumerate(of_rank):
            # Each rank's messages are spread over the rounds first, so that in a round the ranks have similar parts.
            chosen = min(range(number), key=lambda one: (own[one], filled[one]))
            own[chosen] += length
            filled[chosen] += length
            rounds[chosen][source].append(index)
    return rounds


def _pieces_of_all(flat: Tensor, sizes: Sequence[int], group: ProcessGroup | None) -> Tensor:
    """Return the flat buffers of all ranks end to end, and some padding; sizes: by rank."""
    world, here = len(sizes), rank(group)
    edges = [0, *accumulate(sizes)]
    piece = -(-edges[-1] // world)

    def shared(source: int, holder: int) -> int:
        """Return how much of a rank's buffer lies in another's piece."""
        return max(0, min(edges[source + 1], (holder + 1) * piece) - max(edges[source], holder * piece))

    # With sizes 5, 0 and 1 on 3 ranks the pieces have 2 numbers: rank 0 keeps 2, sends 2 to rank 1 and 1 to rank 2,
    # whose other one is its own. Buffer and piece are in the order of the stream, so nothing has to be rearranged.
    sent, received = (
        [shared(*pair) for pair in pairs]
        for pairs in ([(here, holder) for holder in range(world)], [(source, here) for source in range(world)])
    )
    own = flat.new_empty(piece)
    dist.all_to_all_single(own[: sum(received)], flat, received, sent, group=group)
    stream = flat.new_empty(world * piece)
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its older name
    all_gather(stream, own, group=group)
    return stream


class Triangles:
    """Packs symmetric matrices as their upper triangles.

    The positions of a triangle's entries are kept for each dimension and device while the object lives: in one exchange
    they serve many layers, and beyond it they would take as much memory as a factor.
    """

    def __init__(self) -> None:
        self._positions: dict[tuple[int, torch.device], Tensor] = {}

    def pack(self, matrix: Tensor) -> Tensor:
        """Return the upper triangle of a symmetric ``[d, d]`` matrix as ``[d (d + 1) / 2]``."""
        return matrix.flatten().index_select(0, self._positions_of(len(matrix), matrix.device))

    def unpack(self, triangle: Tensor, dimension: int) -> Tensor:
        """Return the symmetric ``[d, d]`` matrix of an upper triangle that `pack` returned."""
        # The lower triangle is 0 until the strictly upper one is added to it, transposed; the diagonal stays.
        matrix = triangle.new_zeros(dimension * dimension)
        matrix.index_copy_(0, self._positions_of(dimension, triangle.device), triangle)
        matrix = matrix.view(dimension, dimension)
        return matrix + matrix.triu(1).T

    def _positions_of(self, dimension: int, device: torch.device) -> Tensor:
        """Return the places of the upper triangle among the ``d^2`` entries. Unlike a mask's, their number is known."""
        key = dimension, device
        if key not in self._positions:
            rows, columns = torch.triu_indices(dimension, dimension, device=device)
            self._positions[key] = rows * dimension + columns  # [0, 1, 2, 4, 5, 8] for d = 3
        return self._positions[key]
