"""A step of all layers in a few launches: the table of pointers, the workspaces, and the order of the kernels.

The layers of a `Group` have the same form, width and dtypes, whatever their shapes. What depends on shapes alone is
made once; the table of addresses is sent again only in a step in which a gradient or a state has moved. A kernel that
works on D has a program for each strip of rows, so that the host launches as many kernels for 146 layers as for one.

Launches, in order: `project` reads D, `reduce` adds up P, `windowed` or `rank_one` find numbers for each layer,
`finish` makes b of P, `measure` reads D again where the norm of V has lost its digits, and `correct` replaces D by V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from mkor_core.devices import ALIGNMENT, upload
from mkor_core.method import LayerState, RankOne, Windowed

STRIP: Final = 128
"""Rows of a strip. Its part of ``P = U_L^T D`` has w rows, so that writing and reading it costs 2 w / 128 of D."""
CHUNK: Final = {"step": 16}
"""Columns of a strip that a program holds at a time, if not 32: an optimizer has four numbers for each entry."""
BLOCK: Final = 256
"""Columns of a block of P."""
DEEP: Final = 64
"""Entries of a vector that a program holds at a time."""
GROUP: Final = 4
"""Columns of U that one pass over D takes: more do not fit into registers."""
LARGEST_WINDOW: Final = 16
FIELDS: Final = 19
"""Columns of the table; see `mkor_core.kernels.device`."""
FIXED: Final = 6
"""Numbers of a layer besides those that the window decides; see `mkor_core.kernels.device`."""
TWO_SIDED, ONE_SIDED, EVA = 0, 1, 2
"""What `device` calls FORM."""
ON_STRIPS: Final = ("project", "measure", "correct", "step")
"""The kernels of which a program has a strip."""
STATE: Final = ("left", "right", "left_weights", "right_weights", "left_scale", "right_scale", "batches")
"""The tensors of a state that the table has, in its order."""


def is_possible(form: Windowed | RankOne, window: int) -> bool:
    """Return whether there are kernels for a method's form; window: the columns of a factor."""
    return isinstance(form, RankOne) or window <= GROUP or (window % GROUP == 0 and window <= LARGEST_WINDOW)


class Launch(NamedTuple):
    """One launch of a kernel."""

    kernel: str
    """Its name in `mkor_core.kernels.device`."""
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    """Constants of compilation, dtypes as torch's."""
    group: Group


def _run(launch: Launch) -> None:
    """Launch a kernel on the device of its tensors; on a CPU, in Triton's interpreter."""
    kernel, constants, options = compiled_from(launch)
    kernel[launch.grid](*launch.arguments, **constants, **options)


def compiled_from(launch: Launch) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """Return the kernel of a launch, and the constants and options that it is compiled with."""
    from mkor_core.kernels import applying, device, finding

    constants = {
        name: device.TYPES[value] if isinstance(value, torch.dtype) else value
        for name, value in launch.constants.items()
    }
    module = finding if hasattr(finding, launch.kernel) else applying
    options = {"num_warps": 4}
    if launch.kernel in ON_STRIPS:
        # By loads of 16 bytes a thread holds few rows of a strip at a time, otherwise more, and more of what belongs to
        # a row: it is given less of the strip. With so many registers no kernel spills.
        aligned = launch.group.kind.is_aligned
        most = 160 if aligned and launch.kernel == "step" else 128
        options = {"num_warps": 8 if aligned else 16, "maxnreg": most}
    return getattr(module, launch.kernel), constants, options


_launch: Callable[[Launch], None] = _run


@contextmanager
def recorded(record: Callable[[Launch], None]) -> Iterator[None]:
    """Hand launches to ``record`` in place of a device, to count them."""
    global _launch
    _launch, before = record, _launch
    try:
        yield
    finally:
        _launch = before


def is_recorded() -> bool:
    """Return whether launches go to a recorder, which needs no Triton."""
    return _launch is not _run


