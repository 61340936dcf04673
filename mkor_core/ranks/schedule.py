"""SPD-KFAC's schedule (Shi et al., 2021): which messages travel together, and which rank decomposes which factor.

Plans only; they hold no tensor and change no number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Annotated, NamedTuple, TypeVar

from mkor_core.ranges import AT_LEAST_1, NOT_NEGATIVE, checked_values

Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The costs from which the factors' messages and decompositions are planned. Measure those of your machine.

    The factors are summed in asynchronous all-reduces, the inputs' in the model's order, then the gradients' in the
    opposite one, each as an upper triangle. All are launched in the step, after the backward pass: a message travels
    while the next factors are packed, and while those that have arrived are unpacked. Nothing overlaps with the forward
    or the backward pass, as it does in the original.

    Decompositions begin when all factors have arrived. One that fails leaves its factor's tensors as they were, not
    those of the whole layer.

    Raises:
        ValueError: a value out of its range, by name.
    """

    startup: Annotated[float, NOT_NEGATIVE, "the seconds that an all-reduce takes whatever its size"] = 1e-4
    seconds_per_number: Annotated[float, NOT_NEGATIVE, "the seconds that an all-reduce takes for each number"] = 1e-9
    packing_per_number: Annotated[float, NOT_NEGATIVE, "the seconds in which a number is packed"] = 1e-9
    """From which the times follow at which factors are ready."""
    everywhere_below: Annotated[int, AT_LEAST_1, "the dimension from which one rank decomposes a factor for all"] = 1024
    """Smaller factors are decomposed on every rank, without a message. 1024 is the released code's."""

    def __post_init__(self) -> None:
        checked_values(type(self), {field.name: getattr(self, field.name) for field in fields(self)})

    def messages(self, sizes: Sequence[int]) -> list[range]:
        """Return the indices of the factors that travel together, message by message.

        sizes: the numbers of the factors' triangles, in the order in which they are packed.
        """
        # One factor is packed after the other, so each is ready when all before it are packed too.
        ready = list(accumulate(size * self.packing_per_number for size in sizes))
        return merged(ready, sizes, self.startup, self.seconds_per_number)


class Message(NamedTuple):
    """Neighbouring factors in one all-reduce, as far as they are planned."""

    members: range
    numbers: int
    start: float


def merged(ready: Sequence[float], sizes: Sequence[int], startup: float, per_number: float) -> list[range]:
    """Return the messages, as ranges of indices, in which SPD-KFAC's rule lets factors travel.

    A factor joins the message before it if it is ready before that message would end, and either before it would start
    or less than ``startup`` after. The last message then ends no later than without any merging, and no later than one
    message of all.

    Args:
        ready: the times at which the factors are ready, ascending.
        sizes: their numbers.
        startup: the seconds of an all-reduce without content.
        per_number: the additional seconds for each number.
    """
    # Example: startup 3, one second for each number, three factors of 2 numbers that are ready at 0, 1 and 10. The
    # first would travel from 0 to 5. The second is ready at 1 < 5, and waiting for it costs less than another startup:
    # both travel from 1 to 8. The third comes later and travels alone from 10 on: [range(0, 2), range(2, 3)].
    messages: list[range] = []
    free = 0.0  # the end of the messages that are complete
    pending: Message | None = None
    for index, (time, size) in enumerate(zip(ready, sizes, strict=True)):
        if pending is not None:
            end = pending.start + startup + per_number * pending.numbers
            # Before the start (the message still waits for the one before it), joining delays nothing.
            if time < end and (time < pending.start or time - pending.start < startup):
                # The message now has to wait until its last factor is ready.
                members = range(pending.members.start, index + 1)
                pending = Message(members, pending.numbers + size, max(free, time))
                continue
            messages.append(pending.members)
            free = end  # one message travels at a time
        pending = Message(range(index, index + 1), size, max(free, time))
    return messages if pending is None else [*messages, pending.members]


def finish(
    messages: Sequence[range], ready: Sequence[float], sizes: Sequence[int], startup: float, per_number: float
) -> float:
    """Return the time at which the last of some messages ends, one after the other; see `merged`."""
    end = 0.0
    for members in messages:
        # A message starts when the one before it has ended and its own last factor is ready.
        end = max(end, ready[members[-1]]) + startup + per_number * sum(sizes[index] for index in members)
    return end


def balanced(dimensions: Mapping[Key, int], ranks: int, everywhere_below: int) -> dict[Key, int | None]:
    """Return the rank that decomposes each factor; None: every rank does.

    The others go, largest first, to the rank with the least work so far, which is cubic in the dimension. Ties go to
    the earlier factor and rank, so that all ranks compute the same.
    """
    # With 2 ranks, from dimension 1024: 4096 goes to rank 0, both of 2048 to rank 1 (2 * 2048^3 is a quarter of
    # 4096^3), 512 to all.
    load = [0.0] * ranks
    places: dict[Key, int | None] = dict.fromkeys(dimensions)
    for key in sorted(dimensions, key=lambda key: -dimensions[key]):
        if dimensions[key] >= everywhere_below:
            rank = min(range(ranks), key=lambda rank: load[rank])
            places[key] = rank
            load[rank] += float(dimensions[key]) ** 3  # a decomposition takes d^3 operations
    return places
