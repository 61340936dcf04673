"""What accelerate, Lightning and the Hugging Face Trainer do to an optimizer, seen on the real ones.

Truth: the same steps in a bare loop, in the order unscale, clip, precondition, step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import _torchvision_operators  # noqa: F401  (before lightning and transformers, which import torchvision)

# isort: split
import lightning
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from mkor_core import MKOR, MKORH, Preconditioner

STEPS, BATCH, CLIP = 8, 8, 0.1
MKOR_OPTIONS: dict[str, Any] = {"inverse_update_period": 3}
SWITCHING = MKORH(inverse_update_period=1, warmup_steps=2, knee_beta=9.0)
"""Hands over at the first look: its losses always count as slow."""


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(*(torch.randn(STEPS * BATCH, width, generator=generator) for width in (5, 2)))


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return (model(inputs).float() - targets).square().mean()


def sgd(model: nn.Module, fused: bool = False) -> torch.optim.SGD:
    # Without momentum: torch's fused SGD starts its buffer from a skipped first step.
    return torch.optim.SGD(model.parameters(), lr=0.3, fused=fused)


def by_hand(scaler: torch.amp.GradScaler | None = None, overflow_at: int | None = None) -> list[Tensor]:
    """Train one epoch; a step whose loss overflows is the scaler's to skip."""
    model = network()
    optimizer = sgd(model)
    preconditioner = Preconditioner(model, MKOR(**MKOR_OPTIONS), grad_scale=scaler or 1.0)
    for step, (inputs, targets) in enumerate(DataLoader(dataset(), BATCH)):
        with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
            loss = loss_of(model, inputs, targets)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if step != overflow_at:
            for parameter in model.parameters():
                parameter.grad /= 1.0 if scaler is None else scaler.get_scale()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            preconditioner.step()
            optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters()]
