"""MKOR's options, and limits in which it is another method. Its recurrences are in test_reference.py."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mkor_core import MKOR, MKORH, Preconditioner
from mkor_core.capture.statistics import Captured, LayerShape
from mkor_core.maths import inverses
from mkor_core.maths.products import Gradient
from mkor_core.method import Known, Products
from tests.support import reference
from tests.support.operators import Operators


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3, bias=False)).double()


def batches(number: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(12, 6) + 0.5, draw(12, 3)) for _ in range(number)]


def backward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    model.zero_grad()
    loss = (model(batch[0]) - batch[1]).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Linear(4, 3, bias=False), (12, 4)), (nn.Conv2d(2, 3, 2, stride=2), (5, 2, 4, 6))], ids=str
)
def test_a_higher_rank_is_the_inverse_of_the_averaged_moment(layer, shape):
    """With as many directions as dimensions the update is the exact inverse of gamma M + (1 - gamma) X^T X / n.

    Truth: explicit rows, of a convolution those of all locations; gradient rows are scaled by the number of examples.
    """
    layer = layer.double()
    preconditioner = Preconditioner(layer, MKOR(inverse_update_period=1, rank=9, rescale=False))
    inputs = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    grad, x, g = reference.backward(layer, inputs)
    g = g * len(inputs)
    right = (0.9 * torch.eye(x.shape[1]).double() + 0.1 * x.T @ x / len(x)).inverse()
    left = (0.9 * torch.eye(3).double() + 0.1 * g.T @ g / len(g)).inverse()
    preconditioner.step()
    assert_close(reference.joined(layer), left @ grad @ right, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 2, 8])
@pytest.mark.parametrize("rule", ["sherman_morrison", "released"])
def test_a_thousand_half_precision_updates_stay_finite(rule, window, dtype):
    """What is left of a window of 8 after a truncation spans all of the side of 4; 0.9^-850 overflows bfloat16."""
    dimensions = 4, 6
    method = MKOR(update_rule=rule, factor_dtype=dtype, window=window, inverse_update_period=1)
    state = method.initial_state(LayerShape(*dimensions), torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for step in range(1_000):
        scale = 10.0 ** (step % 7 - 4)
        for side, dimension in zip(("left", "right"), dimensions, strict=True):
            vectors = scale * torch.randn(dimension, 1, generator=generator)
            state[f"{side}_vectors"] = vectors.to(dtype)
        method.make_room(state, step)
        method.update_factors(state, step)
    assert all(tensor.isfinite().all() for tensor in state.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_windows_in_half_precision_are_decomposed_in_float32(dtype):
    """The eigenvalues of a gram matrix that is rounded to bfloat16 have errors of a hundredth."""
    method = MKOR(factor_dtype=dtype, window=4, inverse_update_period=1)
    state = method.initial_state(LayerShape(5, 6), torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        for side, dimension in (("left", 5), ("right", 6)):
            state[f"{side}_vectors"] = torch.randn(dimension, 1, generator=generator).to(dtype)
        method.make_room(state, step)
        method.update_factors(state, step)
    for side, gram in method.host_inputs(state, 3).items():
        columns = state[side].double() * state[f"{side}_weights"].double().sqrt()[:, None]
        assert_close(gram, columns @ columns.mT, rtol=1e-6, atol=1e-6)


def test_a_vector_that_overflows_half_precision_products_keeps_its_update():
    """v^T J v > 65504 loses the update if the recurrence itself runs in float16."""
    method = MKOR(factor_dtype=torch.float16)
    state = method.initial_state(LayerShape(2, 400), torch.float32, torch.device("cpu"))
    state["right_vectors"] = torch.full((400, 1), 50.0, dtype=torch.float16)
    method.update_factors(state, 0)
    direction = torch.ones(400) / 20
    along = direction @ inverses.from_state(state, "right").to_matrix().float() @ direction
    assert along < 0.01  # 1/0.9 without the update


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor_decay": 1}, "factor_decay=1 must be greater than 0 and less than 1: the weight of the old factor."),
        ({"factor_dtype": torch.int8}, "factor_dtype=torch.int8 must be one of float64, float32, bfloat16, float16"),
        ({"gradient_norm": 1.0, "sides": "input"}, "gradient_norm=1.0 must be None with sides='input'"),
        ({"gradient_norm": 1.0, "rank": 2}, "gradient_norm=1.0 must be None with rank=2"),
        ({"gradient_scale": 2.0, "sides": "input"}, "gradient_scale=2.0 must be 1 with rank above 1, sides='input'"),
        ({"gradient_scale": 2.0, "rank": 2}, "gradient_scale=2.0 must be 1 with rank above 1"),
        ({"gradient_scale": 2.0, "gradient_norm": 1.0}, "gradient_scale=2.0 must be 1 with rank above 1"),
        ({"rank": 2, "update_rule": "released"}, "rank=2 must be 1 unless update_rule is sherman_morrison"),
        ({"rank": 2, "window": 3}, "rank=2 must be 1 with window=3: a window keeps rank-1 updates"),
    ],
    ids=str,
)
def test_a_bad_hyperparameter_is_refused_by_name(options, message):
    """Those that exclude each other, and a dtype; tests/baselines/test_methods.py tries each alone."""
    with pytest.raises(ValueError, match="must") as caught:
        MKOR(**options)
    assert message in str(caught.value)


def test_a_scale_on_g_updates_the_left_factor_as_a_scaled_loss_would_and_leaves_the_right_one():
    """Truth: training from gradients that are all eight times as large; V = J_L D J_R is rescaled to the norm of D."""
    torch.manual_seed(0)
    rows = [Captured(torch.randn(5).double(), torch.randn(3).double(), torch.tensor(4.0).double()) for _ in range(4)]
    states = []
    for method, factor in ((MKOR(gradient_scale=8.0), 1), (MKOR(), 8), (MKOR(), 1)):
        state = method.initial_state(LayerShape(3, 5), torch.float64, torch.device("cpu"))
        for step, (x, g, number, _) in enumerate(rows):
            method.accumulate(state, Captured(x, factor * g, number), step)
        states.append(state)
    scaled, truth, plain = states
    for side in ("left", "right"):
        torch.testing.assert_close(
            inverses.from_state(scaled, side).to_matrix(), inverses.from_state(truth, side).to_matrix()
        )
    assert not torch.allclose(
        inverses.from_state(scaled, "left").to_matrix(), inverses.from_state(plain, "left").to_matrix()
    )


def test_vectors_travel_in_half_precision_only_if_the_factors_are():
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    expected = [None, None, torch.bfloat16, torch.float16]
    assert [MKOR(factor_dtype=dtype).statistic.message_dtype for dtype in dtypes] == expected


def test_mkor_h_switches_at_the_knee():
    """Once the loss stops falling, the hooks are removed and the step is recorded."""
    model = perceptron()
    preconditioner = Preconditioner(model, MKORH(inverse_update_period=1, warmup_steps=5, knee_beta=0.2))
    losses = [1 / (1 + step) for step in range(10)] + [0.1] * 30
    for batch, loss in zip(itertools.cycle(batches(4)), losses, strict=False):
        backward(model, batch)
        before = reference.joined(model[0])
        preconditioner.observe(loss)
        preconditioner.step()
        if preconditioner.switch_step is not None:
            break
    assert preconditioner.switch_step is not None
    assert preconditioner.switch_step > 10
    backward(model, batch)
    before = reference.joined(model[0])
    preconditioner.step()
    assert_close(reference.joined(model[0]), before, rtol=0, atol=0)
    assert not model[0]._forward_hooks
    assert preconditioner.memory_bytes() == 0


def test_mkor_h_switches_only_after_its_warm_up():
    method, flat = MKORH(warmup_steps=7), [(1, 1.0), (1, 0.0), *[(1, 0.0)] * 40]
    assert [(method.is_over(flat, step), method.loss_is_due(step)) for step in (6, 7, 8)] == [
        (False, False),
        (False, False),
        (True, True),
    ]


def test_mkor_h_without_a_loss_raises():
    model = perceptron()
    preconditioner = Preconditioner(model, MKORH(inverse_update_period=1, warmup_steps=2))
    for batch in batches(2):
        backward(model, batch)
        preconditioner.step()
    backward(model, batch)
    with pytest.raises(RuntimeError, match=r"call observe\(loss\)"):
        preconditioner.step()


@pytest.mark.parametrize("leading", [(), (2,)])
@pytest.mark.parametrize(
    ("norm", "gradient_norm", "counts"),
    [(2e-4, 1e3, True), (5e-5, 1e3, False), (0.5, None, True), (0.0, None, False), (0.0, 1e3, False)],
)
def test_a_mean_gradient_below_a_share_of_the_gradients_norm_is_noise(norm, gradient_norm, counts, leading):
    """The share is 1e-5, for the norm |g| |a| of the mean rows' part of D; |a| = 100 and |D| = 1000 make |g| 1e-4."""
    method = MKOR(gradient_norm=3.0)
    state = method.initial_state(LayerShape(4, 4), torch.float64, torch.device("cpu"), leading)
    x, g = torch.zeros(2, *leading, 4, dtype=torch.float64)
    x[..., 1], g[..., 2] = 500.0, norm
    number = torch.full(leading, 5.0, dtype=torch.float64)
    of_gradient = None if gradient_norm is None else torch.full(leading, gradient_norm, dtype=torch.float64)
    noise = method.accumulate(state, Captured(x, g, number, of_gradient), 0)
    truth = torch.zeros(*leading, 4, dtype=torch.float64)
    truth[..., 2] = 3.0 if counts else 0.0
    assert_close(state["left_vectors"][..., 0], truth)
    assert noise is not None
    assert torch.equal(noise, torch.full(leading, not counts))


@pytest.mark.parametrize(
    ("stored", "window", "device", "dtype"),
    [
        (torch.bfloat16, None, "meta", torch.bfloat16),
        (torch.bfloat16, None, "cpu", torch.float32),
        (torch.bfloat16, 2, "meta", torch.float32),
        (torch.float16, None, "meta", torch.float32),
        (torch.float32, None, "meta", torch.float32),
    ],
    ids=str,
)
def test_products_are_bfloat16_where_dense_factors_are_and_the_device_is_fast_at_it(stored, window, device, dtype):
    method = MKOR(factor_dtype=stored, window=window)
    state = method.initial_state(LayerShape(3, 4), torch.float32, torch.device(device), (2,))
    with Operators() as operators:
        method.apply(state, Gradient(torch.ones(2, 3, 4, device=device), None), Known(Products()))
    assert {product.args[0].dtype for product in operators.named("mm", "bmm")} == {dtype}
