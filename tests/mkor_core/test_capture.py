"""Truth: autograd's gradient (``G^T X``), and explicit loops over examples and output locations."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

from mkor_core import MKOR, Preconditioner
from mkor_core.capture.discovery import find_layers
from mkor_core.capture.layer import Layer
from mkor_core.capture.reductions import average_locations
from mkor_core.capture.rows import RowCapture
from mkor_core.capture.statistics import MEAN, MOMENT, ROWS, Captured, Rows, Statistic
from mkor_core.capture.sums import Capture
from tests.support import reference
from tests.support.reference import complete

CONVOLUTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "stride": {"stride": (2, 1)},
    "padding": {"padding": (1, 2)},
    "padding on one axis": {"padding": (0, 2)},
    "valid padding": {"padding": "valid"},
    "dilation": {"dilation": 2},
    "all": {"stride": 2, "padding": 1, "dilation": (1, 2), "bias": False},
    "one axis": {"of": nn.Conv1d, "kernel_size": 2, "stride": 2, "padding": 1, "dilation": 3},
    "one axis, no bias": {"of": nn.Conv1d, "bias": False},
    "three axes": {"of": nn.Conv3d, "kernel_size": (1, 3, 2), "stride": (2, 1, 3), "padding": (1, 0, 2)},
    "three axes, no bias": {"of": nn.Conv3d, "kernel_size": 2, "dilation": (1, 2, 3), "bias": False},
}
PADDED = {
    "same": {"padding": "same", "kernel_size": 4},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "circular same": {"padding": "same", "padding_mode": "circular", "dilation": 2},
    "one axis, same": {"of": nn.Conv1d, "padding": "same", "kernel_size": 4},
    "one axis, replicate": {"of": nn.Conv1d, "padding": 2, "padding_mode": "replicate"},
    "three axes, same": {"of": nn.Conv3d, "padding": "same", "kernel_size": (2, 4, 3)},
    "three axes, reflect": {"of": nn.Conv3d, "padding": (2, 1, 0), "padding_mode": "reflect"},
}
KINDS = ("linear", "transposed", "one axis", "convolution", "three axes")


def linear(**options: object) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 3, dtype=torch.float64, **options)


def convolution(of: Any = nn.Conv2d, **options: object) -> Any:
    torch.manual_seed(0)
    return of(2, 3, **{"kernel_size": 3, **options}, dtype=torch.float64)


def layer_of(kind: str, **options: object) -> Any:
    """Return a layer; options: of one that is a convolution."""
    if kind == "linear":
        return linear()
    if kind == "transposed":
        torch.manual_seed(0)
        return Conv1D(3, 5).double()
    return convolution({"one axis": nn.Conv1d, "convolution": nn.Conv2d, "three axes": nn.Conv3d}[kind], **options)


def capture(model: nn.Module, statistic: Statistic, **options: object) -> tuple[Any, dict[str, Layer]]:
    layers = find_layers(model, ())
    if statistic == ROWS:
        return RowCapture(layers, **options), layers
    return Capture(layers, statistic, **options), layers


def images(number: int = 4, axes: int = 2) -> Tensor:
    shape = (5, 7, 6)[3 - axes :]
    return torch.randn(number, 2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def inputs_of(layer: nn.Module, number: int = 4) -> Tensor:
    """Return a batch for a layer; that of a linear one has tokens."""
    kernel = getattr(layer, "kernel_size", None)
    return vectors(number, 6) if kernel is None else images(number, len(kernel))


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def take_rows(hooks: RowCapture, name: str = "0") -> Rows:
    parts = hooks.take_rows()[name]
    return Rows(torch.cat([part.x for part in parts]), torch.cat([part.g for part in parts]), parts[0].locations)


def take_sums(hooks: Capture, name: str = "0") -> Captured:
    """Return a layer's sums, completed by the gradient of its bias."""
    layer = hooks._layers[name]
    return complete(hooks.take()[name], layer.bias_gradient())


