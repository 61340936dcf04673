"""Muon (Jordan et al., 2024): momentum whose matrices are orthogonalised, by pytorch_optimizer."""

from __future__ import annotations

from typing import Any

from pytorch_optimizer import Muon

from baselines._groups import decay_matrices_only
from baselines._layered import LayeredModel


def optimizer_for(
    model: LayeredModel,
    *,
    lr: float,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.01,
    newton_schulz_steps: int = 5,
    match_adamw_rms: bool = True,
    adamw_lr: float | None = None,
    beta1: float = 0.9,
    beta2: float = 0.95,
    eps: float = 1e-10,
) -> Muon:
    """Return ``pytorch_optimizer.Muon``; the weights of the model's layers are its matrices, AdamW trains the rest.

    The rest: embeddings and layers that share their weight with one (a tied LM head), excluded layers, biases and
    norms. A head that is neither tied nor excluded is a matrix like any other: nothing in a model marks it, and
    experiments that want it under AdamW exclude it. A Conv2d's weight is taken as ``[d_out, C kh kw]``.

    match_adamw_rms: updates are ``0.2 sqrt(max(d_out, d_in))`` long (Liu et al., 2025), so that one learning rate suits
        Muon and AdamW; otherwise ``sqrt(max(1, d_out / d_in))``, Jordan's.
    adamw_lr: the learning rate of the rest; None: ``lr``.

    The Newton-Schulz iteration is in bfloat16 whatever the parameters are in, and with ``nesterov`` a step overwrites
    the gradients that it used. State of a ``[m, n]`` matrix: one gradient copy.
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
