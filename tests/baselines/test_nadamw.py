"""NadamW. Truth: its equations, written out; torch's AdamW, which it equals without momentum."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from baselines import build


def gradients(number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(number)]


def trained(name: str, **chosen: float) -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False).double()
    optimizer, _ = build(name, layer, {"lr": 0.1, "weight_decay": 0.2, **chosen})
    for grad in gradients(4):
        layer.weight.grad = grad.clone()
        optimizer.step()
    return layer.weight.detach()


def test_its_steps_are_those_of_the_equations():
    torch.manual_seed(0)
    weight = nn.Linear(4, 3, bias=False).double().weight.detach()
    lr, beta1, beta2, eps, decay = 0.1, 0.8, 0.95, 1e-3, 0.2
    m = v = torch.zeros_like(weight)
    for t, grad in enumerate(gradients(4), 1):
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        u = beta1 * m + (1 - beta1) * grad
        weight = weight * (1 - lr * decay)
        weight = weight - lr * (u / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
    assert_close(trained("nadamw", beta1=beta1, beta2=beta2, eps=eps), weight)


def test_without_momentum_it_is_adamw():
    assert_close(trained("nadamw", beta1=0.0), trained("adamw", beta1=0.0))
    assert not torch.allclose(trained("nadamw"), trained("adamw"))
