"""AdaFisher (Gomes et al., ICLR 2025): momentum divided by a diagonal, Kronecker-factored Fisher matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from baselines.first_order._diagonal import DiagonalFactors
from baselines.parts.closures import ClosureOptimizer
from baselines.parts.groups import decay_matrices_only
from baselines.parts.hooked import SCALED_ROWS, keep_in_state_dict, refuse_scaler
from baselines.parts.layered import LayeredModel
from mkor_core.capture.layer import TransposedLayer
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE

STATE_KEY = "adafisher"
"""The entry of the state dict that contains the factors."""

LIMITS: Mapping[str, str] = {"grad_scaler": SCALED_ROWS}


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old mean gradient"] = 0.9,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.0,
    decoupled_decay: bool = False,
    damping: Annotated[float, POSITIVE, "lambda, the number added to the Fisher matrix"] = 1e-3,
    factor_decay: Annotated[float, DECAY, "gamma, of which the averaging makes the weight of the old factor"] = 0.8,
    averaging: Literal["released", "convex"] = "released",
    normalize: Literal["before", "after"] = "before",
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 100,
) -> AdaFisher:
    """Return AdaFisher: ``m <- momentum m + (1 - momentum) D``, ``W -= lr m / (1 - momentum^t) / F``.

    ``F = s h^T + damping`` for averages of h, the mean squares of input rows (the bias's 1 included), and s, those of
    raw gradient rows, both scaled to [0, 1] by their least and largest entries ``before`` averaging (released) or
    ``after``. Both start at 1.

    - ``averaging``: ``released`` weighs the old with 0.1 gamma and the new with 0.01 gamma, as the code does,
      ``convex`` (ours) with gamma and 1 - gamma. After three released updates F is nearly the damping: this is momentum
      SGD with rate lr / damping. `AdaFisher.fisher_ranges` shows it.
    - ``decoupled_decay`` is AdaFisherW; otherwise decay is added to the gradient.

    BatchNorms and LayerNorms have factors of their own, whose h has two entries. A norm's h is a mean over the calls.
    Other parameters (embeddings, excluded layers) get F = 1: the released code gives them the factors of
    the layers in their places, and leaves the last layers without any.
    """
    groups = decay_matrices_only(model.model.parameters(), weight_decay)
    options = {"lr": lr, "momentum": momentum, "decoupled_decay": decoupled_decay, "damping": damping}
    gamma = factor_decay
    weights = (0.1 * gamma, 0.01 * gamma) if averaging == "released" else (gamma, 1 - gamma)
    return AdaFisher(
        model, groups, options, weights, normalizes_first=normalize == "before", period=factor_update_period
    )


class AdaFisher(ClosureOptimizer):
    """See `optimizer_for`; ``weights`` are those of the old and the new factor."""

    def __init__(
        self,
        model: LayeredModel,
        groups: list[dict[str, Any]],
        options: dict[str, Any],
        weights: tuple[float, float],
        *,
        normalizes_first: bool,
        period: int,
    ) -> None:
        super().__init__(groups, options)
        self._factors = DiagonalFactors(model, weights, normalizes_first=normalizes_first)
        self._hooks, self._period = self._factors.hooks, period
        layers = self._factors.layers.values()
        self._places = {id(part): (layer, i) for layer in layers for i, part in enumerate(layer.parameters)}
        self._steps = 0
        keep_in_state_dict(
            self, STATE_KEY, lambda: {"steps": self._steps, "factors": self._factors.averages}, self._load
        )
        refuse_scaler(self, "adafisher", SCALED_ROWS)

    @override
    def take_step(self) -> None:
        if self._steps % self._period == 0:
            self._factors.update()
        self._hooks.drop()
        self._steps += 1
        self._hooks.enabled = self._steps % self._period == 0
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)

    def fisher_ranges(self) -> dict[str, float]:
        """Return the largest entry of F over its least, by layer: near 1, AdaFisher is momentum SGD; waits."""
        damping = self.param_groups[0]["damping"]
        pairs = {name: self._factors.used(name) for name in self._factors.layers}
        return {
            name: float((s.max() * h.max() + damping) / (s.min() * h.min() + damping)) for name, (s, h) in pairs.items()
        }

    def _fisher(self, weight: Tensor, damping: float) -> Tensor | float:
        """Return F of a parameter."""
        if id(weight) not in self._places:
            return 1.0
        layer, is_bias = self._places[id(weight)]
        s, h = self._factors.used(layer.name)
        fisher = torch.outer(s, h[layer.d_w :] if is_bias else h[: layer.d_w]) + damping
        return fisher.mT if isinstance(layer, TransposedLayer) and not is_bias else fisher.view(weight.shape)

    def _move(self, weight: Tensor, group: Mapping[str, Any]) -> None:
        decay, momentum = group["weight_decay"], group["momentum"]
        grad = weight.grad if group["decoupled_decay"] or decay == 0 else weight.grad + decay * weight
        mean = self.state[weight].setdefault("momentum", torch.zeros_like(weight)).lerp_(grad, 1 - momentum)
        value = mean / (1 - momentum**self._steps) / self._fisher(weight, group["damping"])
        value = value + decay * weight if group["decoupled_decay"] else value
        weight.sub_((group["lr"] * value).to(weight.dtype))

    def _load(self, saved: Mapping[str, Any]) -> None:
        self._steps = saved["steps"]
        self._factors.load(saved["factors"])
        self._hooks.enabled = self._steps % self._period == 0
