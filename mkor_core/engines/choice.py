"""The choice of the capture and of the engine: what a method works on, and which ranks hold the layers' states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from torch import nn
from torch.distributed import ProcessGroup

from mkor_core.capture.blocks import ranks_of_a_batch
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import GradScale
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.sums import Capture
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.layerwise import LayerwiseEngine
from mkor_core.engines.stacked import StackedEngine
from mkor_core.method import Method, StackedMethod
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Coder
from mkor_core.ranks.owners import Owners, assigned
from mkor_core.ranks.schedule import Schedule


def make_capture(
    layers: Mapping[str, Layer],
    method: Method,
    model: nn.Module,
    micro_batches: int,
    grad_scale: GradScale,
    phases: Callable[[str], AbstractContextManager[object]],
    group: ProcessGroup | None,
) -> Capture | RowCapture:
    """Return the hooks that reduce the layers' rows to the statistic of a method.

    Args:
        layers: the layers by name.
        method: the method.
        model: the model of the layers.
        micro_batches: backward passes per step.
        grad_scale: returns the loss scale that captured gradients are divided by; None for 1.
        phases: returns the context manager of a phase of the work.
        group: the ranks.

    Raises:
        TypeError: the method needs whole rows, which tensor-parallel ranks do not have.
    """
    statistic, world = method.statistic, comm.world_size(group)
    sharers = ranks_of_a_batch(model, world)
    if sharers > 1:
        refuse_parts_of_rows(method)
    place = 0 if method.rank_rows else comm.rank(group) // sharers
    make: Callable[..., Capture | RowCapture] = RowCapture
    if statistic.kind != "rows":
        make = partial(Capture, statistic=statistic, place=place, sharers=sharers)
    return make(
        layers,
        micro_batches=micro_batches,
        shares=1 if method.rank_rows else world // sharers,
        grad_scale=grad_scale,
        phases=phases,
    )


def make_engine(
    layers: Mapping[str, Layer],
    method: Method,
    diagnostics: Diagnostics,
    phases: Callable[[str], AbstractContextManager[object]],
    group: ProcessGroup | None,
    owners: bool | None,
    coder: Coder,
    schedule: Schedule | None,
) -> StackedEngine | LayerwiseEngine:
    """Return the engine for a method.

    Args:
        layers: the layers by name.
        method: the method.
        diagnostics: gets the reports.
        phases: returns the context manager of a phase of the work.
        group: the ranks.
        owners: whether layers have owners; None: if gradients are sharded and the method cannot work on their blocks.
        coder: gives the messages between ranks their codings.
        schedule: of factors and decompositions; None: each layer's owner refreshes it.

    Raises:
        ValueError: ``owners`` is false, and the method cannot work on the blocks; or there is nothing to code,
            or to schedule.
    """
    is_sharded = any(layer.block is not None for layer in layers.values())
    needs_owners = is_sharded and not (isinstance(method, StackedMethod) and method.works_on_blocks)
    if owners is False and needs_owners:
        raise ValueError(
            f"owners=False: this {type(method).__name__} needs whole gradients, and the parameters are sharded."
        )
    by_owners = needs_owners if owners is None else owners
    broadcasts = bool(method.refreshed) or method.worker_fraction < 1 or by_owners
    if coder.codec is not None and not method.gathers_rows and (is_sharded or not broadcasts):
        raise ValueError(
            f"codec={coder.codec!r}: this {type(method).__name__} sends nothing that is coded, which are gathered rows "
            "and broadcasts of decompositions and of whole updates; leave the codec out."
        )
    if schedule is not None and (not method.refreshes_sides or method.worker_fraction < 1 or by_owners):
        raise ValueError(
            f"{schedule!r} is for KAISA with grad_worker_fraction=1 and without owners: there all ranks add up the "
            "factors and receive the decompositions. Leave the schedule out."
        )
    if not isinstance(method, StackedMethod):
        return LayerwiseEngine(layers, method, diagnostics, phases, group, coder, schedule, by_owners=by_owners)
    in_order = list(layers.values())
    chosen = Owners(in_order, assigned(in_order, group), group, coder) if by_owners else None
    return StackedEngine(layers, method, diagnostics, phases, chosen, group)


def refuse_parts_of_rows(method: Method) -> None:
    """Raise an error for a method that tensor parallelism does not suit.

    Raises:
        TypeError: the method needs whole rows of inputs and gradients.
    """
    if method.statistic.kind != "mean":
        raise TypeError(
            f"This {type(method).__name__} needs whole rows of inputs and gradients, which tensor-parallel ranks do "
            "not have: use MKOR with rank=1, or Eva."
        )
