"""Muon (Jordan et al., 2024): momentum with orthogonalized matrices, by pytorch_optimizer."""

from __future__ import annotations

from typing import Annotated, Any

from pytorch_optimizer import Muon

from baselines.parts.groups import decay_matrices_only
from baselines.parts.layered import LayeredModel
from mkor_core.ranges import DECAY, NOT_NEGATIVE, POSITIVE, Range


def optimizer_for(
    model: LayeredModel,
    *,
    lr: Annotated[float, POSITIVE, "the learning rate"],
    momentum: Annotated[float, DECAY, "the weight of the old velocity"] = 0.95,
    nesterov: bool = True,
    weight_decay: Annotated[float, NOT_NEGATIVE, "the rate at which matrices shrink"] = 0.01,
    newton_schulz_steps: Annotated[int, Range(at_least=1, largest=100), "iterations that orthogonalize an update"] = 5,
    match_adamw_rms: bool = True,
    adamw_lr: Annotated[float | None, POSITIVE, "the learning rate of the parameters under AdamW"] = None,
    beta1: Annotated[float, DECAY, "AdamW's weight of the old first moment"] = 0.9,
    beta2: Annotated[float, DECAY, "AdamW's weight of the old second moment"] = 0.95,
    eps: Annotated[float, POSITIVE, "the number added to AdamW's denominator"] = 1e-10,
) -> Muon:
    """Return ``pytorch_optimizer.Muon`` for the weights of the model's layers, with its AdamW for all other parameters.

    The other parameters are embeddings, layers that share their weight with an embedding (a tied LM head), excluded
    layers, biases and norms. A head that is neither tied nor excluded is trained by Muon, since nothing in a model
    marks it as a head; exclude it to train it with AdamW. A Conv2d's weight is used as a matrix ``[d_out, C kh kw]``.

    With ``match_adamw_rms``, updates are scaled by ``0.2 sqrt(max(d_out, d_in))`` (Liu et al., 2025), so that one
    learning rate suits Muon and AdamW; otherwise by Jordan's ``sqrt(max(1, d_out / d_in))``. If ``adamw_lr`` is None,
    AdamW uses ``lr``.

    The Newton-Schulz iteration computes in bfloat16, whatever the dtype of the parameters. With ``nesterov``, a step
    overwrites the gradients. State of a ``[m, n]`` matrix: one gradient copy.
    """
    matrices = [layer.parameters[0] for layer in model.layers.values()]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": weight_decay, "use_muon": True}]
    rest = decay_matrices_only(model.all_but(matrices), weight_decay)
    groups += [{**group, "betas": (beta1, beta2), "eps": eps, "use_muon": False} for group in rest]
    return Muon(
        groups,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        ns_steps=newton_schulz_steps,
        use_adjusted_lr=match_adamw_rms,
        adamw_lr=lr if adamw_lr is None else adamw_lr,
    )
