"""Shampoo (Gupta et al., ICML 2018) in blocks and with grafting (Anil et al., 2020), by pytorch_optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import torch
from pytorch_optimizer import ScalableShampoo
from pytorch_optimizer.base.exception import NoSparseGradientError
from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting, build_graft
from pytorch_optimizer.optimizer.utils.preconditioner import PreConditioner
from torch import Tensor, nn
from typing_extensions import override

from baselines.parts.groups import decay_matrices_only
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE, POSITIVE_DECAY

MAX_DIMENSION = 8192
"""Longest axis of a tensor that is preconditioned (the library's default); large embeddings exceed it."""


def optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old velocity"] = 0.9,
    nesterov: bool = True,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.0,
    factor_decay: Annotated[float, POSITIVE_DECAY, "the weight of the old factor"] = 0.95,
    damping: Annotated[float, POSITIVE, "the share of its norm that is added to a factor"] = 1e-6,
    inverse_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the roots"] = 10,
    block_size: Annotated[int, AT_LEAST_1, "the longest side of a block; each block has its factors"] = 512,
    graft: Literal["none", "sgd", "adagrad", "rmsprop"] = "sgd",
) -> ScalableShampoo:
    """Return ``pytorch_optimizer.ScalableShampoo``; vectors (biases, norms) take the graft's step and are not decayed.

    A tensor with k axes (a Conv2d's weight has four) is cut into blocks of at most ``block_size`` along each axis. Each
    axis of a block has a factor ``L <- factor_decay L + (1 - factor_decay) G G^T``, updated every step. Its root
    ``(L + damping |L|_2 I)^(-1/2k)`` is I at first, and is computed by Newton's iteration every
    ``inverse_update_period`` steps.

    Shampoo determines the direction of a tensor's step, and the optimizer that ``graft`` names determines its length.
    Momentum and weight decay act on the preconditioned gradient. State of a ``[m, n]`` matrix in one block: two
    gradient copies and ``2 (m^2 + n^2)`` numbers.
    """
    return _Shampoo(
        decay_matrices_only(parameters, weight_decay),
        lr=lr,
        betas=(momentum, factor_decay),
        nesterov=nesterov,
        weight_decay=weight_decay,
        decoupled_weight_decay=True,
        matrix_eps=damping,
        start_preconditioning_step=1,
        preconditioning_compute_steps=inverse_update_period,
        block_size=block_size,
        no_preconditioning_for_layers_with_dim_gt=MAX_DIMENSION,
        # The library would merge small axes, and drop the factors of a matrix that merges into one axis.
        shape_interpretation=False,
        graft_type=LayerWiseGrafting[graft.upper()],
    )


class _PreConditioner(PreConditioner):
    """The library's factors of one tensor, with roots that leave the global random state alone."""

    @override
    def compute_pre_conditioners(self) -> None:
        # The power iteration inside starts from a random vector: the same one each time and on every rank.
        with torch.random.fork_rng({statistic.device for statistic in self.statistics if statistic.is_cuda}):
            torch.manual_seed(0)
            super().compute_pre_conditioners()


class _Shampoo(ScalableShampoo):
    """The library's Shampoo, with checkpoints that contain tensors in place of the library's objects."""

    @override
    def init_group(self, group: dict[str, Any], **kwargs: Any) -> None:
        group.setdefault("step", 0)
        for parameter in group["params"]:
            if parameter.grad is None or self.state[parameter]:
                continue
            if parameter.grad.is_sparse:
                raise NoSparseGradientError("Shampoo")
            self.state[parameter] = self._initial_state(parameter, group)

    def _initial_state(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "momentum": torch.zeros_like(parameter),
            "pre_conditioner": _PreConditioner(
                parameter,
                beta2=group["betas"][1],
                inverse_exponent_override=self.inverse_exponent_override,
                block_size=self.block_size,
                skip_preconditioning_rank_lt=self.skip_preconditioning_rank_lt,
                no_preconditioning_for_layers_with_dim_gt=self.no_preconditioning_for_layers_with_dim_gt,
                shape_interpretation=self.shape_interpretation,
                pre_conditioner_type=self.pre_conditioner_type,
                matrix_eps=self.matrix_eps,
            ),
            "graft": build_graft(parameter, self.graft_type, self.diagonal_eps),
        }

    @override
    def state_dict(self) -> dict[str, Any]:
        saved: dict[str, Any] = super().state_dict()
        saved["state"] = {
            index: {name: value if isinstance(value, Tensor) else _tensors(value) for name, value in state.items()}
            for index, state in saved["state"].items()
        }
        return saved

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        states: dict[Any, dict[str, Any]] = {}
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for parameter, index in zip(group["params"], saved_group["params"], strict=True):
                if index in state_dict["state"]:
                    saved = state_dict["state"][index]
                    fresh = self._initial_state(parameter, saved_group)
                    states[index] = {**saved, **fresh, "momentum": saved["momentum"]}
                    for holder in ("pre_conditioner", "graft"):
                        for name, value in saved[holder].items():
                            setattr(states[index][holder], name, _copied(value, parameter.device))
        super().load_state_dict({**state_dict, "state": states})


def _tensors(holder: object) -> dict[str, Tensor | list[Tensor]]:
    """Return the attributes of an object that are tensors or lists of tensors."""
    attributes = {name: [*value] if isinstance(value, list) else value for name, value in vars(holder).items()}
    return {name: value for name, value in attributes.items() if _is_tensors(value)}


def _is_tensors(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, list) and all(isinstance(item, Tensor) for item in value))


def _copied(value: Tensor | list[Tensor], device: torch.device) -> Tensor | list[Tensor]:
    return [item.to(device, copy=True) for item in value] if isinstance(value, list) else value.to(device, copy=True)
