"""Blocks of D, and what refuses them. Truth: V of all of D, and one rank that holds sharded parameters whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing import assert_close

from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.capture.blocks import WHOLE, ActivationShard, Block, place_gradient
from mkor_core.capture.layer import Layer
from mkor_core.capture.losses import LossHistory
from mkor_core.capture.statistics import MEAN, Captured, LayerShape
from mkor_core.capture.sums import Capture
from mkor_core.engines import choice
from mkor_core.maths.block_products import counted_part
from mkor_core.maths.products import Gradient, rescale_
from mkor_core.method import InPlaceMethod, Known, Products

D_OUT, D_W = 6, 5
METHODS: dict[str, InPlaceMethod] = {
    "window": MKOR(window=4, inverse_update_period=1),
    "window, input side": MKOR(window=4, inverse_update_period=1, sides="input"),
    "window, not rescaled": MKOR(window=4, inverse_update_period=1, rescale=False),
    "eva": Eva(kl_clip=None),
}


def state_after_updates(method: InPlaceMethod, has_bias: bool) -> Any:
    shape, generator = LayerShape(D_OUT, D_W + has_bias), torch.Generator().manual_seed(0)
    state = method.initial_state(shape, torch.float64, torch.device("cpu"))
    for step in range(3):
        x = torch.randn(shape.d_in, generator=generator, dtype=torch.float64)
        g = torch.randn(shape.d_out, generator=generator, dtype=torch.float64)
        method.accumulate(state, Captured(x, g, torch.ones((), dtype=torch.float64)), step)
    return state


def slices(size: int, cuts: list[int]) -> list[tuple[int, int]]:
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    return list(pairwise(edges))


@given(
    name=st.sampled_from(sorted(METHODS)),
    has_bias=st.booleans(),
    row_cuts=st.lists(st.integers(0, D_OUT), max_size=3),
    column_cuts=st.lists(st.integers(0, D_W), max_size=2),
)
def test_blocks_of_any_cut_give_the_blocks_of_the_update(name, has_bias, row_cuts, column_cuts):
    """Sums over the blocks are taken as ranks would take them; blocks may be empty."""
    method = METHODS[name]
    state = state_after_updates(method, has_bias)
    whole = Gradient(
        torch.randn(D_OUT, D_W, dtype=torch.float64), torch.randn(D_OUT, dtype=torch.float64) if has_bias else None
    )
    truth = Gradient(*(None if part is None else part.clone() for part in whole))
    method.apply(state, truth, Known(method.products(state, truth)))
    rows, columns = slices(D_OUT, row_cuts), slices(D_W, column_cuts)
    others = [cast("Any", ("others",)) if len(cuts) > 1 else () for cuts in (rows, columns)]
    places = [(i, j) for i in range(len(rows)) for j in range(len(columns))]
    blocks = {(i, j): Block(rows[i], columns[j], *others, counts_bias=j == 0, row_shards=len(rows)) for i, j in places}
    grads = {place: cut(whole, block) for place, block in blocks.items()}
    sums = {place: method.products(state, grads[place], block) for place, block in blocks.items()}
    if name in ("window", "window, not rescaled"):
        assert all(bool(one.over_all) == (len(rows) > 1 and len(columns) > 1) for one in sums.values())
    before = sum(counted_part(grads[place], block).square_norm() for place, block in blocks.items())
    for (i, j), block in blocks.items():
        total = Products(
            added([sums[k, j].over_rows for k in range(len(rows))]),
            added([sums[i, k].over_columns for k in range(len(columns))]),
            added([one.over_all for one in sums.values()]),
        )
        method.apply(state, grads[i, j], Known(total, cut=block))
    after = sum(counted_part(grads[place], block).square_norm() for place, block in blocks.items())
    for place, block in blocks.items():
        if method.keeps_norm:
            rescale_(grads[place], torch.as_tensor(before), torch.as_tensor(after))
        assert_close(list(grads[place]), list(cut(truth, block)), rtol=1e-9, atol=1e-11)


def cut(grad: Gradient, block: Block) -> Gradient:
    """Return a copy of a block."""
    rows = slice(*block.rows)
    bias = None if grad.bias is None else grad.bias[rows].clone()
    return Gradient(grad.weight[rows, slice(*block.columns)].clone(), bias)


def added(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(tensors).sum(0) for tensors in zip(*parts, strict=True))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_state_that_is_not_finite_leaves_blocks_as_they_are(name):
    """Eva's inner products and R = U_L^T D U_R tell all ranks."""
    method = METHODS[name]
    state = state_after_updates(method, has_bias=True)
    state["right"].fill_(torch.nan)
    weight, bias = torch.randn(3, D_W, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    block = Block((0, 3), (0, D_W), cast("Any", ("others",)), (), counts_bias=True, row_shards=2)
    grad = Gradient(weight.clone(), bias.clone())
    method.apply(state, grad, Known(method.products(state, grad, block), cut=block))
    assert_close([grad.weight, grad.bias], [weight, bias], rtol=0, atol=0)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def trained(model: nn.Module, method: Method, *, skips: bool = False, **options: Any) -> list[Tensor]:
    """Return the whole weights after three steps; skips: before each is another, which a gradient scaler skips."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Preconditioner(model, method, **options).attach(optimizer)
    for step in range(3):
        if skips:
            model(100 * torch.randn(8, 4, generator=torch.Generator(), dtype=torch.float64)).sum().backward()
            optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(8, 4, generator=generator, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    parameters: list[Any] = [*model.parameters()]
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in parameters]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    "method",
    [MKOR(inverse_update_period=1), MKOR(inverse_update_period=1, window=2), Eva(), KAISA(), HyLo(update_period=1)],
    ids=lambda method: f"{type(method).__name__} {getattr(method, 'window', '')}",
)
@pytest.mark.parametrize("owners", [None, True])
def test_one_rank_with_sharded_parameters_trains_as_without(method, owners):
    """A skipped step leaves no statistics: FSDP sets the root's gradients at the very end of a backward pass."""
    truth = trained(network(), method)
    for skips in (False, True):
        sharded = trained(fully_shard(network()), method, skips=skips, owners=owners)
        assert_close(sharded, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("one_rank")
def test_a_model_that_is_sharded_after_its_preconditioner_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Preconditioner(model, MKOR()).attach(optimizer)
    fully_shard(model)
    model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    with pytest.raises(RuntimeError, match=r"Layer '0' has been sharded: .* after fully_shard"):
        optimizer.step()


@pytest.mark.usefixtures("one_rank")
def test_owners_can_only_be_refused_where_blocks_suffice():
    Preconditioner(fully_shard(network()), MKOR(window=4), owners=False)
    in_part = network()
    fully_shard(cast("nn.Linear", in_part[0]))
    for model in (fully_shard(network()), in_part):
        with pytest.raises(ValueError, match=r"owners=False: this MKOR needs whole gradients, and the parameters are"):
            Preconditioner(model, MKOR(), owners=False)


@pytest.mark.usefixtures("one_rank")
def test_a_cut_of_which_d_has_no_blocks_is_refused_by_name():
    mesh = init_device_mesh("cpu", (1,))
    convolution = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False))
    convolution[0].weight = nn.Parameter(distribute_tensor(convolution[0].weight.detach(), mesh, [Shard(1)]))
    with pytest.raises(TypeError, match=r"The weight of layer '0' is placed as S\(1\): only its rows can be divided"):
        Preconditioner(convolution, MKOR())


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("method", [KAISA(), HyLo(), MKOR(rank=2)], ids=lambda method: type(method).__name__)
def test_tensor_parallel_layers_are_refused_where_whole_rows_are_needed(method, monkeypatch):
    """As if the mesh's one rank were two: a model that no rank divides is not tensor-parallel."""
    model = parallelize_module(network(), init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
    monkeypatch.setattr(choice, "ranks_of_a_batch", lambda model, world: 2)
    with pytest.raises(TypeError, match=r"needs whole rows of inputs and gradients, which tensor-parallel ranks"):
        Preconditioner(model, method)


@pytest.mark.parametrize("statistic", [MEAN, replace(MEAN, clamp=1.0)], ids=["mean", "clamped"])
def test_a_rank_without_columns_counts_its_rows(statistic):
    """Of 3 columns, the last of four ranks has none: neither of outputs nor, in the next layer, of inputs."""
    inputs, grad = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    layer = Layer("0", nn.Linear(3, 3).double())
    none = ActivationShard(offset=3, column_shards=4)
    capture = Capture({"0": layer}, statistic)
    capture._take_input(layer, inputs, 1, inputs.dtype, WHOLE)(grad[:, 3:], none)
    by_rows = capture.take()["0"]
    capture._take_input(layer, inputs[:, 3:], 1, inputs.dtype, none)(grad, WHOLE)
    by_columns = capture.take()["0"]
    x = inputs if statistic.clamp is None else inputs.clamp(-1, 1)
    assert_close(by_rows.x, torch.cat([x.sum(0), x.new_full((1,), 5)]))
    assert_close(by_columns.x, torch.tensor([0.0, 0, 0, 5], dtype=torch.float64))
    assert by_rows.number == by_columns.number == 5
    if by_rows.g is not None:
        assert not by_rows.g.any()


@pytest.mark.usefixtures("one_rank")
def test_a_gradient_that_is_still_to_be_added_up_is_placed_as_its_parameter():
    mesh = init_device_mesh("cpu", (1,))
    parameter = nn.Parameter(distribute_tensor(torch.ones(2, 3), mesh, [Replicate()]))
    parameter.grad = DTensor.from_local(torch.full((2, 3), 2.0), mesh, [Partial()])
    place_gradient(parameter)
    assert cast("Any", parameter.grad).placements == (Replicate(),)
    grad = parameter.grad
    place_gradient(parameter)
    assert parameter.grad is grad


@pytest.mark.usefixtures("one_rank")
def test_a_loss_that_ranks_hold_in_parts_is_added_up():
    """As loss_parallel returns it."""
    history = LossHistory(nn.Linear(1, 1), 1)
    history.put("observe", DTensor.from_local(torch.tensor(2.0), init_device_mesh("cpu", (1,)), [Partial()]))
    loss = history.take(torch.ones(1))
    assert type(loss) is Tensor
    assert loss == 2.0


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("method", [Eva(), KAISA()], ids=type)
def test_a_rank_that_owns_no_layer_misses_the_learning_rate_too(method, monkeypatch):
    """Otherwise it would wait for the others, which raise an error."""
    monkeypatch.setattr(choice, "assigned", lambda layers, group: {layer.name: 1 for layer in layers})
    model = network()
    made = Preconditioner(model, method, owners=True)
    model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    with pytest.raises(ValueError, match="kl_clip needs the learning rate"):
        made.step()


@pytest.mark.usefixtures("one_rank")
def test_a_rank_that_is_not_in_the_group_cannot_keep_the_state():
    for method in (MKOR(), Eva(), KAISA()):
        with pytest.raises(ValueError, match="rank=1 is not one of the 1 ranks of the group: 0 to 0"):
            Preconditioner(network(), method).consolidate(1)


def test_an_owner_loads_a_state_without_its_layers_that_are_not_trained():
    """Frozen ones, and those that the optimizer does not step."""
    model = network()
    first, last = cast("nn.Linear", model[0]), cast("nn.Linear", model[2])
    first.requires_grad_(False)
    frozen = Preconditioner(model, MKOR(), owners=True)
    state = frozen.state_dict()
    assert state["layers"].keys() == {"2"}
    frozen.load_state_dict(state)
    first.requires_grad_()
    with pytest.raises(ValueError, match="The saved state lacks layer '0', which this rank owns: call consolidate"):
        frozen.load_state_dict(state)
    for load_first in (False, True):
        attached = Preconditioner(model, MKOR(), owners=True).attach(torch.optim.SGD(last.parameters()))
        if load_first:
            attached.load_state_dict(state)
        assert attached.state_dict()["layers"].keys() == {"2"}
