"""The ways in which sums of rows come about give the same numbers. Truth: the rows that autograd shows, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.testing import assert_close

from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import mean_locations
from mkor_core.capture.statistics import MEAN, MOMENT, Captured, Statistic, Sums
from mkor_core.capture.sums import Capture
from tests.support import reference
from tests.support.operators import Operators
from tests.support.reference import complete

Calls = list[list[int]]
"""By backward pass, the numbers of examples of the layer's calls."""


def layer_of(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Linear(3, 2, dtype=torch.float64, **options)
    return nn.Conv2d(2, 2, (2, 1), stride=(1, 2), padding=(1, 0), dtype=torch.float64, **options)


def inputs(kind: str, seed: int, examples: int) -> Tensor:
    shape = (4, 3) if kind == "linear" else (2, 3, 5)
    return torch.randn(examples, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def capture(module: nn.Module, statistic: Statistic, **options: Any) -> Capture:
    return Capture({"layer": Layer("layer", module)}, statistic, **options)


def take(hooks: Capture) -> Captured:
    """Return the only layer's sums, completed by the gradient of its bias."""
    return complete(hooks.take()["layer"], hooks._layers["layer"].bias_gradient())


def train(module: nn.Module, kind: str, calls: Calls) -> tuple[Tensor, Tensor]:
    """Take the layer's calls; return all their rows X and G."""
    rows = []
    for number, examples in enumerate(calls):
        pairs = [(inputs(kind, 10 * number + i, n), i) for i, n in enumerate(examples)]
        outputs = [module(batch) for batch, _ in pairs]
        for output in outputs:
            output.retain_grad()
        sum((i + 1) * (output - i).square().mean() for i, output in enumerate(outputs)).backward()
        rows += [
            reference.rows_of(module, batch, output.grad)
            for (batch, _), output in zip(pairs, outputs, strict=True)
            if output.grad is not None
        ]
    x, g = (torch.cat(part) for part in zip(*rows, strict=True))
    return x, g


@settings(max_examples=12, deadline=None)
@given(
    calls=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    kind=st.sampled_from(["linear", "convolution"]),
    announced=st.booleans(),
)
def test_mean_gradients_are_the_same_from_the_bias_and_from_gradient_rows(calls, kind, announced):
    """For any calls of a layer in any backward passes, which may be micro-batches or losses."""
    options = {"micro_batches": len(calls) if announced else 1}
    results = {}
    for route in ("bias", "frozen bias", "no bias"):
        module = layer_of(kind)
        if route == "no bias":
            module.bias = None
        elif route == "frozen bias":
            module.bias.requires_grad_(False)
        with torch.no_grad():
            if module.bias is not None:
                module.bias.zero_()
        hooks = capture(module, MEAN, **options)
        x, g = train(module, kind, calls)
        locations = 12 if kind == "convolution" else 1
        sums = take(hooks)
        assert sums.number * locations == len(x)
        assert_close(sums.x / sums.number, x.mean(0)[: len(sums.x)])
        assert_close(sums.g, g.sum(0) / locations)
        results[route] = sums.g
    assert_close(results["bias"], results["no bias"])
    assert_close(results["bias"], results["frozen bias"])


@pytest.mark.parametrize("statistic", [MEAN, replace(MEAN, clamp=0.1), replace(MEAN, examples=2), MOMENT], ids=str)
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_only_methods_on_all_plain_rows_take_the_gradient_of_the_bias(kind, statistic):
    module = layer_of(kind)
    hooks = capture(module, statistic)
    train(module, kind, [[3]])
    sums = hooks.take()["layer"]
    assert (sums.g is None) == (statistic == MEAN)


def test_images_of_several_sizes_share_the_gradient_of_the_bias_by_their_mean_locations():
    """Two examples of 2 x 4 locations, one of 2 x 2."""
    module = nn.Conv2d(1, 2, 2).double()
    hooks = capture(module, MEAN)
    for size, number in (((3, 5), 2), ((3, 3), 1)):
        module(torch.ones(number, 1, *size, dtype=torch.float64)).square().mean().backward()
    sums = hooks.take()["layer"]
    assert sums.number == 3
    assert_close(sums.locations, torch.tensor((2 * 8 + 4) / 3, dtype=torch.float64))
    assert_close(complete(sums, module.bias.grad).g, module.bias.grad * 3 / 20)


def test_without_rows_the_mean_locations_are_one():
    """Not 0 / 0: a layer that no rank used takes part in the sums with zeros."""
    zero = torch.tensor(0.0)
    assert mean_locations(zero, zero) == 1
    assert mean_locations(torch.tensor(8.0), torch.tensor(1.0)) == 8
    assert mean_locations(torch.tensor(8.0), torch.tensor(0.5)) == 16
    sums = Sums(torch.zeros(3), None, zero, mean_locations(zero, zero))
    assert complete(sums, torch.zeros(2)).g.isfinite().all()


@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("bias", [True, False])
def test_moments_of_inputs_alone_are_those_of_both_sides_without_the_gradients(kind, bias):
    sums = {}
    for statistic in (MOMENT, MOMENT.of_inputs()):
        module = layer_of(kind, bias=bias)
        hooks = capture(module, statistic, micro_batches=2)
        with Operators() as operators:
            train(module, kind, [[3], [2]])
        sums[statistic] = hooks.take()["layer"]
        of_gradients = (len(module.weight), len(module.weight))
        assert (of_gradients in [product.result.shape for product in operators.named("mm")]) == (statistic == MOMENT)
    both, inputs_alone = sums.values()
    assert inputs_alone.g is None
    assert torch.equal(inputs_alone.x, both.x)
    assert inputs_alone.number == both.number
    assert inputs_alone.locations == 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [("moment", {"clamp": 1.0}), ("moment", {"examples": 3}), ("rows", {"clamp": 1.0}), ("rows", {"sides": "input"})],
)
def test_settings_of_other_statistics_are_refused(kind, options):
    with pytest.raises(ValueError, match=r"(clamp and examples|sides) are (for|those of) means"):
        Statistic(kind, **options)


def sums_of(operators: Operators, tensor: Tensor) -> int:
    """Return how many sums of tensors of this size were computed."""
    return sum(operator.args[0].numel() == tensor.numel() for operator in operators.named("sum"))


def test_layers_called_with_the_same_tensor_share_its_sum():
    """Queries, keys and values, unless the tensor has been changed in place or is another one."""
    layers = {name: nn.Linear(3, 2).double() for name in "qkv"}
    hooks = Capture({name: Layer(name, module) for name, module in layers.items()}, MEAN)
    for batch in (inputs("linear", 0, 5), inputs("linear", 1, 5)):
        with Operators() as operators:
            outputs = [module(batch) for module in layers.values()]
        assert sums_of(operators, batch) == 1
        torch.cat(outputs).sum().backward()
        for sums in hooks.take().values():
            assert_close(sums.x[:3], batch.sum((0, 1)))
    with Operators() as operators:
        layers["q"](batch)
        output = layers["k"](batch.mul_(2))
    assert sums_of(operators, batch) == 1
    output.sum().backward()
    assert_close(hooks.take()["k"].x[:3], batch.sum((0, 1)))


@pytest.mark.parametrize("statistic", [MEAN, MOMENT], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_gradient_penalty_counts_the_last_backward_pass_alone(statistic, bias):
    """Truth: the rows of the penalized loss, by autograd."""
    module = layer_of("linear", bias=bias)
    hooks = capture(module, statistic)
    batch = inputs("linear", 0, 3).requires_grad_()
    output = module(batch)
    loss = output.pow(3).mean()
    (penalty,) = torch.autograd.grad(loss, batch, create_graph=True)
    output.retain_grad()
    (loss + penalty.square().sum()).backward()
    assert output.grad is not None
    x, g = reference.rows_of(module, batch.detach(), output.grad)
    sums = take(hooks)
    if statistic == MEAN:
        assert_close(sums.g, g.sum(0))
    else:
        assert_close(sums.g, g.T @ g / len(g))
        assert_close(sums.x, x.T @ x / len(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_differentiation_runs_through_hooked_layers():
    module = layer_of("linear")
    capture(module, MEAN)
    batch = inputs("linear", 0, 3)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(module(forward_ad.make_dual(batch, torch.ones_like(batch)))).tangent
    assert_close(tangent, torch.ones_like(batch) @ module.weight.T)
