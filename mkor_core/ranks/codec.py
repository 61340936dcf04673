"""A lossy codec for second-order messages, in the manner of COMPSO: drop small entries, round the rest stochastically.

It applies to what one rank computes and others receive: gathered rows, decompositions or inverses, and updates. The
sender uses the decoded message too, so that all ranks have the same numbers. Not coded are

- sums by all-reduce, which add up numbers on their way: each rank's coded part would have to reach every other rank,
  which is more than a ring sends as soon as there are more ranks than the code saves;
- the blocks of sharded gradients and updates, which owners exchange with other ranks;
- tensors of less than two dimensions: eigenvalues, whose small values matter, and biases. They are few;
- checkpoints.

A coded matrix is its scale s, the largest magnitude divided by ``2^(bits - 1) - 1``, as float32 (float64 for a float64
matrix); then, if entries are dropped, a mask of one bit for each entry; then the kept entries as integers k of ``bits``
bits each. They decode to ``s k``. The last byte of either part is padded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Annotated, Literal

import torch
from torch import Tensor

from mkor_core.ranges import Range, checked_values


@dataclass(frozen=True, kw_only=True)
class Codec:
    """The settings of the code.

    A kept entry is wrong by less than ``max / (2^(bits - 1) - 1)``, and right in expectation; a dropped one becomes 0.

    Raises:
        ValueError: a value out of its range, by name.
    """

    bits: Literal[2, 4, 8, 16] = 8
    """Bits of an integer, its sign included."""
    drop: Annotated[float, Range(at_least=0, below=1), "the dropped magnitudes, as a share of a matrix's largest"] = 0.0
    """0 drops nothing and needs no mask. A mask pays if it leaves out more than one entry in ``bits``; the ranks must
    then tell each other the lengths of their messages, for which the host waits."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Of the random numbers, which depend on the step and the message besides."""

    def __post_init__(self) -> None:
        checked_values(type(self), {field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def levels(self) -> int:
        """The largest integer."""
        return int(2 ** (self.bits - 1) - 1)  # 127 of 8 bits, 7 of 4, 1 of 2: as many negative as positive ones

    def length(self, shape: Sequence[int], dtype: torch.dtype) -> int | None:
        """Return the bytes of a coded tensor; None if they depend on its entries."""
        if not _is_coded(shape):
            return prod(shape) * dtype.itemsize
        # A [2, 3] float32 matrix with 4 bits: 4 bytes for the scale, and 6 * 4 bits = 3 bytes. With a mask, the number
        # of kept entries is known to the sender alone.
        return None if self.drop else _wide(dtype).itemsize + _packed_bytes(prod(shape), self.bits)


@dataclass(frozen=True)
class Coding:
    """The codec of one message, with the seed of its random numbers."""

    codec: Codec
    seed: int

    def encode(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the bytes of every tensor, all on one device."""
        if not tensors:
            return []
        # One generator for the whole message, so that equal matrices in it are not rounded alike. Receivers need none.
        generator = torch.Generator(tensors[0].device).manual_seed(self.seed)
        return [encode(tensor, self.codec, generator) for tensor in tensors]

    def decode(
        self, messages: Sequence[Tensor], shapes: Sequence[Sequence[int]], like: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the tensors that `encode` was given, but for the code's error; of the dtypes of ``like``."""
        return [
            decode(message, shape, tensor.dtype, self.codec)
            for message, shape, tensor in zip(messages, shapes, like, strict=True)
        ]


class Coder:
    """Gives every message of a step its coding.

    The seed depends on the codec's seed, the step and the message's name, so that a resumed run draws the same numbers,
    and ranks that send the same message to different receivers send the same bytes.

    codec: None: messages travel as they are.
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self.codec = codec
        self.step = 0
        """The step (from 0) that sends messages now."""

    def coding(self, kind: str, sender: int) -> Coding | None:
        """Return the coding of a message; None if there is no codec.

        Args:
            kind: what is sent, of which a sender sends one message in a step.
            sender: the number of the rank, or of several that send the same message.
        """
        if self.codec is None:
            return None
        # Ranks round independently, so that their errors average out. But KAISA's workers of one column, which send the
        # same updates, must round alike: they pass the column as sender. Python's hash() differs between processes.
        key = f"{self.codec.seed} {self.step} {kind} {sender}"
        return Coding(self.codec, int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))


def encode(tensor: Tensor, codec: Codec, generator: torch.Generator) -> Tensor:
    """Return a tensor's bytes ``[n]``, as uint8 on its device.

    A matrix with a NaN or an infinity is coded so that it decodes to NaN everywhere.
    """
    if not _is_coded(tensor.shape):
        return _bytes_of(tensor)
    # Half-precision tensors are coded in float32: their own dtype would round the quotients below.
    values = tensor.reshape(-1).to(_wide(tensor.dtype))
    largest = values.abs().max() if len(values) else values.new_zeros(())
    # With 4 bits, [14, -3, 0.5] has the scale 2 and the quotients [7, -1.5, 0.25]. They become 7, -1 or -2, and 0 or
    # (one time in four) 1. A NaN scale makes all quotients 0; decoding multiplies these zeros by NaN.
    scale = torch.where(largest.isfinite(), largest / codec.levels, torch.nan)
    parts = [_bytes_of(scale)]
    # The scale of zeros, or of the smallest magnitudes that there are, is 0.
    values = torch.where(scale > 0, values / scale, 0)
    if codec.drop:
        # The largest quotient is ``levels``, so this compares with a share of the matrix's largest entry.
        keeps = values.abs() >= codec.drop * codec.levels
        parts.append(_pack(keeps.to(torch.uint8), 1))
        values = values[keeps]  # the host waits here for their number
    # A quotient goes up with the probability of its fractional part: the expectation of the result is the quotient.
    below = values.floor()
    noise = torch.rand(values.shape, generator=generator, dtype=values.dtype, device=values.device)
    # Rounding can make the largest quotient larger than the levels.
    rounded = (below + (noise < values - below)).clamp(-codec.levels, codec.levels)
    return torch.cat([*parts, _pack_integers(rounded, codec)])


def decode(message: Tensor, shape: Sequence[int], dtype: torch.dtype, codec: Codec) -> Tensor:
    """Return the tensor of a shape and dtype whose `encode` returned ``message``."""
    if not _is_coded(shape):
        return _from_bytes(message, dtype).view(tuple(shape))
    wide, number = _wide(dtype), prod(shape)
    # The order of `encode`: scale, mask, integers.
    scale, message = _from_bytes(message[: wide.itemsize], wide), message[wide.itemsize :]
    if codec.drop:
        mask_bytes = _packed_bytes(number, 1)
        keeps = _unpack(message[:mask_bytes], 1, number).bool()
        values = torch.zeros(number, dtype=wide, device=message.device)
        # The message's length does not tell the number of integers, since its last byte may be padded.
        values[keeps] = _unpack_integers(message[mask_bytes:], codec, int(keeps.sum())).to(wide)
    else:
        values = _unpack_integers(message, codec, number).to(wide)
    return (values * scale).to(dtype).view(tuple(shape))


def _is_coded(shape: Sequence[int]) -> bool:
    return len(shape) >= 2


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _from_bytes(message: Tensor, dtype: torch.dtype) -> Tensor:
    return message.clone().view(dtype)  # a slice of a buffer may begin at any byte


def _pack_integers(values: Tensor, codec: Codec) -> Tensor:
    """Return the bytes of whole numbers between minus and plus the codec's levels."""
    if codec.bits == 16:
        # Whole bytes need no packing, and int16 has a sign; fewer bits are packed from uint8, which has none.
        return _bytes_of(values.to(torch.int16))
    return _pack((values + codec.levels).to(torch.uint8), codec.bits)


def _unpack_integers(message: Tensor, codec: Codec, number: int) -> Tensor:
    if codec.bits == 16:
        return _from_bytes(message, torch.int16)
    return _unpack(message, codec.bits, number).to(torch.int16) - codec.levels


def _packed_bytes(number: int, bits: int) -> int:
    return -(-number * bits // 8)  # rounded up


def _pack(values: Tensor, bits: int) -> Tensor:
    """Return whole numbers of a few bits, as uint8, packed into bytes; the first has the lowest bits."""
    # 4-bit numbers 3, 9, 5: padded to [3, 9, 5, 0], as pairs [[3, 9], [5, 0]], shifted by [0, 4] and summed: 0x93,
    # 0x05. The bits do not overlap, so the sum is their union.
    in_a_byte = 8 // bits
    padded = torch.nn.functional.pad(values, (0, -len(values) % in_a_byte))
    packed: Tensor = (padded.view(-1, in_a_byte) << _shifts(bits, values.device)).sum(1, dtype=torch.uint8)
    return packed


def _unpack(message: Tensor, bits: int, number: int) -> Tensor:
    """Return the first numbers that `_pack` packed, as uint8."""
    values: Tensor = (message[:, None] >> _shifts(bits, message.device)) & (2**bits - 1)  # [bytes, numbers in a byte]
    return values.reshape(-1)[:number]  # without the padding


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
