from __future__ import annotations

import pytest
import torch
from torch import nn

from baselines.kfac.kaisa import KAISA
from baselines.natural.hylo import HyLo
from mkor_core import MKOR, MKORH, Preconditioner


def blocks() -> nn.Sequential:
    """Four equal blocks of which each has one layer and one normalization, a layer of another shape, a head."""
    inner = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(4)]
    return nn.Sequential(*inner, nn.Linear(4, 50, bias=False), nn.Linear(50, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()


def test_a_preconditioner_prints_its_layers_what_it_leaves_out_and_its_bytes():
    model = blocks()
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=2), exclude="5")
    text = """\
Preconditioner with MKOR(inverse_update_period=2): 5 layers, SHOWN
Preconditioned, with the shape of D, which has a column for a bias:
  {0-3}.0: Linear 4 x 5 (4 modules)
  4: Linear 50 x 4
Left to the base optimizer:
  {0-3}.1: LayerNorm is neither Linear nor Conv2d (4 modules)
  5: excluded"""
    before = text.replace("SHOWN", "state allocated in the first step: 11.2 kB, less if ranks share it")
    assert repr(preconditioner) == before
    assert preconditioner._states.by_layer() == {}  # to print allocates nothing
    preconditioner.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer)
    assert preconditioner.memory_bytes() == 11_160
    assert str(preconditioner) == text.replace("SHOWN", "11.2 kB of state on this rank")


def test_a_print_says_why_a_layer_that_was_found_is_not_preconditioned():
    model = blocks()
    model[1].requires_grad_(False)
    preconditioner = Preconditioner(model, MKOR())
    preconditioner.attach(torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1))
    lines = repr(preconditioner).splitlines()
    assert "  0.0: Linear 4 x 5" in lines
    assert "  1.0: its weight is frozen" in lines
    assert "  {2-3}.0: the attached optimizer does not have its weight (2 modules)" in lines


@pytest.mark.parametrize("method", [MKORH(), KAISA(), HyLo()], ids=lambda method: type(method).__name__)
def test_a_removed_preconditioner_prints_that_its_state_is_freed(method):
    preconditioner = Preconditioner(blocks(), method)
    assert "state allocated in the first step" in repr(preconditioner)
    preconditioner.remove()
    assert "6 layers, state freed" in repr(preconditioner)
