"""Truth: a dense solve with running means of explicit rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import Eva
from mkor_core import Preconditioner
from mkor_core.engines.clipping import Update, kl_clipped, split_rates
from tests.support import reference

DAMPING, DECAY, EXAMPLES = 0.03, 0.3, 16


def one_layer(kind: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Sequential(nn.Linear(4, 3)).double(), torch.randn(20, 4, dtype=torch.float64)
    return nn.Sequential(nn.Conv2d(2, 3, 2, bias=False)).double(), torch.randn(20, 2, 3, 4, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_the_update_solves_the_damped_system_of_the_running_means(kind):
    """The means are those of the first 16 examples' raw rows; the first batch's are not averaged with anything."""
    model, inputs = one_layer(kind)
    preconditioner = Preconditioner(model, Eva(damping=DAMPING, factor_decay=DECAY, kl_clip=None))
    means = None
    for step in range(3):
        grad, x, g = reference.backward(model[0], inputs * (1 + step) + step)
        kept = len(x) // len(inputs) * EXAMPLES
        batch = x[:kept].mean(0), g[:kept].mean(0)
        means = (
            batch if means is None else [DECAY * old + (1 - DECAY) * new for old, new in zip(means, batch, strict=True)]
        )
        a, g_mean = means
        truth = reference.kfac_solve(torch.outer(g_mean, g_mean), grad, torch.outer(a, a), DAMPING)
        preconditioner.step()
        assert_close(reference.joined(model[0]), truth, rtol=1e-9, atol=1e-12)
    (state,) = preconditioner.state_dict()["layers"].values()
    assert state["batches"] == 3
    assert_close(state["right"], a)
    assert_close(state["left"], g_mean)


@pytest.mark.parametrize("kl_clip", [1e-5, 1e4])
def test_the_clip_is_that_of_all_layers_with_the_rate_of_every_column(kl_clip):
    """Truth: `kl_clipped` of the updates without a clip. A layer without statistics takes no part."""
    results = []
    for clip in (None, kl_clip):
        torch.manual_seed(0)
        layers = [nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 2)]
        model = nn.Sequential(*layers).double()
        model[1].eval()
        groups = [{"params": [p], "lr": 0.1 * number} for number, p in enumerate(model.parameters(), 1)]
        preconditioner = Preconditioner(model, Eva(kl_clip=clip)).attach(torch.optim.SGD(groups))
        (model(torch.randn(5, 4, dtype=torch.float64)) - 1).square().sum().backward()
        rates = preconditioner._attachment.learning_rates(list(preconditioner._layers.values()))
        before = [layer.gradient().clone() for layer in preconditioner._layers.values()]
        preconditioner.step()
        results.append([layer.gradient() for layer in preconditioner._layers.values()])
    updates = [
        Update(grad, value, rate, index != 1)
        for index, (grad, value, rate) in enumerate(zip(before, results[0], rates, strict=True))
    ]
    truth = kl_clipped(updates, kl_clip)
    assert_close(results[1], truth)
    assert torch.equal(results[1][1], before[1])
    assert torch.equal(truth[0], results[0][0]) == (kl_clip == 1e4)


def test_a_gradient_of_which_the_update_overflows_stays_as_it_is():
    method, state = Eva(), {"left": torch.ones(2), "right": torch.ones(2), "batches": torch.tensor(1)}
    grad = torch.tensor([[1e30, 2.0], [3.0, 4.0]])
    assert torch.equal(method.precondition(state, grad), grad)


@pytest.mark.parametrize(
    ("rates", "of_weights", "of_biases"),
    [
        ([0.1, 0.1], 0.1, 0.1),
        ([0.1, 0.2], [0.1, 0.2], [0.1, 0.2]),
        ([0.1, torch.tensor(0.1)], [0.1, 0.1], [0.1, 0.1]),
        ([torch.tensor([0.1, 0.3]), 0.2], [0.1, 0.2], [0.3, 0.2]),
        ([torch.tensor([0.1, 0.1, 0.3])], [0.1], [0.3]),
    ],
    ids=str,
)
def test_the_clip_of_a_stack_takes_the_rates_of_weights_and_of_biases(rates, of_weights, of_biases):
    like = torch.zeros(len(rates), dtype=torch.float64)
    for found, expected in zip(split_rates(rates, like), (of_weights, of_biases), strict=True):
        assert isinstance(found, float) == isinstance(expected, float)
        assert_close(torch.as_tensor(found, dtype=like.dtype), torch.tensor(expected, dtype=like.dtype))