class Entry(NamedTuple):
    """One layer in one step."""

    weight: Tensor
    """The gradient of the weight ``[d_out, ...]``, contiguous."""
    bias: Tensor | None
    state: LayerState
    """That of the layer's stack."""
    place: int
    """The layer's place in the stack."""

    def addresses(self) -> list[int]:
        """Return the table's columns that addresses decide: `device.GRAD` to `device.BATCHES`."""
        state = self.state
        places = [self._address(state.get(name)) for name in STATE]
        # Eva's g and a are one row each.
        strides = [state[side].stride(-2) if f"{side}_weights" in state else 0 for side in ("left", "right")]
        bias = 0 if self.bias is None else self.bias.data_ptr()
        return [self.weight.data_ptr(), bias, *places[:2], *strides, *places[2:]]

    def _address(self, tensor: Tensor | None) -> int:
        """Return the address of the layer's part of a stack's tensor; 0 if there is none."""
        return 0 if tensor is None else tensor.data_ptr() + self.place * tensor.stride(0) * tensor.element_size()


class GroupKind(NamedTuple):
    """What the layers of a group have in common."""

    form: int
    window: int
    grad_dtype: torch.dtype
    row_dtype: torch.dtype
    device: torch.device
    is_aligned: bool
    """Whether every row of D starts on a multiple of `ALIGNMENT`."""


def kind_of(entry: Entry, form: Windowed | RankOne) -> GroupKind:
    """Return the kind of a layer."""
    weight, _, state, _ = entry
    right = state["right"]
    columns = weight[0].numel()
    return GroupKind(
        EVA if isinstance(form, RankOne) else TWO_SIDED if "left" in state else ONE_SIDED,
        1 if isinstance(form, RankOne) else right.shape[-2],
        weight.dtype,
        right.dtype,
        weight.device,
        columns % 8 == 0 and weight.data_ptr() % ALIGNMENT == 0,
    )


class Workspace(NamedTuple):
    """The tensors between the kernels of a group."""

    strips: Tensor
    """``[strips, 2]``: the layer, and the strip's number in it."""
    blocks: Tensor
    """``[blocks, 2]``: the layer, and the number of the block of columns in it."""
    outer: Tensor
    """``Q = D U_R`` of all layers."""
    parts: Tensor
    """The strips' parts of P."""
    across: Tensor
    """``P = U_L^T D`` of all layers, later b."""
    squares: Tensor
    """``[strips, 2]``: ``|D|^2`` by weight and bias."""
    measured: Tensor
    """``[strips]``: ``|V|^2``, where it is measured."""
    numbers: Tensor
    """``[layers, numbers]``."""


