"""SINGD (Lin et al., ICML 2024): KFAC with multiplicative updates in place of inverses, by the package singd.

``V = C C^T D K K^T``. Every ``update_period`` steps, K and C take a step toward the damped inverses of KFAC's factors,
with rate ``factor_lr`` (the package's lr_cov) and momentum ``factor_momentum`` (its alpha1; none if ``kfac_like``).
They need about ``update_period / factor_lr`` steps to warm up: 1000 by default. For short runs use a period of 1 and a
rate of 0.05.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from singd.optim.optimizer import SINGD
from torch import Tensor, nn
from torch.optim import Optimizer

from baselines.parts.combined import Combined
from baselines.parts.groups import decay_matrices_only
from baselines.parts.hooked import keep_in_state_dict, refuse_scaler
from baselines.parts.layered import LayeredModel
from mkor_core.capture.autograd import Passes, adds_to_grad, in_backward
from mkor_core.kernels.bases import AdamW
from mkor_core.ranges import AT_LEAST_1, DECAY, NOT_NEGATIVE, POSITIVE
from mkor_core.ranks import comm

logger = logging.getLogger(__name__)

COMPLEX_WEIGHTS = True  # by AdamW
STATE_KEY = "singd"
"""The entry of the state dict that contains the factors."""

LIMITS: Mapping[str, str] = {
    "data_parallel": "the package refuses the wrapper, and it reduces inside the backward pass, where a layer that one "
    "rank does not use makes the others wait forever",
    "grad_scaler": "the package and AdamW would each track a GradScaler's scales separately; train in bfloat16 instead",
}


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old velocity"] = 0.9,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.0,
    damping: Annotated[float, POSITIVE, "the number added to the factors' diagonals"] = 1e-3,
    factor_lr: Annotated[float, POSITIVE, "the learning rate of the factors"] = 0.01,
    factor_momentum: Annotated[float, DECAY, "the weight of the factors' old velocity"] = 0.5,
    normalize_factor_lr: bool = True,
    update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 10,
    structure: Literal[
        "dense", "diagonal", "block30diagonal", "hierarchical15_15", "triltoeplitz", "triutoeplitz"
    ] = "dense",
    kfac_like: bool = False,
    kfac_approx: Literal["expand", "reduce"] = "expand",
    loss_average: Literal["batch", "batch+sequence"] = "batch",
    adamw_lr: Annotated[float, POSITIVE, "the learning rate of the parameters under AdamW"] = 1e-3,
    beta1: Annotated[float, DECAY, "AdamW's weight of the old first moment"] = 0.9,
    beta2: Annotated[float, DECAY, "AdamW's weight of the old second moment"] = 0.999,
    eps: Annotated[float, POSITIVE, "the number added to AdamW's denominator"] = 1e-8,
) -> Optimizer:
    """Return ``singd``'s SINGD for the model's layers and ``torch.optim.AdamW`` for the rest, as one optimizer.

    AdamW trains all parameters outside the layers, and layers with a frozen parameter. A layer without a gradient in a
    step is skipped. Biases of layers are decayed with their weights. State of a layer with dense factors: one gradient
    copy and ``2 (d_in^2 + d_out^2)`` numbers.

    - ``normalize_factor_lr`` bounds the step of the factors; without it (the package's default), large inputs give NaN.
    - ``structure`` applies to both factors; all but dense and diagonal need a model narrower than float64.
    - ``kfac_like`` leaves out the traces that couple K and C, so that they approximate the inverses of KFAC's factors.
    - ``kfac_approx`` is the treatment of a layer that is applied to many tokens or locations.
    - ``loss_average`` is what the loss averages over: examples, or tokens (locations) of examples.

    Raises:
        ValueError: a model that is trained data-parallel, has no layer whose parameters are all trainable, or is too
            wide for the structure.
    """
    matrices = _layer_parameters(model, structure)
    singd = _SINGD(
        model.model,
        matrices,
        model.accumulation_steps,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        damping=damping,
        alpha1=0.0 if kfac_like else factor_momentum,
        T=update_period,
        loss_average=loss_average,
        lr_cov=factor_lr,
        structures=(structure, structure),
        kfac_approx=kfac_approx,
        kfac_like=kfac_like,
        normalize_lr_cov=normalize_factor_lr,
    )
    rest = decay_matrices_only(model.all_but(matrices), weight_decay)
    return _combine(singd, [AdamW(rest, lr=adamw_lr, betas=(beta1, beta2), eps=eps)] if rest else [])


def _layer_parameters(model: LayeredModel, structure: str) -> list[nn.Parameter]:
    """Return the parameters of all layers without a frozen parameter.

    Raises:
        ValueError: as `optimizer_for`.
    """
    if model.is_parallel or comm.world_size() > 1:
        raise ValueError(f"singd cannot train data-parallel: {LIMITS['data_parallel']}.")
    # The package knows no other modules, and would step their parameters as they are.
    modules = [layer.module for layer in model.layers.values() if isinstance(layer.module, nn.Linear | nn.Conv2d)]
    layers = [[*module.parameters()] for module in modules]
    trainable = [parameter for layer in layers if all(p.requires_grad for p in layer) for parameter in layer]
    if not trainable:
        raise ValueError("singd has no layer to train: each has a frozen parameter.")
    if structure not in ("dense", "diagonal") and any(parameter.dtype == torch.float64 for parameter in trainable):
        raise ValueError(f"{structure=} has no float64 arithmetic in singd: take dense, diagonal or a narrower model.")
    return trainable


def _combine(singd: _SINGD, rest: Sequence[Optimizer]) -> Combined:
    """Join singd with the optimizers of the rest; its factors enter the state dict under `STATE_KEY`."""
    combined = Combined(singd, *rest)
    keep_in_state_dict(combined, STATE_KEY, singd.factors, singd.load_factors)
    refuse_scaler(combined, "singd", LIMITS["grad_scaler"])
    return combined


class _SINGD(SINGD):  # type: ignore[misc]  # the package has no types
    """SINGD that skips layers without a gradient, weighs micro-batches correctly and saves plain tensors.

    As for `mkor_core.Preconditioner`, statistics follow the weights' ``.grad``, and those that are not finite are left
    out.
    """

    FACTORS = ("Ks", "Cs", "m_Ks", "m_Cs")
    module_names: dict[nn.Module, str]

    def __init__(self, model: nn.Module, params: list[nn.Parameter], micro_batches: int, **options: Any) -> None:
        super().__init__(model, params, **options)
        self._micro_batches = micro_batches
        self._weights = {module: module.get_parameter("weight") for module in self.module_names}
        self._passes = Passes(
            lambda: {name: self._weights[m] for m, name in self.module_names.items() if name in self.H_Ks}
        )
        self._logged: set[str] = set()

    def factors(self) -> dict[str, Any]:
        """Return the number of steps and the factors' tensors, not copied: the whole state between two steps."""
        factors = {
            kind: {layer: dict(matrix.named_tensors()) for layer, matrix in getattr(self, kind).items()}
            for kind in self.FACTORS
        }
        return {"steps": self.steps, **factors}

    def load_factors(self, saved: Mapping[str, Any]) -> None:
        """Restore what `factors` returned."""
        self.steps = saved["steps"]
        self._grad_scales = {self.steps - 1: 1.0}
        for kind in self.FACTORS:
            for layer, tensors in saved[kind].items():
                for name, tensor in dict(getattr(self, kind)[layer].named_tensors()).items():
                    tensor.copy_(tensors[name])

    def _step(self) -> None:
        modules = self.module_names
        # An unused layer, such as a pooler without its task, has no gradient, and the package would fail on it.
        self.module_names = {
            module: name for module, name in modules.items() if all(p.grad is not None for p in module.parameters())
        }
        try:
            self._leave_out_non_finite()
            super()._step()
        finally:
            self.module_names = modules

    def _leave_out_non_finite(self) -> None:
        """Drop the statistics of layers in which they are not finite; the host waits once for all layers."""
        finite = {
            name: torch.stack([term.isfinite().all() for term in self._terms(name)]).all()
            for name in self.module_names.values()
            if name in self.H_Ks
        }
        flags = torch.stack(list(finite.values())).tolist() if finite else []
        for name in [name for name, is_finite in zip(finite, flags, strict=True) if not is_finite]:
            del self.H_Ks[name], self.H_Cs[name]
            if name not in self._logged:
                self._logged.add(name)
                logger.warning("singd: layer %r has statistics that are not finite, which are left out.", name)

    def _terms(self, name: str) -> list[Tensor]:
        return [*dict(self.H_Ks[name].named_tensors()).values(), *dict(self.H_Cs[name].named_tensors()).values()]

    def _register_tensor_hook_on_output_to_accumulate_H_terms(
        self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        if not in_backward():  # where a checkpointed layer runs forward again
            self._passes.close()
        # Other parameters take the place of the module's during torch.func.functional_call and its transforms.
        if module.weight is self._weights[module]:
            super()._register_tensor_hook_on_output_to_accumulate_H_terms(module, inputs, output)

    def _accumulate_H_terms(self, module: nn.Module, inputs: tuple[Tensor, ...], grad_output: Tensor) -> None:
        if adds_to_grad(self._weights[module]):
            for name in self._passes.enter():
                del self.H_Ks[name], self.H_Cs[name]
            super()._accumulate_H_terms(module, inputs, grad_output)

    def _update_preconditioner(self, module: nn.Module) -> None:
        name = self.module_names[module]
        if name not in self.H_Ks:
            return  # no update is due, no backward pass has reached the layer, or its statistics are left out
        # The package sums over k micro-batches: the inputs' moment is k times too large, the gradients' k times too
        # small.
        self.H_Ks[name].mul_(1 / self._micro_batches)
        self.H_Cs[name].mul_(self._micro_batches)
        super()._update_preconditioner(module)
