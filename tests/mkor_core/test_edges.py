"""Rare cases, each of which once went wrong. Truth: the ordinary case, or no effect."""

from __future__ import annotations

import copy
import io
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from baselines import KAISA, Eva, HyLo, build
from baselines.natural.hylo import interpolated_middle
from mkor_core import MKOR, MKORH, Preconditioner
from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import LayerShape
from mkor_core.engines.stacks import States
from mkor_core.method import Method

METHODS: list[Method] = [
    MKOR(inverse_update_period=1),
    MKOR(inverse_update_period=1, rank=2),
    KAISA(factor_update_period=1, inverse_update_period=1, kl_clip=None),
    Eva(kl_clip=None),
    HyLo(update_period=1),
    HyLo(update_period=1, variant="KID"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def inputs(number: int = 6) -> Tensor:
    return torch.randn(number, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_a_disabled_gradient_scaler_scales_nothing():
    model, plain = network(), network()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for net, scale in ((model, scaler), (plain, 1.0)):
        preconditioner = Preconditioner(net, MKOR(), grad_scale=scale)
        net(inputs()).square().mean().backward()
        preconditioner.step()
    assert_close(gradients(model), gradients(plain), rtol=0, atol=0)


class Wrapped(nn.Module):
    """A model with a child that is called module without being in a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.module = network()

    def forward(self, rows: Tensor) -> Tensor:
        return self.module(rows)


@pytest.mark.parametrize("saved", [network, Wrapped, lambda: nn.DataParallel(network())])
@pytest.mark.parametrize("loaded", [network, Wrapped, lambda: nn.DataParallel(network())])
def test_states_fit_models_with_and_without_a_wrapper(saved, loaded):
    source, target = saved(), loaded()
    one, other = Preconditioner(source, MKOR()), Preconditioner(target, MKOR())
    source(inputs()).square().mean().backward()
    one.step()
    other.load_state_dict(one.state_dict())
    loaded_state, saved_state = (list(p.state_dict()["layers"].values()) for p in (other, one))
    assert_close(loaded_state, saved_state, rtol=0, atol=0)


def test_a_wrapped_single_layer_has_the_bare_layers_name():
    assert Preconditioner(nn.DataParallel(nn.Linear(2, 2)), MKOR()).layers == ("",)


@pytest.mark.parametrize("pattern", ["^0$", re.compile("^0$")], ids=str)
def test_exclude_matches_the_names_in_layers(pattern):
    assert Preconditioner(nn.DataParallel(network()), MKOR(), exclude=pattern).layers == ("2",)


def test_a_module_of_another_model_cannot_be_excluded():
    with pytest.raises(ValueError, match="exclude=Linear matches no module"):
        Preconditioner(network(), MKOR(), exclude=nn.Linear(2, 2))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_layer_without_examples_changes_nothing(method):
    """An expert that receives no example has zero rows: its gradient and its state stay as they are."""
    model = network()
    expert = nn.Linear(4, 3).double()
    together = nn.ModuleList([model, expert])
    preconditioner = Preconditioner(together, method)
    for _ in range(2):
        together.zero_grad()
        (model(inputs()).square().mean() + expert(inputs()[:0]).sum()).backward()
        preconditioner.step()
    assert_close(gradients(expert), [torch.zeros_like(p) for p in expert.parameters()], rtol=0, atol=0)
    assert preconditioner.non_finite_layers() == []
    assert all(grad.isfinite().all() for grad in gradients(model))


def test_eva_takes_no_statistics_from_examples_beyond_its_first():
    """A layer used only in the second micro-batch, whose examples are all beyond the first sixteen."""
    model = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)]).double()
    preconditioner = Preconditioner(model, Eva(kl_clip=None), accumulation_steps=2)
    model[0](inputs(16)).square().mean().backward()
    model[1](inputs(16)).square().mean().backward()
    before = gradients(model[1])
    preconditioner.step()
    assert_close(gradients(model[1]), before, rtol=0, atol=0)


def test_kid_equals_its_definition_where_the_kernel_has_full_rank():
    """Truth: the unpivoted QR of HyLo's KID."""
    rows = torch.randn(7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix, rank, damping = rows @ rows.T, 3, 0.1
    q, r = torch.linalg.qr(matrix, mode="complete")
    p = torch.cat([torch.eye(3).double(), torch.linalg.solve(r[:3, :3], r[:3, 3:])], 1)
    e = torch.cat([torch.zeros(7, 3).double(), q[:, 3:] @ r[3:, 3:]], 1)
    truth = (p @ torch.linalg.solve(e + damping * torch.eye(7).double(), p.T)).inverse()
    assert_close(interpolated_middle(matrix, rank, damping), truth)


def test_kid_of_a_dead_layer_is_damping():
    matrix = torch.zeros(5, 5, dtype=torch.float64)
    assert_close(interpolated_middle(matrix, 2, 0.1), 0.1 * torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("method", ["mkor", "kaisa", "eva", "hylo"])
def test_layers_of_another_optimizer_are_left_alone(method):
    model = network()
    cls = {"mkor": MKOR(), "kaisa": KAISA(), "eva": Eva(), "hylo": HyLo()}[method]
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    Preconditioner(model, cls).attach(optimizer)
    model(inputs()).square().mean().backward()
    before = gradients(model[0])
    optimizer.step()
    assert_close(gradients(model[0]), before, rtol=0, atol=0)


def test_attention_leaves_its_projections_to_the_base_optimizer():
    """MultiheadAttention uses its output projection's weight without calling it."""
    model = nn.TransformerEncoderLayer(4, 2, 8)
    with pytest.warns(UserWarning, match="MultiheadAttention multiplies by its packed weights itself"):
        assert Preconditioner(model, MKOR()).layers == ("linear1", "linear2")


def test_a_parametrized_layer_is_left_out_by_its_own_name():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    with pytest.warns(UserWarning, match="  29 %: 0: its weight is computed from other parameters\n"):
        assert Preconditioner(model, MKOR()).layers == ("1",)


def test_a_copied_optimizer_warns_and_steps_like_its_base():
    optimizer, preconditioner = build("mkor", model := network(), {"lr": 0.1})
    model(inputs()).square().mean().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="attach a new Preconditioner"):
        duplicate = copy.deepcopy(optimizer)
    assert "preconditioner" not in duplicate.state_dict()
    assert_close(
        duplicate.state_dict()["state"][0]["momentum_buffer"], optimizer.state_dict()["state"][0]["momentum_buffer"]
    )
    assert preconditioner is not None
    preconditioner.remove()
    copy.deepcopy(optimizer)  # does not warn: its hook is gone
    assert not {"__deepcopy__", "__reduce_ex__"} & vars(optimizer).keys()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_optimizer_that_was_pickled_warns_when_it_is_loaded_and_steps_like_its_base(protocol):
    optimizer, preconditioner = build("mkor", model := network(), {"lr": 0.1})
    model(inputs()).square().mean().backward()
    optimizer.step()
    kept = pickle.dumps(optimizer, protocol)
    with pytest.warns(UserWarning, match="attach a new Preconditioner"):
        loaded = pickle.loads(kept)
    momenta = [one.state_dict()["state"][0]["momentum_buffer"] for one in (loaded, optimizer)]
    assert_close(momenta[0], momenta[1], rtol=0, atol=0)
    assert "preconditioner" not in loaded.state_dict()
    assert preconditioner is not None
    preconditioner.remove()
    pickle.loads(pickle.dumps(optimizer, protocol))  # does not warn: it has no hooks


@pytest.mark.filterwarnings("ignore:A copy of a model")
def test_a_model_under_mkor_h_can_be_copied_and_pickled_whole():
    model = network()
    preconditioner = Preconditioner(model, MKORH(inverse_update_period=1))
    model(inputs()).square().mean().backward()
    preconditioner.observe(1.0)
    preconditioner.step()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        twin(inputs()).square().mean().backward()
        assert_close(twin(inputs()), model(inputs()))


def test_the_loss_of_a_skipped_step_is_forgotten():
    model = network()
    preconditioner = Preconditioner(model, MKORH(inverse_update_period=1))
    for losses in ((100.0, 1.0), (1.0,)):  # the first of two belongs to a step that the scaler skipped
        for loss in losses:
            model.zero_grad()
            model(inputs()).square().mean().backward()
            preconditioner.observe(loss)
        preconditioner.step()
    assert preconditioner.state_dict()["losses"]["history"] == [(1, 1.0), (1, 1.0)]


def test_ground_truth_options_are_accepted():
    """float64 factors, a stabilizer that never acts, moments without a running average."""
    state = MKOR(factor_dtype=torch.float64, stabilizer_threshold=float("inf"))
    assert Preconditioner(network().float(), state).memory_by_tensor()["left"] == 8 * (25 + 9)
    assert KAISA(factor_decay=0.0).factor_decay == Eva(factor_decay=0.0).factor_decay == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MKOR(stabilizer_blend="x"), "stabilizer_blend='x' must be a number"),
        (lambda: KAISA(grad_worker_fraction="x"), "grad_worker_fraction='x' must be a number"),
        (lambda: HyLo(sample_fraction="x"), "sample_fraction='x' must be a number"),
        (lambda: MKORH(knee_beta="x"), "knee_beta='x' must be a number"),
        (lambda: Preconditioner(network(), MKOR(), lr="0.1"), "lr='0.1' must be a number or None"),
        (lambda: Preconditioner(network(), MKOR(), grad_scale="x"), "grad_scale='x' must be a number"),
        (lambda: Preconditioner(network(), MKOR(), accumulation_steps=0), "accumulation_steps=0 must be at least 1"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_method_class_in_place_of_an_instance_is_refused():
    with pytest.raises(TypeError, match=r"is not an instance of Method; pass one, such as MKOR\(\)"):
        Preconditioner(network(), MKOR)


def test_an_optimizer_state_without_the_preconditioners_restarts_it():
    """Step 0 of the new start updates the factors, which step 1 of the old one would not have done."""
    optimizer, preconditioner = build("mkor", model := network(), {"lr": 0.1, "momentum": 0.0})
    model(inputs()).square().mean().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="starts anew"):
        optimizer.load_state_dict(torch.optim.SGD(network().parameters(), lr=0.1).state_dict())
    assert preconditioner is not None
    state = preconditioner.state_dict()
    assert state["step"] == 0
    assert all(layer["updates"] == 0 for layer in state["layers"].values())
    optimizer.zero_grad()
    model(inputs()).square().mean().backward()
    optimizer.step()
    assert preconditioner.state_dict()["layers"]["0"]["updates"] == 1


def test_a_bias_that_is_frozen_later_has_a_zero_column():
    model = network()
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    for _ in range(2):
        model.zero_grad()
        model(inputs()).square().mean().backward()
        before = model[0].weight.grad.clone()
        preconditioner.step()
        assert not torch.equal(model[0].weight.grad, before)
        model[0].bias.requires_grad_(False)
    assert model[0].bias.grad is None


def test_kl_clip_weighs_weight_and_bias_by_their_own_rates():
    """Truth: the sum over all entries of V * D * lr^2, by hand."""
    model = nn.Sequential(nn.Linear(4, 3)).double()
    optimizer = torch.optim.SGD([{"params": [model[0].weight]}, {"params": [model[0].bias], "lr": 0.1}], lr=1.0)
    preconditioner = Preconditioner(model, KAISA(damping=1e6, kl_clip=1e-12)).attach(optimizer)
    model(inputs()).square().mean().backward()
    weight, bias = gradients(model)
    preconditioner.step()
    # So much damping leaves the direction alone: V = D / damping.
    total = ((weight / 1e6 * weight).sum() + (bias / 1e6 * bias).sum() * 0.1**2).item()
    nu = (1e-12 / total) ** 0.5
    assert nu < 1
    assert_close(gradients(model), [nu * weight / 1e6, nu * bias / 1e6], rtol=1e-5, atol=0)


def test_kl_clip_takes_the_rate_of_a_weight_without_a_bias_from_its_group():
    """Truth: the same rate passed to a preconditioner that is not attached."""
    results = []
    for attached in (True, False):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False)).double()
        nn.init.constant_(model[0].weight, 0.1)
        nn.init.zeros_(model[0].bias)
        nn.init.constant_(model[1].weight, 0.2)
        preconditioner = Preconditioner(model, KAISA(kl_clip=1e-9), lr=None if attached else 0.25)
        if attached:
            preconditioner.attach(torch.optim.SGD(model.parameters(), lr=0.25))
        model(inputs()).square().mean().backward()
        preconditioner.step()
        results.append(gradients(model))
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_eva_counts_examples_correctly_under_reentrant_checkpointing():
    results = []
    for checkpointed in (False, True):
        model = network()
        preconditioner = Preconditioner(model, Eva(kl_clip=None), accumulation_steps=2)
        for part in inputs(24).split(12):
            part.requires_grad_()
            output = checkpoint(model, part, use_reentrant=True) if checkpointed else model(part)
            (output.square().mean() / 2).backward()
        preconditioner.step()
        results.append(gradients(model))
    assert_close(results[0], results[1])


def test_an_input_changed_in_place_under_autocast_is_captured_as_it_was():
    """Autograd keeps the cast copy, so the change is legal."""
    results: list[Any] = []
    for change in (False, True):
        model = network().float()
        preconditioner = Preconditioner(model, KAISA(kl_clip=None))
        rows = inputs().float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(rows)
        if change:
            rows.zero_()
        output.float().square().mean().backward()
        preconditioner.step()
        results.append(preconditioner.state_dict()["layers"]["0"]["right"])
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_a_step_without_a_backward_pass_does_not_count():
    optimizer, preconditioner = build("kaisa", network(), {"lr": 0.1})
    optimizer.step()
    assert preconditioner is not None
    assert preconditioner.state_dict()["step"] == 0


def test_a_loaded_state_is_a_copy():
    one, other = (Preconditioner(model := network(), MKOR()) for _ in range(2))
    model(inputs()).square().mean().backward()
    other.step()
    saved = other.state_dict()
    one.load_state_dict(saved)
    one.state_dict()["layers"]["0"]["left"].zero_()
    assert saved["layers"]["0"]["left"].any()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_what_is_removed_from_a_state_dict_stays_in_the_preconditioner(method):
    preconditioner = Preconditioner(model := network(), method)
    model(inputs()).square().mean().backward()
    preconditioner.step()
    preconditioner.state_dict()["layers"]["0"].clear()
    assert preconditioner.state_dict()["layers"]["0"].keys() == preconditioner.state_dict()["layers"]["2"].keys()


@pytest.mark.parametrize("shape", [(3,), (3, 3, 1)], ids=str)
def test_a_saved_tensor_of_another_number_of_dimensions_is_refused(shape):
    state = {"one": {**MKOR().initial_state(LayerShape(2, 3), torch.float32, torch.device("cpu"))}}
    states = States({"one": Layer("one", nn.Linear(2, 2))}, MKOR())
    states.load(state)
    state["one"]["right"] = torch.ones(shape)
    with pytest.raises(ValueError, match=re.escape(f"Tensor 'right' of layer 'one' has shape {shape}, not (3, 3)")):
        states.load(state)


def test_an_optimizer_takes_one_preconditioner():
    optimizer, _ = build("mkor", model := network(), {"lr": 0.1})
    with pytest.raises(RuntimeError, match="would precondition twice"):
        Preconditioner(model, MKOR()).attach(optimizer)