class Group:
    """Layers whose updates are computed by the same launches.

    Args:
        kind: what they have in common.
        shapes: D's rows, the weight's columns, and whether there is a bias, by layer.
    """

    def __init__(self, kind: GroupKind, shapes: tuple[tuple[int, int, bool], ...]) -> None:
        self.kind = kind
        self.shapes = shapes
        self.table: Tensor
        self._host: Tensor
        """The table in the host's memory, int64."""
        self.numbers = FIXED + kind.window * (2 + kind.window)
        """Numbers of a layer."""
        self.places: list[tuple[int, ...]] = []
        """Of each layer, the columns of the table that shapes decide: `device.ROWS` to `device.ACROSS_AT`."""
        strips, outer, parts, across = 0, 0, 0, 0
        for rows, columns, has_bias in shapes:
            own = -(-rows // STRIP)
            self.places.append((rows, columns, int(has_bias), strips, own, outer, parts, across))
            strips += own
            outer += rows * kind.window
            if kind.form == TWO_SIDED:
                across += (columns + has_bias) * kind.window
                parts += own * (columns + has_bias) * kind.window
        self._sizes = strips, outer, parts, across

    @cached_property
    def workspace(self) -> Workspace:
        """The tensors between the kernels, made in the first step and kept."""
        strips, *sizes = self._sizes
        own = [(layer, number) for layer, place in enumerate(self.places) for number in range(place[4])]
        blocks = [
            (layer, number)
            for layer, (_, columns, has_bias) in enumerate(self.shapes)
            for number in range(-(-(columns + has_bias) // BLOCK))
        ]
        shapes = [*([size] for size in sizes), [strips, 2], [strips], [len(self.shapes), self.numbers]]
        return Workspace(
            self._sent(own, torch.int32),
            self._sent(blocks, torch.int32),
            *(torch.empty(shape, dtype=torch.float32, device=self.kind.device) for shape in shapes),
        )

    def point_to(self, entries: Sequence[Entry]) -> None:
        """Send the addresses of a step."""
        rows = [[*entry.addresses(), *place] for entry, place in zip(entries, self.places, strict=True)]
        self._host = torch.tensor(rows)
        self.table = upload(self._host, self.kind.device)

    def move(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Send the addresses of a step in which only gradients lie elsewhere: each layer's weight's and bias's."""
        addresses = [(parts[0].data_ptr(), parts[1].data_ptr() if len(parts) > 1 else 0) for parts in gradients]
        self._host[:, :2] = torch.tensor(addresses)  # `device.GRAD` and `device.GRAD_BIAS`
        self.table = upload(self._host, self.kind.device)

    def _sent(self, rows: Any, dtype: torch.dtype) -> Tensor:
        return upload(torch.tensor(rows, dtype=dtype), self.kind.device)

    def find(self, form: Windowed | RankOne, terms: Tensor, rates: Tensor) -> None:
        """Read D, and find what V is made of.

        Args:
            form: the method's.
            terms: gets the layers' terms of the clip, of Eva.
            rates: ``[layers, 2]``, the learning rates of weights and biases; of Eva.
        """
        kind, work = self.kind, self.workspace
        one_pass = min(kind.window, GROUP)
        self._launch(
            "project",
            (len(work.strips), kind.window // one_pass),
            (work.strips, work.outer, work.parts, work.squares),
            {**self._on_strips, "HAS_LEFT": kind.form == TWO_SIDED, "GROUP": one_pass, "JOINS_BIAS": kind.form != EVA},
        )
        layers = (len(self.shapes),)
        if isinstance(form, RankOne):
            arguments = (work.outer, work.squares, work.numbers, terms, rates, form.damping)
            constants = {"NUMBERS": self.numbers, "BK": DEEP, "GRAD_TYPE": kind.grad_dtype, "ROW_TYPE": kind.row_dtype}
            self._launch("rank_one", layers, arguments, constants)
            return
        width = {"W": kind.window, "WIDE": LARGEST_WINDOW, "ROW_TYPE": kind.row_dtype}
        if kind.form == TWO_SIDED:
            self._launch(
                "reduce", (len(work.blocks),), (work.blocks, work.parts, work.across), {"W": kind.window, "BC": BLOCK}
            )
        self._launch(
            "windowed",
            layers,
            (work.outer, work.across, work.squares, work.numbers, int(form.rescale)),
            {"NUMBERS": self.numbers, **width, "BK": DEEP, "HAS_LEFT": kind.form == TWO_SIDED},
        )
        if kind.form == TWO_SIDED:
            self._launch(
                "finish",
                (len(work.blocks),),
                (work.blocks, work.across, work.numbers),
                {"NUMBERS": self.numbers, **width, "WIDE": 1 << (kind.window - 1).bit_length(), "BC": BLOCK},
            )
        if form.rescale:
            self._launch(
                "measure",
                (len(work.strips),),
                (work.strips, work.outer, work.across, work.numbers, work.measured),
                {"NUMBERS": self.numbers, **self._on_strips, "FORM": kind.form},
            )

    def correct(
        self, terms: Tensor, bound: float | None, kernel: str = "correct", *more: Any, **constants: Any
    ) -> None:
        """Replace D by V in the gradients, or do what another kernel does with V.

        Args:
            terms: all layers' terms of the clip.
            bound: that of the clip; None for none.
            kernel: the kernel.
            more: its further arguments.
            constants: its further constants.
        """
        work = self.workspace
        self._launch(
            kernel,
            (len(work.strips),),
            (
                *(work.strips, work.outer, work.across, work.numbers, work.measured, terms, len(terms)),
                float("inf") if bound is None else bound,
                *more,
            ),
            {"NUMBERS": self.numbers, **self._on_strips, "BK": DEEP, "FORM": self.kind.form, **constants},
        )

    @cached_property
    def _on_strips(self) -> dict[str, Any]:
        kind = self.kind
        return {
            "W": kind.window,
            "GRAD_TYPE": kind.grad_dtype,
            "ROW_TYPE": kind.row_dtype,
            "ALIGNED": kind.is_aligned,
        }

    def _launch(
        self, kernel: str, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> None:
        if kernel in ON_STRIPS:
            constants |= {"BM": STRIP, "BN": CHUNK.get(kernel, 32)}
        _launch(Launch(kernel, grid, (self.table, *arguments), constants, self))
