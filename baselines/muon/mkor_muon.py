"""MKOR-Muon (ours): MKOR's rank-1 updated input factor before Muon's momentum and polar factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from mkor_core import MKOR
from mkor_core.capture.statistics import Captured, LayerShape, Statistic
from mkor_core.maths.products import Gradient
from mkor_core.method import HostAssisted, InPlaceMethod, Known, LayerState, put
from mkor_core.ranges import AT_LEAST_1, FRACTION, POSITIVE_DECAY, Range


@dataclass(frozen=True, kw_only=True)
class MKORMuon(HostAssisted, InPlaceMethod):
    """MKOR-Muon with ``base: muon``: ``V = D J_R``, J_R as in MKOR, and no J_L, whose place the polar factor takes.

    The polar factor undoes what J_R does along D's right singular vectors: if the mean input is one of them, this is
    Muon, and elsewhere nearly so. What J_R may change is the accuracy of Muon's five Newton-Schulz steps. So a result
    needs two controls: a base with the exact polar factor, ``base: normuon`` with ``row_decay: null`` and ``polar:
    exact``, and Muon with more Newton-Schulz steps. Ranks exchange n numbers an update.
    """

    fixed_in_state: ClassVar[tuple[str, ...]] = ("update_rule", "window", "bias")

    update_rule: Literal["sherman_morrison", "released"] = "sherman_morrison"
    """MKOR's, with the mean input as the vector."""
    factor_decay: Annotated[float, POSITIVE_DECAY, "the weight of the old factor"] = 0.9
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the inverse"] = 10
    stabilizer_threshold: Annotated[
        float, Range(at_least=0, finite=False), "the largest entry of a factor that is not stabilized"
    ] = 2.1
    """Without the stabilizer the identity's share decays, and the conditioning of J_R leaves Newton-Schulz's range."""
    stabilizer_blend: Annotated[float, FRACTION, "the weight of the factor against the identity"] = 0.8
    window: Annotated[int | None, Range(at_least=2, largest=1024), "the number of columns that a factor keeps"] = None
    rescale: bool = True
    """Give V the norm of D, so that the momentum weighs steps alike."""
    bias: Literal["apart", "joint"] = "apart"
    """``apart`` leaves the bias's gradient as it is; ``joint`` takes the bias as an input of 1, as MKOR does."""

    @cached_property
    def _mkor(self) -> MKOR:
        return MKOR(
            update_rule=self.update_rule,
            factor_decay=self.factor_decay,
            inverse_update_period=self.inverse_update_period,
            stabilizer_threshold=self.stabilizer_threshold,
            stabilizer_blend=self.stabilizer_blend,
            window=self.window,
            rescale=self.rescale,
            sides="input",
        )

    @property
    @override
    def statistic(self) -> Statistic:
        return self._mkor.statistic

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        # Whether D has a column for a bias, which `apply` knows and `precondition` must find out.
        has_bias = torch.ones(leading, dtype=torch.bool, device=device)
        return {**self._mkor.initial_state(shape, dtype, device, leading), "has_bias": has_bias}

    @override
    def accumulates(self, step: int) -> bool:
        return self._mkor.accumulates(step)

    @override
    def refreshes(self, step: int) -> bool:
        return self.accumulates(step)

    @override
    def accumulate(
        self, state: LayerState, captured: Captured, step: int, accept: Tensor | None = None
    ) -> Tensor | None:
        if self.bias == "apart":
            # The last sum of a layer with a bias is the number of rows, exactly.
            last = captured.x[..., -1:]
            is_number = last == captured.number[..., None]
            put(state, accept, has_bias=state["has_bias"] & is_number[..., 0])
            last = torch.where(is_number, 0, last)
            captured = captured._replace(x=torch.cat([captured.x[..., :-1], last], -1))
        return self._mkor.accumulate(state, captured, step, accept)

    @override
    def needs_host(self, state: LayerState) -> bool:
        return self._mkor.needs_host(state)

    @override
    def host_inputs(self, state: LayerState, step: int) -> dict[str, Tensor]:
        return self._mkor.host_inputs(state, step)

    @override
    def make_room(
        self, state: LayerState, step: int, accept: Tensor | None = None, host: Mapping[str, Tensor] | None = None
    ) -> None:
        self._mkor.make_room(state, step, accept, host)

    @override
    def apply(self, state: LayerState, grad: Gradient, known: Known) -> None:
        if self.bias == "apart" and grad.bias is not None:
            # The mean's last entry was 0 in all updates, so J_R is block-diagonal.
            right = state["right"]
            state = {**state, "right": right[..., :-1] if "right_weights" in state else right[..., :-1, :-1]}
            grad = Gradient(grad.weight, None)
        self._mkor.apply(state, grad, known)

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        joint = super().precondition(state, grad)
        if self.bias == "joint":
            return joint
        apart = Gradient(grad[..., :-1].clone(), grad[..., -1].clone())
        self.apply(state, apart, Known(self.products(state, apart)))
        divided = torch.cat([apart.weight, grad[..., -1:]], -1)
        return torch.where(state["has_bias"][..., None, None], divided, joint)

    @override
    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        return {"right": self.precondition(state, grad)}

    @override
    def start_weight(self, state: LayerState) -> Tensor:
        return self._mkor.start_weight(state)
