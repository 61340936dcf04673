"""Schedule-free AdamW (Defazio et al., 2024): a running average of the weights in place of a learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from baselines.parts.layered import LayeredModel
from baselines.parts.matrices import MatrixOptimizer, State, tensor_groups
from mkor_core.capture.layer import wide_dtype
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE, POSITIVE_DECAY, Range


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    beta1: Annotated[float, POSITIVE_DECAY, "the share of the average at which gradients are taken"] = 0.9,
    beta2: Annotated[float, DECAY, "the weight of the old second moment"] = 0.999,
    eps: Annotated[float, POSITIVE, "the number added to the denominator"] = 1e-8,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the multiple of matrices added to the update"] = 0.0,
    power: Annotated[
        float, Range(at_least=0, largest=30), "the power of the step by which it counts in the average"
    ] = 0.0,
) -> ScheduleFreeAdamW:
    """Return schedule-free AdamW over all parameters; vectors (biases, norms) are not decayed.

    ``z <- z - lr g`` with ``g = D / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay y``; the average is ``x <- (1 -
    c) x + c z``, and gradients are taken at ``y = (1 - beta1) z + beta1 x``. c is the step's share of the weights
    ``t^power lr_max^2`` of all steps. The settings that won AlgoPerf's self-tuning have lr 2.5e-3, beta2 0.9955,
    weight_decay 0.081 and power 0.75. The learning rate should be constant after a warm-up.

    The model's weights are y. A forward pass of the whole model in evaluation mode without gradients puts x in their
    place, until the next pass in training mode or the next step; running means of norms belong to y all the same.
    Evaluation leaves the training as it is, to the last bit. State: z, the second moment, and y during evaluation.
    """
    shared: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "eps": eps, "power": power, "at_average": False}
    optimizer = ScheduleFreeAdamW(tensor_groups(model.model.parameters(), weight_decay, **shared), lr=lr)
    own = model.model

    def choose_weights(module: nn.Module, _: Any) -> None:
        if module is own:  # and not a copy of it
            optimizer.use_average(not module.training and not torch.is_grad_enabled())

    own.register_forward_pre_hook(torch.compiler.disable(choose_weights))
    return optimizer


class ScheduleFreeAdamW(MatrixOptimizer):
    """See `optimizer_for`."""

    @torch.no_grad()
    def use_average(self, average: bool) -> None:
        """Put the average x in the place of the weights y, or y back."""
        for group in self.param_groups:
            if group["at_average"] == average:
                continue
            group["at_average"] = average
            for parameter in group["params"]:
                if not self.state[parameter]:
                    continue
                tensors = self.state[parameter]["tensors"]
                if average:
                    tensors["training"] = parameter.detach().clone()
                    weights = parameter.to(tensors["base"].dtype)
                    parameter.copy_(torch.lerp(weights, tensors["base"], 1 - 1 / group["beta1"]))
                else:
                    parameter.copy_(tensors.pop("training"))

    @override
    def with_gradients(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        self.use_average(False)
        return super().with_gradients()

    @override
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        return {"square": torch.zeros_like(grad)}

    @override
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor:
        state["square"].lerp_(grad.square(), 1 - group["beta2"])
        direction: Tensor = grad / ((state["square"] / (1 - group["beta2"] ** t)).sqrt() + group["eps"])
        return direction

    @override
    def _step(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        assert parameter.grad is not None
        dtype, lr = wide_dtype(parameter.dtype), group["lr"]
        grad, weights, saved = parameter.grad.to(dtype), parameter.detach().to(dtype), self.state[parameter]
        if not saved:
            tensors = self.start(grad, group) | {"base": weights.clone()}
            saved.update(step=0, largest_rate=0.0, weight_sum=0.0, tensors=tensors)
        saved["step"] += 1
        saved["largest_rate"] = max(saved["largest_rate"], float(lr))
        weight = saved["step"] ** group["power"] * saved["largest_rate"] ** 2
        saved["weight_sum"] += weight
        share = weight / saved["weight_sum"] if saved["weight_sum"] > 0 else 0.0
        update = self.direction(grad, saved["tensors"], group, saved["step"]) + group["weight_decay"] * weights
        base = saved["tensors"]["base"]
        # y moves with both of its parts: c of the way to the old z, and by (1 - beta1 (1 - c)) lr g.
        new = torch.lerp(weights, base, share) - lr * (1 - group["beta1"] * (1 - share)) * update
        parameter.copy_(new)
        base.sub_(lr * update)
