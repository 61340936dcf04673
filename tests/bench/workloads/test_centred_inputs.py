"""Models whose layers subtract the mean from their inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mkor_core import MKOR, Preconditioner
from workflow.bench import workloads
from workflow.bench.workloads.base import CENTRING_DECAY, centre_inputs


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv2d(3, 2, 1)], ids=["linear", "convolution"])
def test_a_layer_subtracts_the_batch_mean_and_in_evaluation_a_running_one(layer):
    layer = layer.double()
    shape = (4, 3) if isinstance(layer, nn.Linear) else (4, 3, 5, 6)
    torch.manual_seed(0)
    batches = [torch.randn(shape, dtype=torch.float64) + 2 for _ in range(3)]
    plain = type(layer)(3, 2, *([1] if isinstance(layer, nn.Conv2d) else [])).double()
    plain.load_state_dict(layer.state_dict())
    centre_inputs(layer)
    means = [batch.mean(0) if batch.ndim == 2 else batch.mean((0, 2, 3)) for batch in batches]

    def less(batch, mean):
        return batch - (mean if batch.ndim == 2 else mean[:, None, None])

    for number, (batch, mean) in enumerate(zip(batches, means, strict=True)):
        assert torch.allclose(layer.train()(batch), plain(less(batch, mean)), atol=1e-12)
        ages = [CENTRING_DECAY ** (number - earlier) for earlier in range(number + 1)]
        running = sum(age * earlier for age, earlier in zip(ages, means[: number + 1], strict=True)) / sum(ages)
        # Evaluation changes no mean: twice the same.
        for _ in range(2):
            assert torch.allclose(layer.eval()(batches[0]), plain(less(batches[0], running)), atol=1e-12)


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv2d(3, 2, 1)], ids=["linear", "convolution"])
def test_gradients_flow_through_the_mean(layer):
    layer = layer.double()
    centre_inputs(layer)
    x = torch.randn((4, 3) if isinstance(layer, nn.Linear) else (4, 3, 2, 2), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)


def test_a_small_rate_descends():
    """With a mean that is a constant for the gradient this ends at 0.57; the mean image's loss, trivial, is 0.074.

    The ladder searches rates from 0.3 to 100.
    """
    workload = workloads.create("autoencoder", centred_inputs=True)
    model = workload.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    for batch, _ in zip(workload.batches(0), range(300), strict=False):
        optimizer.zero_grad()
        workload.loss(model, batch).backward()
        optimizer.step()
    assert workload.evaluate(model)["loss"] < 0.074


@pytest.mark.parametrize("name", ["autoencoder", "alexnet", "language_model", "resnet20"])
def test_a_workload_centres_if_asked_and_its_name_says_so(name):
    plain, centred = workloads.create(name), workloads.create(name, centred_inputs=True)
    assert centred.model_name == f"{plain.model_name}, centred inputs"
    assert plain.model(0).state_dict().keys() < centred.model(0).state_dict().keys()
    # The same seed gives the same weights.
    weights = centred.model(0).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in plain.model(0).state_dict().items())
    assert "centred_inputs" not in workloads.resolve(name)


def test_a_preconditioner_sees_centred_inputs():
    """Truth: the rank-1 update of a mean input of zero is zero, so that MKOR changes no direction.

    Without a bias, whose input of 1 has a mean.
    """
    torch.manual_seed(0)
    cosines = []
    for centres in (False, True):
        model = nn.Sequential(nn.Linear(3, 2, bias=False))
        if centres:
            centre_inputs(model)
        preconditioner = Preconditioner(model, MKOR(sides="input", inverse_update_period=1))
        spread = torch.tensor([[0.5, -0.25, 1.0]])
        model(torch.cat([1 + spread, 1 - spread])).square().sum().backward()
        preconditioner.compare_next_step()
        preconditioner.step()
        cosines += [compared.cosine for compared in preconditioner.comparisons().values()]
    assert cosines[0] < 0.999
    assert cosines[1] == pytest.approx(1)
