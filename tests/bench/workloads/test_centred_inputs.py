"""Models whose layers subtract a running mean from their inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mkor_core import MKOR, Preconditioner
from workflow.bench import workloads
from workflow.bench.workloads.base import CENTRING_DECAY, centre_inputs


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv2d(3, 2, 1)], ids=["linear", "convolution"])
def test_a_layer_subtracts_the_weighted_mean_of_the_batches_so_far(layer):
    layer = layer.double()
    shape = (4, 3) if isinstance(layer, nn.Linear) else (4, 3, 5, 6)
    torch.manual_seed(0)
    batches = [torch.randn(shape, dtype=torch.float64) + 2 for _ in range(3)]
    plain = type(layer)(3, 2, *([1] if isinstance(layer, nn.Conv2d) else [])).double()
    plain.load_state_dict(layer.state_dict())
    centre_inputs(layer)
    means = [batch.movedim(1, -1).reshape(-1, 3).mean(0) if len(shape) == 4 else batch.mean(0) for batch in batches]
    for number, batch in enumerate(batches):
        ages = [CENTRING_DECAY ** (number - earlier) for earlier in range(number + 1)]
        weighted = zip(ages, means[: number + 1], strict=True)
        mean = sum(age * value for age, value in weighted) / sum(ages)
        shifted = batch - (mean[:, None, None] if len(shape) == 4 else mean)
        assert torch.allclose(layer(batch), plain(shifted), atol=1e-12)
    # In evaluation mode the mean stays what it is.
    layer.eval()
    assert torch.allclose(layer(batches[0]), plain(batches[0] - (mean[:, None, None] if len(shape) == 4 else mean)))
    assert torch.equal(layer(batches[0]), layer(batches[0]))


def test_gradients_do_not_flow_through_the_mean():
    layer = nn.Linear(3, 2)
    centre_inputs(layer)
    x = torch.randn(4, 3, requires_grad=True)
    layer(x).sum().backward()
    assert torch.allclose(x.grad, layer.weight.sum(0).expand(4, 3))


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
    """Truth: the rank-1 update of a mean input of zero is zero, so that MKOR changes no direction."""
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
