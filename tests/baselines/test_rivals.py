"""Optimizers from libraries. Truth: dense linear algebra, torch's optimizers, limits in which one equals another."""

from __future__ import annotations

import copy
import io
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.testing import assert_close

from baselines import LayeredModel, build, build_optimizer
from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

# isort: split
from pytorch_optimizer import SOAP, Muon, ScalableShampoo
from pytorch_optimizer.base.exception import NoSparseGradientError
from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting
from singd.optim.optimizer import SINGD
from timm.optim import Lamb

from baselines.parts.combined import Combined
from mkor_core import MKOR, Preconditioner
from mkor_core.ranks import comm
from mkor_core.saving.entries import saved_counters
from tests.support.matrices import random
from workflow.bench.probes._counting import Counting


def rotation(dimension: int, seed: int) -> Tensor:
    return torch.linalg.qr(random(dimension, dimension, seed=seed))[0]


def steps(optimizer: Optimizer, weight: nn.Parameter, grads: list[Tensor]) -> Tensor:
    """Return the change of the weight after one step per gradient."""
    before = weight.detach().clone()
    for grad in grads:
        weight.grad = grad.to(weight.dtype, copy=True)
        optimizer.step()
    return weight.detach() - before


def linear(d_out: int, d_in: int, name: str, **options: Any) -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    layer = nn.Linear(d_in, d_out, bias=False).double()
    return layer, build(name, layer, {"lr": 1.0, **options})[0]


class Tied(nn.Module):
    """A model with a tied embedding, an untied head, a norm, a convolution and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.norm, self.hidden, self.unused = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.convolution = nn.Conv2d(1, 2, 3, padding=1)
        self.decoder, self.head = nn.Linear(4, 7), nn.Linear(4, 3)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.hidden(self.norm(self.embedding(tokens)))
        hidden = hidden + self.convolution(hidden[:, None]).mean(1)
        return torch.cat([self.decoder(hidden), self.head(hidden)], -1)


def names_of(model: nn.Module, group: dict[str, Any]) -> set[str]:
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    return {by_id[id(parameter)] for parameter in group["params"]}


DIFFERENT: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, {"momentum": 0.9}),
    "adamw": (AdamW, {}),
    "lamb": (Lamb, {"bias_correction": False}),
    "shampoo": (
        ScalableShampoo,
        {"betas": (0.9, 0.95), "decoupled_weight_decay": True}
        | {"start_preconditioning_step": 1, "preconditioning_compute_steps": 10, "shape_interpretation": False},
    ),
    "soap": (SOAP, {"shampoo_beta": 0.95}),
    "muon": (Muon, {"weight_decay": 0.01, "use_adjusted_lr": True}),
}
"""The library's class, and its options for which the harness has another default; SOAP's factors decay as beta2."""


def settings_in(values: dict[str, Any]) -> dict[str, Any]:
    """Return the public entries that are numbers, texts, tuples or None."""
    kinds = (int, float, str, tuple, type(None))
    return {key: value for key, value in values.items() if isinstance(value, kinds) and not key.startswith("_")}


@pytest.mark.parametrize("name", DIFFERENT)
def test_defaults_are_those_of_the_library(name):
    """Of a matrix's group and of the optimizer itself, where the library keeps what is the same for all groups."""
    library, different = DIFFERENT[name]
    weight = nn.Linear(3, 2, bias=False).weight
    given = [{"params": [weight], "use_muon": True}] if name == "muon" else [weight]
    theirs = library(given, **{"lr": 1.0, **different})
    ours, _ = build(name, nn.Linear(3, 2, bias=False), {"lr": 1.0})
    assert isinstance(ours, library)
    for mine, other in ((ours.param_groups[0], theirs.param_groups[0]), (vars(ours), vars(theirs))):
        assert settings_in(mine) == settings_in(other)


