"""The preconditioning of a method that returns V: every layer by itself, then all updates together, for the clip."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mkor_core.capture.layer import Layer
from mkor_core.engines.clipping import TermsOfAll, Update, finished
from mkor_core.engines.engine import GradientParts, Phases
from mkor_core.engines.stacks import States
from mkor_core.method import LearningRate, Method
from mkor_core.ranks.kaisa import Sharing


class ByValue:
    """Updates as tensors of their own.

    Args:
        method: the method.
        layers: the layers by name.
        phases: returns the context manager of a phase of the work.
        sharing: says which layers this rank preconditions for others; None: each rank preconditions its gradients.
        terms_of_all: returns scalars with the sum of the clip's terms of all ranks; None: this rank has all layers.
    """

    def __init__(
        self,
        method: Method,
        layers: Mapping[str, Layer],
        phases: Phases,
        sharing: Sharing | None = None,
        terms_of_all: TermsOfAll | None = None,
    ) -> None:
        self.method = method
        self._layers = layers
        self._phases = phases
        self._sharing = sharing
        self._terms_of_all = terms_of_all

    def precondition(
        self, states: States, gradients: GradientParts, rates: Mapping[str, LearningRate], scale: Tensor | None
    ) -> None:
        """See `mkor_core.engines.engine.Preconditioning`; a collective call if updates are shared."""
        method, updates = self.method, dict[str, Update]()
        with self._phases("precondition"):
            for name, state in states.by_layer().items():
                # Left out are layers without a gradient in this step, layers that other ranks own, and those of which
                # the host knows that they have no statistics yet (HyLo without rows). Where only the device knows,
                # torch.where decides below.
                if name not in gradients or (known := method.has_statistics(state)) is False:
                    continue
                grad = self._layers[name].join(gradients[name])
                # The method sees unscaled gradients. A fused optimizer unscales in its step: V is scaled again below.
                grad = grad if scale is None else grad / scale
                works = self._sharing is None or self._sharing.works_on(name)
                # A receiver's D only has the right shape; share_updates replaces it.
                value = method.precondition(state, grad) if works else grad
                value = value if known is True else torch.where(known, value, grad)
                updates[name] = Update(grad, value, rates.get(name), known)
        if self._sharing is not None:
            with self._phases("communication"):
                # A collective call: gradients and summed statistics are the same on all ranks, so all pass the same
                # layers.
                values = self._sharing.share_updates({name: update.value for name, update in updates.items()})
            updates = {name: update._replace(value=values[name]) for name, update in updates.items()}
        with self._phases("precondition"):
            # All layers at once: the clip's factor depends on a sum over all of them.
            final = finished([*updates.values()], method.clip, self._terms_of_all or list)
            for name, value in zip(updates, final, strict=True):
                for part, new in zip(gradients[name], self._layers[name].split(value), strict=True):  # weight, bias
                    part.copy_(new if scale is None else new * scale)