@pytest.mark.parametrize("shape", [(8,), (4, 6), ()], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_rows_of_a_linear_give_its_gradient(shape, bias):
    model = nn.Sequential(linear(bias=bias), nn.ReLU(inplace=True))
    hooks, layers = capture(model, ROWS)
    model(vectors(*shape)).square().mean().backward()
    rows = take_rows(hooks)
    assert_close(rows.g.T @ rows.x, layers["0"].gradient())


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")
@pytest.mark.parametrize("options", PADDED.values(), ids=PADDED)
def test_rows_of_a_padded_convolution_give_its_gradient(options):
    model = nn.Sequential(convolution(**options), nn.ReLU(inplace=True))
    hooks, layers = capture(model, ROWS)
    model(inputs_of(model[0])).square().mean().backward()
    rows = take_rows(hooks)
    assert_close(rows.g.T @ rows.x, layers["0"].gradient())


@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolutions_rows_are_its_unfolded_patches(options):
    layer = convolution(**options)
    hooks, _ = capture(nn.Sequential(layer), ROWS)
    batch = inputs_of(layer)
    output = layer(batch)
    output.retain_grad()
    output.square().mean().backward()
    x, g = reference.rows_of(layer, batch, output.grad)
    rows = take_rows(hooks)
    assert_close(rows.x, x)
    assert_close(rows.g, g)
    assert rows.locations == len(x) // len(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_means_are_the_means_of_the_rows(kind):
    """x / number is the mean input row; g is the mean gradient row times the rows (Linear) or examples (Conv2d)."""
    model = nn.Sequential(layer_of(kind, padding=1, stride=2))
    inputs = inputs_of(model[0])
    by_rows, _ = capture(model, ROWS)
    by_means, _ = capture(model, MEAN)
    model(inputs).square().mean().backward()
    rows, means = take_rows(by_rows), take_sums(by_means)
    multiplicity = len(rows.x) if kind in ("linear", "transposed") else len(inputs)
    assert means.number == multiplicity
    assert_close(means.x / means.number, rows.x.mean(0))
    assert_close(means.g, rows.g.mean(0) * multiplicity)


@pytest.mark.parametrize("statistic", [MEAN, replace(MEAN, clamp=0.3), replace(MEAN, examples=1), MOMENT], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_without_a_batch_dimension_is_a_batch_of_one(kind, statistic):
    """Also a convolution whose output is not square."""
    model = nn.Sequential(layer_of(kind))
    (example,) = vectors(1) if kind in ("linear", "transposed") else inputs_of(model[0], 1)
    taken = []
    for inputs in (example, example[None]):
        hooks, _ = capture(model, statistic)
        model(inputs).square().mean().backward()
        taken.append(tuple(take_sums(hooks)))
        hooks.remove()
        model.zero_grad()
    assert_close(taken[0], taken[1])


def test_an_input_passed_by_keyword_is_captured_too():
    model = nn.Sequential(linear())
    hooks, _ = capture(model, MEAN)
    model[0](input=vectors(8)).sum().backward()
    assert_close(take_sums(hooks).x[:5], vectors(8).sum(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("micro_batches", "ranks"), [(1, 1), (3, 4)], ids=str)
def test_clamped_means_are_taken_over_clamped_rows(kind, micro_batches, ranks):
    """Gradient rows are scaled by the global batch before they are clamped, a convolution's after they are averaged.

    The 1 that a bias appends to input rows is not clamped.
    """
    limit = 0.3 if kind == "three axes" else 0.9
    model = nn.Sequential(layer_of(kind))
    inputs = vectors(9) if kind in ("linear", "transposed") else inputs_of(model[0])
    by_rows, _ = capture(model, ROWS, shares=ranks)
    by_means, _ = capture(model, replace(MEAN, clamp=limit), micro_batches=micro_batches, shares=ranks, place=0)
    (model(inputs).square().sum() / micro_batches).backward()
    rows, means = take_rows(by_rows), take_sums(by_means)
    x, g = average_locations(rows.x, rows.locations), average_locations(rows.g, rows.locations)
    number = len(x) * micro_batches * ranks
    clamped = (g * number).clamp(-limit, limit)
    assert_close((means.x / means.number)[:-1], x[:, :-1].clamp(-limit, limit).mean(0))
    assert means.x[-1] == means.number
    assert_close(means.g, clamped.sum(0) / number)
    assert 0 < (clamped.abs() == limit).sum() < clamped.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_those_of_the_rows(kind):
    model = nn.Sequential(layer_of(kind, padding=1))
    by_rows, _ = capture(model, ROWS)
    by_moments, _ = capture(model, MOMENT)
    model(inputs_of(model[0])).square().mean().backward()
    rows, moments = take_rows(by_rows), take_sums(by_moments)
    x, g = rows.x / rows.locations, rows.g / rows.locations
    assert_close(moments.x, x.T @ x / len(x))
    assert_close(moments.g, g.T @ g / len(g))
    assert moments.number == 1


def test_checkpointed_layers_are_captured_once():
    """Their forward runs again inside the backward pass, which does not start a new micro-batch."""
    model = nn.Sequential(linear(), nn.ReLU(), nn.Linear(3, 3, dtype=torch.float64))
    hooks, layers = capture(model, ROWS)
    hidden = checkpoint(model[:2], vectors(8).requires_grad_(), use_reentrant=False)
    model[2](hidden).square().mean().backward()
    taken = hooks.take_rows()
    for name, layer in layers.items():
        rows = taken[name]
        assert_close(sum(part.g.T @ part.x for part in rows), layer.gradient())


def test_evaluation_and_disabled_hooks_capture_nothing():
    model = nn.Sequential(linear())
    hooks, _ = capture(model, ROWS)
    with torch.no_grad():
        model(vectors(8))
    model.eval()(vectors(8)).sum().backward()
    model.train()
    hooks.enabled = False
    model(vectors(8)).sum().backward()
    assert hooks.reached == frozenset()
    assert hooks.take_rows() == {}


@pytest.mark.parametrize("scale", [None, torch.tensor(8.0), 8.0], ids=str)
@pytest.mark.parametrize("statistic", [MEAN, MOMENT, ROWS], ids=lambda statistic: statistic.kind)
def test_rows_are_divided_by_the_loss_scale_and_the_shares_once(statistic, scale):
    model = nn.Sequential(linear(bias=False))
    plain, _ = capture(model, statistic)
    scaled, _ = capture(model, statistic, grad_scale=lambda: scale, shares=2)
    model(vectors(8)).square().mean().backward()
    divisor = 2 if scale is None else 16
    if statistic == ROWS:
        assert_close(take_rows(scaled).g * divisor, take_rows(plain).g)
    else:
        one, other = take_sums(plain), take_sums(scaled)
        assert_close(other.x, one.x)
        assert_close(other.g * (divisor**2 if statistic.kind == "moment" else divisor), one.g)


def test_moments_of_micro_batches_are_averaged_whatever_their_size():
    model = nn.Sequential(linear())
    hooks, _ = capture(model, MOMENT, micro_batches=2)
    small, large = vectors(8).split([2, 6])
    for part in (small, large):
        model(part).square().mean().backward()
    moments = take_sums(hooks)
    rows = [torch.cat([part, torch.ones(len(part), 1, dtype=part.dtype)], 1) for part in (small, large)]
    assert moments.number == 2
    assert_close(moments.x / moments.number, sum(x.T @ x / len(x) for x in rows) / 2)


@pytest.mark.parametrize(("rank", "first", "taken"), [(0, 5, [0, 1, 2, 3, 4]), (1, 5, []), (1, 7, [0])], ids=str)
@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.filterwarnings("error")
def test_the_first_examples_of_every_step_are_those_of_its_first_micro_batches(rank, first, taken, skipped):
    """Ranks with three micro-batches of two examples; the first of the global batch count, in every step anew."""
    model = nn.Sequential(linear(bias=False))
    hooks, _ = capture(model, replace(MEAN, examples=first), micro_batches=3, place=rank)
    for step, inputs in enumerate(vectors(2, 6)):
        model.zero_grad()
        for part in inputs.split(2):
            model(part).square().mean().backward()
        if skipped and step == 0:
            continue
        sums = hooks.take().get("0")
        assert (sums is not None) == bool(taken)
        if sums is not None:
            assert_close(sums.x, inputs[taken].sum(0))


def test_rows_of_two_examples_are_averaged_over_their_two_locations():
    rows = torch.arange(8.0).view(4, 2)
    assert_close(average_locations(rows, 2), torch.tensor([[1.0, 2.0], [5.0, 6.0]]))
    assert average_locations(rows, 1) is rows


@pytest.mark.parametrize("statistic", [MEAN, MOMENT, ROWS], ids=lambda statistic: statistic.kind)
@pytest.mark.parametrize("forget", ["take", "drop", "remove"])
def test_what_is_taken_dropped_or_removed_is_forgotten(forget, statistic):
    model = nn.Sequential(linear())
    hooks, _ = capture(model, statistic)
    take = hooks.take_rows if statistic == ROWS else hooks.take
    model(vectors(8)).sum().backward()
    assert hooks.reached == {"0"}
    take() if forget == "take" else getattr(hooks, forget)()
    assert hooks.reached == frozenset()
    assert take() == {}
    if forget == "remove":
        model(vectors(8)).sum().backward()
        assert take() == {}
        assert not model[0]._forward_hooks


def test_changed_gradients_of_which_some_are_zero_have_not_been_cleared():
    """Only zeros in all of them show a new step. The first layer's gradient is zero, the second's is clipped."""
    model = nn.ModuleList([linear(), linear()])
    hooks, _ = capture(model, MEAN)
    (0 * model[0](vectors(2)).sum() + model[1](vectors(2)).sum()).backward()
    for layer in model:
        layer.weight.grad.mul_(0.5)
    (model[0](vectors(3)) + model[1](vectors(3))).sum().backward()
    assert [sums.number for sums in hooks.take().values()] == [2 + 3, 2 + 3]


def test_a_copy_of_the_model_captures_nothing_and_warns():
    model = nn.Sequential(linear())
    hooks, _ = capture(model, MEAN)
    with pytest.warns(UserWarning, match="copy of a model"):
        clone = copy.deepcopy(model)
    clone(vectors(8)).sum().backward()
    assert hooks.take() == {}


@pytest.mark.parametrize("statistic", [MEAN, ROWS], ids=str)
def test_a_loss_scale_may_be_a_number_a_function_or_a_scaler(statistic):
    layers = []
    new, used = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (2.0, 4.0))
    used.scale(torch.ones(1))
    used.update(2.0)
    for scale in (2.0, lambda: 2.0, torch.tensor(2.0).clone, new, used):
        model = nn.Sequential(linear(bias=False))
        preconditioner = Preconditioner(model, MKOR(rank=2 if statistic == ROWS else 1), grad_scale=scale)
        (2 * model(vectors(4)).square().mean()).backward()
        preconditioner.step()
        layers.append(preconditioner.state_dict()["layers"]["0"])
    assert_close(layers[1:], [layers[0]] * 4)


def test_buffers_of_sums_are_cut_for_a_whole_step_and_given_back_after_it():
    """Otherwise there would be one for every number of rows that was ever seen."""
    model = nn.Sequential(linear(), nn.Linear(3, 3).double())
    hooks, _ = capture(model, MEAN)
    hidden = model[0](vectors(4))
    (rest,) = hooks._vectors.free.values()
    assert len(rest) == 3 + 1
    model[1](hidden).sum().backward()
    assert len(*hooks._vectors.free.values()) == 0
    hooks.take()
    model[0](vectors(4)).sum().backward()
    hooks.drop()
    assert hooks._vectors.free == {}
