"""The base of optimizers that step each matrix of weights by factors of its own, and all other parameters by Adam."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from baselines.parts.closures import ClosureOptimizer
from baselines.parts.groups import decay_matrices_only
from baselines.parts.layered import LayeredModel
from mkor_core.capture.layer import wide_dtype

State = dict[str, Tensor]
"""A parameter's named tensors, in at least float32."""

NORM_EPS = 1e-16
"""The number added to the norm of an update that gets the length of another."""


class MatrixOptimizer(ClosureOptimizer):
    """Steps a matrix by ``W <- (1 - lr weight_decay) W - lr V``, where a subclass turns the gradient D into V.

    D has the shape ``[m, n]``; a convolution's weight is taken as ``[d_out, C kh kw]``. Parameters of groups with
    ``is_matrix=False`` get Adam's V, with the group's ``betas`` and ``eps``, in their own shape.
    """

    decays_last: ClassVar[bool] = False
    """Whether weights shrink after the step, ``W <- (1 - lr weight_decay) (W - lr V)``."""

    def __init__(self, groups: Iterable[dict[str, Any]], **defaults: Any) -> None:
        super().__init__(groups, defaults)

    @abstractmethod
    def start(self, grad: Tensor, group: Mapping[str, Any]) -> State:
        """Return the state of a matrix before its first step, given that step's gradient."""

    @abstractmethod
    def direction(self, grad: Tensor, state: State, group: Mapping[str, Any], t: int) -> Tensor | None:
        """Return V ``[m, n]`` in step t (from 1), and change the state; None leaves the matrix as it is."""

    @override
    def take_step(self) -> None:
        for parameter, group in self.with_gradients():
            self._step(parameter, group)

    def with_gradients(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Yield the parameters that have a gradient, with their groups.

        Raises:
            ValueError: a gradient is sparse.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if parameter.grad.is_sparse:
                        raise ValueError(f"{type(self).__name__} takes no sparse gradients: make the layer dense.")
                    yield parameter, group

    def _step(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        assert parameter.grad is not None
        grad = parameter.grad.to(wide_dtype(parameter.dtype))
        grad = grad.reshape(parameter.shape[0] if parameter.dim() else 1, -1) if group["is_matrix"] else grad
        saved = self.state[parameter]
        if not saved:
            new = self.start(grad, group) if group["is_matrix"] else adam_state(grad)
            saved.update(step=0, tensors=new)
        saved["step"] += 1
        state, t = saved["tensors"], saved["step"]
        if group["is_matrix"]:
            update = self.direction(grad, state, group, t)
        else:
            update = adam_direction(grad, state, group["betas"], group["eps"], t)
        if update is not None:
            kept, change = 1 - group["lr"] * group["weight_decay"], (group["lr"] * update).view_as(parameter)
            parameter.mul_(1 if self.decays_last else kept).sub_(change).mul_(kept if self.decays_last else 1)

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; unlike torch's method, this one leaves tensors in the dtype that they were saved in."""
        super().load_state_dict(state_dict)
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for parameter, index in zip(group["params"], saved_group["params"], strict=True):
                if index in state_dict["state"]:
                    tensors = state_dict["state"][index]["tensors"]
                    copies = {key: tensor.to(parameter.device, copy=True) for key, tensor in tensors.items()}
                    self.state[parameter]["tensors"] = copies


def adam_state(grad: Tensor) -> State:
    """Return Adam's moments before the first step."""
    return {"mean": torch.zeros_like(grad), "square": torch.zeros_like(grad)}


def adam_direction(
    grad: Tensor, state: State, betas: tuple[float, float], eps: float, t: int, *, nesterov: bool = False
) -> Tensor:
    """Return Adam's V in step t (from 1), and update its moments.

    nesterov: return NAdam's, ``beta1 m + (1 - beta1) D`` over ``1 - beta1^(t+1)`` in place of m over ``1 - beta1^t``.
    """
    state["square"].lerp_(grad.square(), 1 - betas[1])
    root = (state["square"] / (1 - betas[1] ** t)).sqrt()
    return momentum(grad, state["mean"], betas[0], t, nesterov=nesterov) / (root + eps)


def momentum(grad: Tensor, mean: Tensor, beta: float, t: int, *, nesterov: bool = False) -> Tensor:
    """Return the bias-corrected running mean of D in step t (from 1), as in `adam_direction`, and update it."""
    mean.lerp_(grad, 1 - beta)
    return torch.lerp(mean, grad, 1 - beta) / (1 - beta ** (t + 1)) if nesterov else mean / (1 - beta**t)


def shortened(update: Tensor, largest_rms: float | None) -> Tensor:
    """Return V, shortened to a root mean square of at most ``largest_rms``; None: V itself."""
    if largest_rms is None:
        return update
    return update * (largest_rms / update.square().mean().sqrt().clamp(min=largest_rms))


def grafted(update: Tensor, other: Tensor) -> Tensor:
    """Return V with the length of another update."""
    result: Tensor = update * (other.norm() / (update.norm() + NORM_EPS))
    return result


def eigenbasis(factor: Tensor) -> Tensor:
    """Return the eigenvectors of a symmetric matrix ``[d, d]``, which may be singular, as columns, the leading first.

    The power iterations that follow need that order: their QR keeps the direction of the first column.
    """
    # LAPACK in float32 returns NaN, or fails, for some singular matrices with rows of zeros: those of units that no
    # example of the first batch has made active.
    vectors: Tensor = torch.linalg.eigh(factor.double()).eigenvectors
    return vectors.flip(1).to(factor.dtype)


def layer_groups(model: LayeredModel, weight_decay: float, **shared: Any) -> list[dict[str, Any]]:
    """Return groups of the layers' weights, which are matrices and decay, and of all other parameters.

    Those decay too if they are matrices (embeddings); ``shared`` is common to all groups.
    """
    weights: list[nn.Parameter] = [layer.parameters[0] for layer in model.layers.values()]
    others = decay_matrices_only(model.all_but(weights), weight_decay)
    first = {"params": weights, "weight_decay": weight_decay, "is_matrix": True, **shared}
    return [first, *({**group, "is_matrix": False, **shared} for group in others)]


def tensor_groups(parameters: Iterable[nn.Parameter], weight_decay: float, **shared: Any) -> list[dict[str, Any]]:
    """Return a group of all matrices, which decay, and one of vectors, which do not; ``shared`` is common to both."""
    groups = decay_matrices_only(parameters, weight_decay)
    return [{**group, "is_matrix": group["params"][0].dim() > 1, **shared} for group in groups]