def test_defaults_of_the_parameters_under_adamw_are_those_of_the_library():
    """Muon's own AdamW, and torch's beside SINGD; a norm's weight is not decayed."""
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    vector = nn.Parameter(torch.ones(3))
    expected = {
        "muon": Muon([{"params": [vector], "use_muon": False}], adamw_lr=0.1),
        "singd": AdamW([vector], weight_decay=0.0),
    }
    for name, theirs in expected.items():
        rest = build(name, model, {"lr": 0.1})[0].param_groups[-1]
        group = theirs.param_groups[0]
        assert {key: rest[key] for key in group if key != "params"} == {
            key: value for key, value in group.items() if key != "params"
        }


def test_singds_defaults_are_those_of_the_package_except_for_the_normalized_rate():
    model = nn.Linear(3, 2)
    ours, theirs = build("singd", model, {"lr": 0.001})[0].param_groups[0], SINGD(model).param_groups[0]
    assert {key: value for key, value in ours.items() if key != "params"} == {
        **{key: value for key, value in theirs.items() if key != "params"},
        "normalize_lr_cov": True,
    }


@pytest.mark.parametrize("name", ["shampoo", "soap", "muon"])
def test_a_rotation_of_inputs_and_outputs_rotates_the_update(name):
    """``W -> U W Q^T`` rotates gradients and updates alike if factors have full rank. Adam's error is about 0.5."""
    chosen = {"shampoo": {"inverse_update_period": 1}, "soap": {"update_period": 1}}.get(name, {})
    # Muon works in bfloat16, SOAP's QR in float32, and Shampoo's iteration stops at 1e-3.
    tolerance = {"muon": 0.1, "soap": 1e-5, "shampoo": 1e-3}[name]
    left, right = rotation(6, 1), rotation(6, 2)
    grads = [random(6, 6, seed=seed) for seed in range(10, 15)]
    changes = []
    for turned in (False, True):
        layer, optimizer = linear(6, 6, name, weight_decay=0.0, **chosen)
        changes.append(steps(optimizer, layer.weight, [left @ grad @ right.T if turned else grad for grad in grads]))
    error = (left.T @ changes[1] @ right - changes[0]).norm() / changes[0].norm()
    assert error < tolerance


@pytest.mark.parametrize(("block_size", "graft"), [(512, "none"), (3, "none"), (512, "sgd")])
def test_shampoos_step_is_the_gradient_between_inverse_fourth_roots(block_size, graft):
    """Dense eigendecompositions, block by block; Newton's iteration stops at 1e-3."""
    decay, damping, grad = 0.9, 1e-6, random(6, 5)
    options = {"factor_decay": decay, "damping": damping, "block_size": block_size, "graft": graft}
    layer, optimizer = linear(6, 5, "shampoo", momentum=0.0, inverse_update_period=1, **options)

    def inverse_fourth_root(moment: Tensor) -> Tensor:
        factor = decay * damping * torch.eye(len(moment)) + (1 - decay) * moment
        values, vectors = torch.linalg.eigh(factor)
        return vectors @ torch.diag((values + damping * values[-1]) ** -0.25) @ vectors.T

    truth = torch.zeros_like(grad)
    for rows in torch.arange(6).split(block_size):
        for columns in torch.arange(5).split(block_size):
            block = grad[rows][:, columns]
            value = inverse_fourth_root(block @ block.T) @ block @ inverse_fourth_root(block.T @ block)
            truth[rows[:, None], columns] = value
    if graft == "sgd":
        truth *= grad.norm() / truth.norm()
    assert_close(-steps(optimizer, layer.weight, [grad]), truth, rtol=1e-3, atol=1e-3)


