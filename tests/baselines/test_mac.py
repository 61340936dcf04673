"""MAC and SMAC. Truth: dense inverses of running means of explicit rows, MKOR after one update, and each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines.natural.mac import MAC
from baselines.natural.smac import SMAC
from mkor_core import MKOR, Preconditioner
from tests.support import reference
from tests.support.matrices import random


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4)).double()


def backward(model: nn.Sequential, step: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return D, the mean input row and the mean squared gradient row of the Conv2d and of the Linear."""
    model.zero_grad()
    x, found = random(6, 2, 3, 3, seed=step) + 0.4, []
    for module in model:
        y = module(x)
        y.retain_grad()
        found.append((module, x.detach(), y))
        x = y
    (x - 1).square().mean().backward()
    rows = [reference.rows_of(*call[:2], call[2].grad) for call in found if isinstance(call[0], nn.Conv2d | nn.Linear)]
    return [(g.T @ x, x.mean(0), g.square().mean(0)) for x, g in rows]


def gradients(model: nn.Sequential) -> list[Tensor]:
    of_convolution, *of_linear = [parameter.grad.reshape(len(parameter), -1) for parameter in model.parameters()]
    return [of_convolution, torch.cat(of_linear, 1)]


@pytest.mark.parametrize("scale", ["released", "paper", "gradient"])
def test_the_update_is_divided_by_the_damped_mean_input(scale):
    """The mean is upstream's: from 0, corrected. It takes every second batch, and acts from every fourth on."""
    model, decay, damping = network(), 0.8, 0.3
    method = MAC(damping=damping, factor_decay=decay, factor_update_period=2, inverse_update_period=4, scale=scale)
    preconditioner = Preconditioner(model, method)
    sums, truths = [torch.zeros(8).double(), torch.zeros(13).double()], [torch.empty(0)] * 2
    for step in range(9):
        calls = backward(model, step)
        for index, (_, a, _) in enumerate(calls):
            if step % 2 == 0:
                sums[index] = decay * sums[index] + (1 - decay) * a
            if step % 4 == 0:
                mean = sums[index] / (1 - decay ** (step // 2 + 1))
                truths[index] = torch.linalg.inv(torch.outer(mean, mean) + damping * torch.eye(len(mean)).double())
        preconditioner.step()
        for (grad, _, _), inverse, update in zip(calls, truths, gradients(model), strict=True):
            truth = grad @ inverse
            factor = {"released": damping, "paper": 1.0, "gradient": grad.norm() / truth.norm()}[scale]
            assert_close(update, factor * truth, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("damping", [0.1, 1.0, 3.0])
def test_without_memory_it_is_mkors_exact_rule_after_one_update(damping):
    model = network()
    method = MAC(damping=damping, factor_decay=0.0, factor_update_period=1, inverse_update_period=1, scale="gradient")
    preconditioner = Preconditioner(model, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        other = network()
        other.load_state_dict(model.state_dict())
        mkor = Preconditioner(other, MKOR(factor_decay=damping / (1 + damping), sides="input"))
        for network_, preconditions in ((model, preconditioner), (other, mkor)):
            backward(network_, step)
            preconditions.step()
        assert_close(gradients(model), gradients(other), rtol=1e-12, atol=1e-14)
        optimizer.step()


def test_a_large_damping_leaves_the_gradient_as_it_is():
    model = network()
    preconditioner = Preconditioner(model, MAC(damping=1e20))
    calls = backward(model, 0)
    preconditioner.step()
    assert_close(gradients(model), [grad for grad, _, _ in calls])


@pytest.mark.parametrize(
    ("periods", "changes"),
    [((2, 4), [0, 4, 8]), ((4, 2), [0, 4, 8]), ((2, 5), [0, 6, 10]), ((1, 3), [0, 3, 6, 9])],
    ids=str,
)
def test_the_preconditioner_changes_with_the_first_batch_of_a_period(periods, changes):
    method = MAC(factor_update_period=periods[0], inverse_update_period=periods[1])
    assert [step for step in range(11) if method.refreshes(step)] == changes
    assert [step for step in range(11) if method.accumulates(step)] == list(range(0, 11, periods[0]))


@pytest.mark.parametrize("rescale", [False, True])
def test_smac_divides_both_sides(rescale):
    """Truth: dense inverses of both damped factors, from means that are corrected by the number of their batches."""
    model, decay, damping = network(), 0.8, 1e-3
    method = SMAC(damping=damping, factor_decay=decay, factor_update_period=2, inverse_update_period=4, rescale=rescale)
    preconditioner = Preconditioner(model, method)
    sums = [[torch.zeros(8).double(), torch.zeros(3).double()], [torch.zeros(13).double(), torch.zeros(4).double()]]
    inverses: list[list[Tensor]] = [[], []]
    for step in range(9):
        calls = backward(model, step)
        for index, (_, *batch) in enumerate(calls):
            if step % 2 == 0:
                sums[index] = [decay * old + (1 - decay) * new for old, new in zip(sums[index], batch, strict=True)]
            if step % 4 == 0:
                a, s = (total / (1 - decay ** (step // 2 + 1)) for total in sums[index])
                dense = torch.outer(a, a) + damping * torch.eye(len(a)).double()
                inverses[index] = [torch.linalg.inv(torch.diag(s + damping)), damping * torch.linalg.inv(dense)]
        preconditioner.step()
        for (grad, _, _), (left, right), update in zip(calls, inverses, gradients(model), strict=True):
            truth = reference.kron_precondition(left, grad, right)
            truth = truth * grad.norm() / truth.norm() if rescale else truth
            assert_close(update, truth, rtol=1e-9, atol=1e-11)  # the dense inverse of a damping of 1e-3


def test_smac_with_a_damping_above_the_squares_is_mac():
    """So that the released damping of 1 leaves little of the output side: here no square reaches a hundredth of it."""
    periods = {"factor_update_period": 1, "inverse_update_period": 1}
    found = {}
    for damping in (1.0, 1e-4):
        for method in (
            MAC(damping=damping, scale="gradient", **periods),
            SMAC(damping=damping, rescale=True, **periods),
        ):
            model = network()
            preconditioner = Preconditioner(model, method)
            calls = backward(model, 0)
            preconditioner.step()
            found[type(method), damping] = torch.cat([update.flatten() for update in gradients(model)])
    assert max(float(squares.max()) for _, _, squares in calls) < 0.01
    distances = {d: (found[SMAC, d] - found[MAC, d]).norm() / found[MAC, d].norm() for d in (1.0, 1e-4)}
    assert distances[1.0] < 0.01
    assert distances[1e-4] > 0.1
