"""Reports of what a step could not use: layers without statistics, values that are not finite, failed decompositions.

Each is logged once for each layer; if layers have owners, what concerns a layer's state by its owner alone.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from mkor_core.capture.autograd import is_zero
from mkor_core.capture.discovery import Roster
from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import Sums
from mkor_core.devices import Deferred

logger = logging.getLogger(__name__)

NO_STATISTICS = "have a gradient but no statistics in a step that updates the factors; they keep what they had"
NOISE = "have a mean gradient row that is zero or rounding noise, which does not update their left factor"
NOT_FINITE = "have statistics that are not finite, which are left out"
DECOMPOSITION = "keep what they had, because a decomposition failed"
OTHER_WEIGHT = "are left to the base optimizer: their weight or bias has become complex or a function of others"
SPARSE_GRADIENT = "are left to the base optimizer, because their gradient is sparse"


class Diagnostics:
    """The reports of one preconditioner.

    Args:
        method: the name of its method.
        roster: the modules of its model, so that layers that come later are reported; None: they are not.
    """

    def __init__(self, method: str, roster: Roster | None = None) -> None:
        self._method = method
        self._roster = roster
        self._reported: set[tuple[str, str]] = set()
        self._warned_of_evaluation = False
        self.flags: dict[str, tuple[list[str], Deferred]] = {}
        """What `settle` is to report, each with layers and flags on their way to the host."""

    def report(self, what: str, layers: Iterable[str]) -> None:
        """Log the layers for which this has not been reported."""
        names = [name for name in layers if (what, name) not in self._reported]
        self._reported.update((what, name) for name in names)
        if names:
            logger.warning("%s: layers %s %s.", self._method, ", ".join(repr(name) for name in names), what)

    def report_failure(self, *layers: str) -> None:
        """Log that a decomposition of layers has failed."""
        self.report(DECOMPOSITION, layers)

    def guard(self, layer: str, work: Callable[[], None]) -> None:
        """Do some work on a layer; log that a decomposition has failed, if one does."""
        # torch.linalg.eigh, for instance, may not converge on a factor that has a NaN or is very badly conditioned. The
        # layer then keeps its last decomposition, and training goes on.
        try:
            work()
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            self.report_failure(layer)

    def check_weights(self, layers: Iterable[Layer]) -> None:
        """Report layers of which the weight or gradient has become one that cannot be preconditioned, or that are new.

        Raises:
            RuntimeError: a layer has been sharded since it was found.
        """
        layers = list(layers)
        # fully_shard puts DTensors in the place of parameters; the states and exchanges were made for whole ones.
        if late := [layer.name for layer in layers if layer.was_sharded_later]:
            raise RuntimeError(f"Layer {late[0]!r} has been sharded: make the Preconditioner after fully_shard.")
        self._check_roster()
        self.report(OTHER_WEIGHT, [layer.name for layer in layers if layer.weight is None])
        self.report(SPARSE_GRADIENT, [layer.name for layer in layers if layer.has_sparse_gradient()])

    def check_coverage(self, layers: Sequence[Layer], reached: Collection[str], statistics: Mapping[str, Sums]) -> None:
        """Report layers that have a gradient but no statistics in a step that needs them.

        Args:
            layers: those that are trained.
            reached: those that a backward pass of this rank has reached.
            statistics: those of all ranks, by layer, with the number 0 if there are none. To read the number makes the
                host wait, so it is read for layers that this rank has not reached, until another rank has.

        Raises:
            RuntimeError: no layer has statistics, and the gradients are not those of an evaluation mode.
        """
        # Another rank may have used the layer (an expert that got no tokens here): DDP gives its gradient to all ranks.
        missing = [layer for layer in layers if layer.has_gradient() and layer.name not in reached]
        # Once a layer is dealt with, its number is not read again, for which the host would wait in every step. But
        # where nothing was captured, an error may be due in any step.
        missing = [layer for layer in missing if (NO_STATISTICS, layer.name) not in self._reported or not reached]
        elsewhere = {
            layer.name for layer in missing if layer.name in statistics and bool(statistics[layer.name].number > 0)
        }
        self._reported.update((NO_STATISTICS, name) for name in elsewhere)  # dealt with, although not logged
        missing = [layer for layer in missing if layer.name not in elsewhere]
        if reached or elsewhere:
            self.report(NO_STATISTICS, [layer.name for layer in missing])
            return
        # zero_grad(set_to_none=False) leaves gradients of zeros, which are no sign of a backward pass.
        missing = [layer for layer in missing if not all(is_zero(parameter.grad) for parameter in layer.parameters)]
        # In evaluation mode the hooks capture nothing, by design, so that a warning is enough.
        if any(layer.module.training for layer in missing):
            raise RuntimeError(
                f"{self._method} has captured no statistics in a step that updates its factors, although layer "
                f"{missing[0].name!r} has a gradient. Statistics come from backward() through a forward pass of the "
                "model in training mode on dense tensors, after the Preconditioner was made and before the first call "
                "of a compiled model. "
                "Gradients set by hand or by torch.autograd.grad or torch.func (grad, vmap) bring none, and a second "
                "step after the same backward pass finds none. To step without statistics, call model.eval()."
            )
        if missing and not self._warned_of_evaluation:
            self._warned_of_evaluation = True
            warnings.warn(
                f"{self._method} captures nothing in evaluation mode: layers without statistics keep their plain "
                "gradient, others use the statistics that they had. Call model.train() to capture.",
                stacklevel=2,
            )

    def _check_roster(self) -> None:
        """Warn of layers that have come or gone since the preconditioner was made, or the last warning."""
        changes = None if self._roster is None else self._roster.changes()
        if changes is None:
            return
        parts = []
        if changes.new:
            parts.append(f"{_some(changes.new)} came into the model after the Preconditioner was made: plain gradient")
        if changes.gone:
            parts.append(f"{_some(changes.gone)} left the model, or another module has their place")
        warnings.warn(
            f"{self._method}: {'; '.join(parts)}. Add and replace layers (adapters, LoRA) before the Preconditioner is "
            "made, or remove() it and make a new one.",
            stacklevel=2,
        )

    def note(self, what: str, layers: Sequence[str], flags: Sequence[Tensor]) -> None:
        """Take boolean device tensors that, joined, say for which layers `settle` is to report something."""
        # [L] of a stack, a scalar of a layer alone. One copy to the host brings all of them, also from several devices.
        # The meta device has no values.
        if flags and not any(part.is_meta for part in flags):
            joined = torch.cat([part.reshape(-1).to(flags[0].device) for part in flags])
            self.flags[what] = [*layers], Deferred(joined)

    def settle(self) -> None:
        """Report what was noted in the last update."""
        # Noted in an earlier step as a rule, so that the copies have arrived and the host does not wait.
        for what, (layers, flags) in self.flags.items():
            self.report(what, [layer for layer, flag in zip(layers, flags.on_host().tolist(), strict=True) if flag])
        self.flags = {}


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many there are beside them."""
    shown = ", ".join(repr(name) for name in names[:3])
    return f"layers {shown}" + (f" and {len(names) - 3} others" if len(names) > 3 else "")