def test_shampoos_roots_do_not_depend_on_the_global_random_numbers():
    """Truth: the library's, bit by bit, with the global seed 0; its power iteration starts from random numbers."""
    # Singular values so close to each other that the iteration does not converge.
    grad = rotation(40, 1) * torch.linspace(1, 1.05, 40) @ rotation(40, 2)
    changes = []
    for name, seed in (("library", 0), ("ours", 0), ("ours", 5)):
        layer, optimizer = linear(40, 40, "shampoo", inverse_update_period=1, graft="none")
        if name == "library":
            options = {"betas": (0.9, 0.95), "decoupled_weight_decay": True, "graft_type": LayerWiseGrafting.NONE}
            periods = {"start_preconditioning_step": 1, "preconditioning_compute_steps": 1}
            optimizer = ScalableShampoo([layer.weight], lr=1.0, shape_interpretation=False, **options, **periods)
        torch.manual_seed(seed)
        expected = torch.rand(3)
        torch.manual_seed(seed)
        changes.append(steps(optimizer, layer.weight, [grad]))
        if name == "ours":  # leaves them alone
            assert_close(torch.rand(3), expected, rtol=0, atol=0)
    assert_close(changes[1:], [changes[0]] * 2, rtol=0, atol=0)


def test_shampoos_roots_are_i_until_their_first_update():
    grads = [random(6, 5, seed=seed) for seed in range(2)]
    layer, optimizer = linear(6, 5, "shampoo", inverse_update_period=2, momentum=0.0, graft="none")
    assert_close(steps(optimizer, layer.weight, grads[:1]), -grads[0])
    assert not torch.allclose(steps(optimizer, layer.weight, grads[1:]), -grads[1])


@pytest.mark.parametrize("d_out", [6, 5])
def test_shampoos_state_is_not_shared_by_an_optimizer_that_loads_it(d_out):
    """The library stacks the factors of equal sides and lists others."""
    grads = [random(d_out, 6, seed=seed) for seed in range(3)]
    layer, optimizer = linear(d_out, 6, "shampoo", inverse_update_period=1)
    steps(optimizer, layer.weight, grads[:1])
    state = optimizer.state_dict()
    other_layer, other = linear(d_out, 6, "shampoo", inverse_update_period=1)
    other.load_state_dict(copy.copy(state))
    before = copy.deepcopy(state["state"][0]["pre_conditioner"])
    steps(other, other_layer.weight, grads[1:])
    assert_close(optimizer.state_dict()["state"][0]["pre_conditioner"], before, rtol=0, atol=0)


def test_shampoo_refuses_sparse_gradients():
    embedding = nn.Embedding(4, 3, sparse=True)
    optimizer, _ = build("shampoo", embedding, {"lr": 0.1})
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(NoSparseGradientError, match="Shampoo"):
        optimizer.step()


def test_soap_without_a_basis_is_adam_after_a_first_look():
    """With max_dimension below every axis; truth: torch's AdamW from the second gradient on."""
    grads = [random(6, 5, seed=seed) for seed in range(6)]
    betas = {"beta1": 0.9, "beta2": 0.97, "weight_decay": 0.1}
    soap, by_soap = linear(6, 5, "soap", max_dimension=4, **betas)
    adamw, by_adamw = linear(6, 5, "adamw", **betas)
    first = steps(by_soap, soap.weight, grads[:1])
    assert not first.any()
    for group in (*by_soap.param_groups, *by_adamw.param_groups):
        group["lr"], group["eps"] = 1e-3, 0.0
    change = steps(by_soap, soap.weight, grads[1:]), steps(by_adamw, adamw.weight, grads[1:])
    # SOAP decays the weight after its step, AdamW before: a difference of lr^2.
    assert_close(*change, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("d_in", "repeats"), [(6, True), (12, False)])
def test_soap_repeats_itself_where_its_first_factors_are_regular(d_in, repeats):
    """Gradients that differ by rounding give other weights only if the first factors are singular (soap.py's limit)."""
    changes = []
    for rounding in (0.0, 1e-15):
        layer, optimizer = linear(6, d_in, "soap", update_period=1, weight_decay=0.0)
        grads = [random(6, d_in, seed=seed) * (1 + rounding * random(6, d_in, seed=-seed)) for seed in range(1, 6)]
        changes.append(steps(optimizer, layer.weight, grads))
    assert ((changes[1] - changes[0]).norm() < 1e-5 * changes[0].norm()) == repeats


