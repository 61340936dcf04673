"""DP-KFAC (Zhang et al., 2022): each layer's factors live on one rank alone, and come from its share of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated, Any, Literal

from typing_extensions import override

from baselines.kfac._per_example import PerExampleKFAC
from baselines.parts.combined import Combined
from baselines.parts.groups import decay_matrices_only
from baselines.parts.hooked import SCALED_ROWS, keep_in_state_dict, refuse_scaler
from baselines.parts.layered import LayeredModel
from mkor_core.capture.autograd import matmul_precision, usual_precision, without_autocast
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.statistics import Sums
from mkor_core.engines.by_value import ByValue
from mkor_core.engines.diagnostics import Diagnostics
from mkor_core.engines.engine import Engine
from mkor_core.engines.stacks import States
from mkor_core.kernels.bases import SGD
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE
from mkor_core.ranks import comm
from mkor_core.ranks.owners import Owners

STATE_KEY = "dp_kfac"
"""The entry of the state dict that contains the factors of this rank's layers."""

LIMITS: Mapping[str, str] = {
    "data_parallel": "by design, a layer's factors come from its owner's share of the batch alone, so that several "
    "ranks train differently from one process",
    "grad_scaler": SCALED_ROWS,
}


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old velocity"] = 0.9,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the multiple of the matrices added to V"] = 0.0,
    damping: Annotated[float, POSITIVE, "the number added to the eigenvalues"] = 1e-3,
    factor_decay: Annotated[float, DECAY, "the weight of the old factor"] = 0.05,
    kl_clip: Annotated[float | None, POSITIVE, "the bound on all layers' updates together"] = 1e-3,
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 10,
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two decompositions"] = 100,
    compute_method: Literal["eigen", "inverse"] = "eigen",
) -> DPKFAC:
    """Return SGD over KFAC's updates, which each layer's owner computes; other parameters get plain SGD.

    Layers go to the ranks in turn. The owner alone captures rows, of its own share of the batch and its own mean loss,
    and alone updates factors, decomposes them and preconditions the averaged gradient; then it broadcasts V. No factor
    is ever sent. Rules and state are those of `baselines.kfac.kaisa.KAISA`; the released 0.95 is the weight of the new
    factor. On one process it is KFAC.

    A checkpoint contains the factors of the layers of the rank that writes it. Ranks that load another rank's start
    their factors anew, at I.
    """
    kfac = PerExampleKFAC(
        damping=damping,
        factor_decay=factor_decay,
        kl_clip=kl_clip,
        factor_update_period=factor_update_period,
        inverse_update_period=inverse_update_period,
        compute_method=compute_method,
    )
    return DPKFAC(model, kfac, decay_matrices_only(model.model.parameters(), weight_decay), lr, momentum)


class DPKFAC(Combined):
    """SGD whose gradients the owners of the layers replace by the updates of KFAC before each step."""

    def __init__(
        self, model: LayeredModel, kfac: PerExampleKFAC, groups: list[dict[str, Any]], lr: float, momentum: float
    ) -> None:
        super().__init__(SGD(groups, lr=lr, momentum=momentum))
        self._kfac = kfac
        self._layers = dict(model.layers)
        in_turn = {name: index % comm.world_size() for index, name in enumerate(self._layers)}
        self._owners = Owners([*self._layers.values()], in_turn, None)
        own = {name: layer for name, layer in self._layers.items() if self._owners.owns(name)}
        self._own = [*own.values()]
        self._states = States(own, kfac)
        by_value = ByValue(kfac, own, nullcontext, terms_of_all=self._owners.terms_of_all)
        diagnostics = Diagnostics("dp_kfac")
        self._engine = Engine(self._states, kfac, diagnostics, nullcontext, by_value, owners=self._owners)
        # A rank may own no layer.
        self._capture = RowCapture(own, micro_batches=model.accumulation_steps) if own else None
        self._steps = 0
        keep_in_state_dict(
            self, STATE_KEY, lambda: {"steps": self._steps, "layers": self._states.by_layer()}, self._load
        )
        refuse_scaler(self, "dp_kfac", SCALED_ROWS)

    @override
    def take_step(self) -> None:
        device = next(iter(self._layers.values())).module.weight.device
        with without_autocast(device):
            with matmul_precision("highest"):
                self._update()
            with matmul_precision(usual_precision(device)):
                self._precondition()
        super().take_step()

    def _update(self) -> None:
        """Update the factors of this rank's layers, and decompose them where that is due."""
        rows = {} if self._capture is None else self._capture.take_rows()
        self._states.prepare(self._own)
        condense, is_due = self._kfac.statistic.condense, self._kfac.accumulates(self._steps)
        assert condense is not None
        statistics = {name: Sums(*condense(calls, self._steps)[:3]) for name, calls in rows.items() if is_due}
        self._engine.update(self._own, statistics, self._steps, None, None)
        self._steps += 1
        if self._capture is not None:
            self._capture.enabled = self._kfac.accumulates(self._steps)

    def _precondition(self) -> None:
        """Replace the gradients D by the updates V of the layers' owners; a collective call."""
        layers = [layer for layer in self._layers.values() if layer.has_gradient()]
        by_weight = {id(weight): group["lr"] for group in self.param_groups for weight in group["params"]}
        rates = {layer.name: by_weight[id(layer.parameters[0])] for layer in layers}
        self._engine.precondition(layers, rates, None)

    def _load(self, saved: Mapping[str, Any]) -> None:
        self._steps = saved["steps"]
        self._states.load({name: state for name, state in saved["layers"].items() if self._owners.owns(name)})
        if self._capture is not None:
            self._capture.drop()
            self._capture.enabled = self._kfac.accumulates(self._steps)