def test_muon_takes_the_weights_of_layers_and_leaves_the_rest_to_adamw():
    model = Tied()
    optimizer, _ = build("muon", model, {"lr": 0.1}, exclude="^head$")
    matrices, *rest = optimizer.param_groups
    assert names_of(model, matrices) == {"hidden.weight", "unused.weight", "convolution.weight"}
    assert set.union(*(names_of(model, group) for group in rest)) == {
        name for name, _ in model.named_parameters()
    } - names_of(model, matrices)
    assert [group["use_muon"] for group in rest] == [False, False]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 0.1]
    apart, _ = build("muon", model, {"lr": 0.1, "adamw_lr": 0.3})
    assert [group["lr"] for group in apart.param_groups] == [0.1, 0.3, 0.3]


def test_singd_takes_whole_layers_and_leaves_the_rest_to_adamw():
    model = Tied()
    model.head.bias.requires_grad_(False)
    optimizer, _ = build("singd", model, {"lr": 0.1, "adamw_lr": 0.3})
    layers, *rest = optimizer.param_groups
    taken = {f"{layer}.{part}" for layer in ("hidden", "unused", "convolution") for part in ("weight", "bias")}
    assert names_of(model, layers) == taken
    assert "head.weight" in names_of(model, rest[0])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.3, 0.3]


def test_layers_are_those_that_a_preconditioner_works_on():
    model = Tied()
    layers = LayeredModel.of(model, "^head$").layers
    assert tuple(layers) == Preconditioner(model, MKOR(), exclude="^head$").layers
    assert tuple(LayeredModel.of(DataParallel(model), "head").layers) == tuple(layers)
    assert LayeredModel.of(model).accumulation_steps == 1


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)


def train(model: nn.Module, optimizer: Optimizer, number: int, start: int = 0) -> None:
    dtype = next(model.parameters()).dtype
    for step in range(start, start + number):
        optimizer.zero_grad()
        (
            model(random(16, 5, seed=step).to(dtype)) - random(16, 3, seed=100 + step).to(dtype)
        ).square().mean().backward()
        optimizer.step()


def test_singd_with_factors_that_stand_still_is_sgd():
    """K = C = I."""
    one, other = network(), network()
    chosen = {"lr": 0.1, "momentum": 0.8}
    train(one, build("singd", one, {**chosen, "factor_lr": 1e-300})[0], 5)
    train(other, build("sgd", other, chosen)[0], 5)
    assert_close([*one.parameters()], [*other.parameters()], rtol=1e-12, atol=0)


def test_kfac_like_singd_tracks_the_inverse_of_kfacs_factor():
    """``K K^T`` against ``(A + damping I)^-1``, A the running average of ``X^T X / n``; the error is O(factor_lr)."""
    damping, errors = 0.1, []
    for factor_lr in (0.05, 0.005):
        model = network()
        optimizer, _ = build(
            "singd",
            model,
            {"lr": 1e-12, "kfac_like": True, "factor_lr": factor_lr, "update_period": 1, "damping": damping}
            | {"normalize_factor_lr": False},
        )
        average = (1 - damping) * torch.eye(6)  # K starts at I
        for step in range(round(5 / factor_lr)):
            train(model, optimizer, 1, step)
            rows = torch.cat([random(16, 5, seed=step), torch.ones(16, 1)], 1)
            average = (1 - factor_lr) * average + factor_lr * rows.T @ rows / 16
        factor = optimizer.state_dict()["singd"]["Ks"]["0"]["_mat"]
        truth = torch.linalg.inv(average + damping * torch.eye(6))
        errors.append(float((factor @ factor.T - truth).norm() / truth.norm()))
    assert errors[0] < 0.05
    assert errors[1] < 0.3 * errors[0]


STRUCTURES = ["block30diagonal", "dense", "diagonal", "hierarchical15_15", "triltoeplitz", "triutoeplitz"]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_singds_factors_of_any_structure_survive_a_checkpoint(structure):
    chosen = {"lr": 0.05, "structure": structure, "update_period": 2}
    whole, halted, resumed = (network(torch.float32) for _ in range(3))
    train(whole, build("singd", whole, chosen)[0], 7)
    before, _ = build("singd", halted, chosen)
    train(halted, before, 4)
    file = io.BytesIO()
    torch.save([halted.state_dict(), before.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    resumed.load_state_dict(weights)
    after, _ = build("singd", resumed, chosen)
    after.load_state_dict(state)
    after.load_state_dict(state)  # loading twice is allowed
    train(resumed, after, 3, start=4)
    assert_close([*resumed.parameters()], [*whole.parameters()], rtol=0, atol=0)


def test_singd_takes_up_a_layer_that_was_unused_and_passes_over_one_that_is():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizer, _ = build("singd", model, {"lr": 0.1, "update_period": 1})
    weights = [[layer.weight.detach().clone() for layer in model]]
    for used in (0, 1):
        optimizer.zero_grad()
        model[used](torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
        weights.append([layer.weight.detach().clone() for layer in model])
    moved = [[not torch.equal(a, b) for a, b in zip(*pair, strict=True)] for pair in pairwise(weights)]
    assert moved == [[True, False], [False, True]]


def test_singd_reads_back_no_more_numbers_than_the_package():
    """Truth: the package's own class on the same layers, which compares norms of each with 1."""
    waits = []
    for make in (
        lambda model: build("singd", model, {"lr": 0.1, "update_period": 1})[0],
        lambda model: SINGD(model, lr=0.1, T=1, normalize_lr_cov=True),
    ):
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
        optimizer = make(model)
        model(torch.ones(8, 4)).square().mean().backward()
        with Counting(torch.device("cpu")) as counts:
            optimizer.step()
        waits.append(counts.by_operator["wait: _local_scalar_dense"])
    assert waits[0] == waits[1]


def test_singd_passes_over_a_layer_with_a_parameter_that_has_no_gradient():
    model = network()
    optimizer, _ = build("singd", model, {"lr": 0.1, "update_period": 1})
    model(random(4, 5)).square().mean().backward()
    model[0].bias.grad = None
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert moved == [False, False, True, True]


def test_singd_leaves_out_statistics_of_which_one_entry_has_overflowed():
    """The square of one input does, in one factor; the gradients are repaired before the step."""
    model = nn.Linear(5, 4).double()
    optimizer, _ = build("singd", model, {"lr": 0.1, "update_period": 1})
    inputs = random(4, 5)
    inputs[0, 0] = 1e200
    model(inputs).mean().backward()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    (factor,) = optimizer.state_dict()["singd"]["Ks"][""].values()
    assert_close(factor, torch.eye(6).double(), rtol=0, atol=0)


def test_singd_has_no_momentum_of_factors_that_are_like_kfacs(recwarn):
    """The package would warn, and set it to 0."""
    build("singd", network(), {"lr": 0.1, "kfac_like": True, "factor_momentum": 0.5})
    assert [str(warning.message) for warning in recwarn if "alpha1" in str(warning.message)] == []


@pytest.mark.parametrize(
    ("name", "given"), [("singd", {"update_period": 1, "kfac_like": True}), ("eva", {"kl_clip": None})]
)
def test_a_step_is_one_backward_pass_of_an_unscaled_loss_by_default(name, given):
    chosen = {"lr": 0.01, **given}
    models = [network() for _ in range(3)]
    optimizers = [
        build(name, models[0], chosen)[0],
        build(name, models[1], chosen, accumulation_steps=1, grad_scale=1.0)[0],
        build_optimizer(name, models[2], chosen) if name == "singd" else build(name, models[2], chosen)[0],
    ]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 4)
    assert_close([*models[0].parameters()], [*models[1].parameters()], rtol=0, atol=0)
    assert_close([*models[2].parameters()], [*models[1].parameters()], rtol=0, atol=0)


def test_the_number_of_micro_batches_is_at_least_1():
    with pytest.raises(ValueError, match="accumulation_steps=0 must be at least 1"):
        build("muon", network(), {"lr": 0.1}, accumulation_steps=0)


def test_what_singd_leaves_out_is_refused_with_the_reason(monkeypatch):
    model = network()
    with monkeypatch.context() as patch:
        patch.setattr(comm, "world_size", lambda: 2)
        with pytest.raises(ValueError, match="singd cannot train data-parallel"):
            build("singd", model, {"lr": 0.1})
    with pytest.raises(ValueError, match="singd cannot train data-parallel: the package refuses the wrapper"):
        build("singd", DataParallel(model), {"lr": 0.1})
    optimizer, _ = build("singd", model, {"lr": 0.1})
    with pytest.raises(ValueError, match="This state dict has no entry 'singd'"):
        optimizer.load_state_dict(build("sgd", model, {"lr": 0.1})[0].state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(random(4, 5)).mean()).backward()
    with pytest.raises(RuntimeError, match="singd does not take a GradScaler"):
        scaler.step(optimizer)
    for wide in (model, nn.Sequential(nn.Linear(3, 3).double(), nn.Linear(3, 3))):
        with pytest.raises(ValueError, match="structure='triltoeplitz' has no float64 arithmetic in singd"):
            build("singd", wide, {"lr": 0.1, "structure": "triltoeplitz"})
    train(model, build("singd", model, {"lr": 0.1, "structure": "diagonal"})[0], 1)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="singd has no layer to train"):
        build("singd", model, {"lr": 0.1})


def test_a_combined_optimizer_is_its_members_side_by_side():
    """With a schedule and a checkpoint. Truth: two optimizers with a schedule each."""

    def make(model: nn.Sequential, together: bool) -> list[Any]:
        members = [SGD(model[0].parameters(), lr=0.1, momentum=0.9), AdamW(model[2].parameters(), lr=0.01)]
        optimizers: list[Optimizer] = [Combined(*members)] if together else [*members]
        return [*optimizers, *(StepLR(optimizer, 2, 0.5) for optimizer in optimizers)]

    def go(model: nn.Module, parts: list[Any], first: int) -> None:
        for step in range(first, first + 4):
            model.zero_grad()
            (model(random(16, 5, seed=step)) - 1).square().mean().backward()
            for part in parts:
                part.step()

    apart, together, resumed = network(), network(), network()
    two, one, again = make(apart, together=False), make(together, together=True), make(resumed, together=True)
    go(apart, two, first=0)
    go(apart, two, first=4)
    go(together, one, first=0)
    resumed.load_state_dict(together.state_dict())
    for old, new in zip(one, again, strict=True):
        new.load_state_dict(old.state_dict())
    go(resumed, again, first=4)
    assert_close([*resumed.parameters()], [*apart.parameters()], rtol=0, atol=0)
    with pytest.raises(NotImplementedError, match="no further parameter groups"):
        again[0].add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@pytest.mark.parametrize("base", ["muon", "singd", "shampoo", "soap"])
def test_a_rival_can_be_the_base_of_a_second_order_method(base):
    """The gradient is preconditioned once a step, and the base's state dict contains the preconditioner's state."""
    model = network()
    optimizer, preconditioner = build("mkor", model, {"base": base, "lr": 0.01, "inverse_update_period": 1})
    assert preconditioner is not None
    train(model, optimizer, 3)
    state = optimizer.state_dict()
    counters = saved_counters(state)
    assert counters is not None
    assert counters["step"] == 3
    clone, other = build("mkor", network(), {"base": base, "lr": 0.01, "inverse_update_period": 1})
    clone.load_state_dict(state)
    assert other is not None
    assert other.state_dict()["step"] == 3
