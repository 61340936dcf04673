"""The workloads with Kronecker-product weights. Truth: `torch.kron` and autograd, in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA, available, build
from mkor_core import Preconditioner
from tests.support import reference
from tests.support.hyperparameters import options
from workflow.bench import workloads
from workflow.bench.support.config import ConfigError
from workflow.bench.workloads.bert_krona import AdaptedLinear
from workflow.bench.workloads.kronecker_rnn import KroneckerLinear

BERT = {"layers": 1, "hidden_size": 16, "heads": 2, "vocabulary_size": 256, "sequence_length": 16, "batch_size": 8}
KRONA = {**BERT, "outer_size": 4, "dataset": "library"}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exactly(actual: Any, expected: Any) -> None:
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def kron(layer: KroneckerLinear) -> Tensor:
    return torch.kron(layer.outer.weight, layer.inner.weight)


# The linear map


@pytest.mark.parametrize(("outer", "inner"), [((3, 2), (4, 5)), ((1, 4), (3, 1)), ((2, 2), (3, 3))])
def test_two_linear_layers_are_a_kronecker_product(outer, inner):
    """Its outputs, and the gradients of both factors and of the input."""
    layer = KroneckerLinear(outer, inner).double()
    inputs = random(6, 7, outer[1] * inner[1]).requires_grad_()
    weights = random(6, 7, outer[0] * inner[0], seed=1)
    parts = (inputs, layer.outer.weight, layer.inner.weight)
    results = [
        (output, torch.autograd.grad((output.sin() * weights).sum(), parts))
        for output in (layer(inputs), inputs @ kron(layer).T)
    ]
    exactly(*results)


# Kronecker adapters


@pytest.fixture(scope="module")
def krona():
    return workloads.create("bert_krona", **KRONA)


def test_an_adapted_layer_has_the_sum_of_both_weights():
    linear = nn.Linear(12, 12).double()
    layer = AdaptedLinear(linear, (3, 4), 1.5).double()
    inputs = random(5, 12)
    exactly(layer(inputs), linear(inputs))
    nn.init.normal_(layer.adapter.outer.weight)
    weight = linear.weight + 1.5 * torch.kron(layer.adapter.outer.weight, layer.adapter.inner.weight)
    exactly(layer(inputs), inputs @ weight.T + linear.bias)


def test_a_model_with_adapters_starts_as_the_pre_trained_one(krona):
    """Truth: the workload without adapters, whose encoder has the same names."""
    plain = workloads.create("bert_classification", **BERT, dataset="library")
    pretrained = workloads.create("bert_pretraining", **BERT, validation_pairs=16).model(5).state_dict()
    models = [plain.model(1), krona.model(1)]
    for workload, model in zip((plain, krona), models, strict=True):
        workload.load_initial_weights(model, pretrained)
    batch = next(plain.batches(0))
    losses = [workload.loss(model, batch) for workload, model in zip((plain, krona), models, strict=True)]
    models[1].classifier.load_state_dict(models[0].classifier.state_dict())
    assert_close(krona.loss(models[1], batch), losses[0])
    assert set(models[1].state_dict()) - set(models[0].state_dict()) == {
        f"bert.encoder.layer.0.attention.self.{name}.adapter.{side}.weight"
        for name in ("query", "value")
        for side in ("outer", "inner")
    }


def test_weights_of_another_size_are_refused_by_name(krona):
    other = workloads.create("bert_krona", **KRONA | {"hidden_size": 32}).model(0).state_dict()
    with pytest.raises(ValueError, match=r"bert\.embeddings\.word_embeddings\.weight in the shape \(256, 32\)"):
        krona.load_initial_weights(krona.model(0), other)
    with pytest.raises(ValueError, match=r"lack bert\.embeddings\.word_embeddings\.weight"):
        krona.load_initial_weights(krona.model(0), {})


@pytest.mark.parametrize("name", ["adamw", "muon", "mkor", "kaisa", "dp_kfac"])
def test_only_adapters_and_the_classifier_are_trained_and_hooked(krona, name):
    model = krona.model(0).double()  # in which the smallest updates are not lost
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer, preconditioner = build(name, model, options(name), exclude=krona.exclude)
    if preconditioner is not None:
        hooked = {f"{layer}.weight" for layer in preconditioner.layers}
        assert hooked == {key for key in before if ".adapter." in key or key == "classifier.weight"}
    for _, batch in zip(range(3), krona.batches(0), strict=False):
        optimizer.zero_grad()
        krona.loss(model, batch).backward()
        optimizer.step()
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {key for key in before if ".adapter." in key or key.startswith("classifier.")}


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in available()),
    ("mkor", {"gradient_norm": 3.0}),
    ("mkor", {"update_rule": "released"}),
    ("mkor", {"update_rule": "published"}),
    ("mkor", {"window": 3}),
    ("mkor", {"rank": 2}),
    ("mkor", {"base": "lamb", "rescale": False}),
    ("kaisa", {"compute_method": "inverse"}),
    ("kaisa", {"kl_clip": None}),
    ("hylo", {"variant": "KID"}),
    ("kld_wrm", {"subproblem": "Q"}),
]


@pytest.mark.parametrize("zero", ["outer", "inner"])
@pytest.mark.parametrize(("name", "changes"), SETTINGS, ids=str)
def test_a_factor_whose_first_gradient_is_zero_does_no_harm(name, changes, zero):
    """One factor starts at zero, so that the other's first gradient and all its gradient rows are exactly 0."""
    torch.manual_seed(0)
    model = KroneckerLinear((3, 3), (4, 4))
    nn.init.zeros_(model.get_submodule(zero).weight)
    other = model.get_submodule("inner" if zero == "outer" else "outer").weight
    start = other.detach().clone()
    chosen = options(name, **changes)
    optimizer, preconditioner = build(name, model, chosen)
    inputs = random(8, 5, 12).float()
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.roll(1, -1)).square().mean()
        loss.backward()
        losses.append(loss.item())
        if preconditioner is not None:
            preconditioner.observe(loss)
        if step == 0:
            assert not other.grad.any()
        optimizer.step()
        assert all(weight.isfinite().all() for weight in model.parameters())
        if step == 0 and preconditioner is not None and chosen.get("base", "sgd") == "sgd":
            assert torch.equal(other, start), "a preconditioned zero is zero"
    assert not torch.equal(other, start)
    assert losses[-1] < losses[0]


# The recurrent network


@pytest.fixture(scope="module")
def rnn():
    sizes = {"hidden_size": 12, "outer_size": 3, "sequence_length": 7, "vocabulary_size": 256, "batch_size": 4}
    return workloads.create("kronecker_rnn", **sizes, validation_windows=32)


def test_the_recurrence_is_that_of_dense_weights(rnn):
    """Logits and the gradients of all parameters."""
    model = rnn.model(0).double()
    nn.init.normal_(model.bias)
    batch = next(rnn.batches(0))

    def dense(ids: Tensor) -> Tensor:
        hidden, states = torch.zeros(len(ids), 12, dtype=torch.float64), []
        for column in ids.T:
            x = model.tokens.weight[column]
            hidden = torch.tanh(x @ kron(model.inputs).T + hidden @ kron(model.recurrent).T + model.bias)
            states.append(hidden)
        return torch.stack(states, 1) @ model.scores.weight.T + model.scores.bias

    parts = list(model.parameters())
    weights = random(4, 7, 256)
    results = [
        (logits, torch.autograd.grad((logits * weights).sum(), parts))
        for logits in (model(batch["input_ids"]), dense(batch["input_ids"]))
    ]
    exactly(*results)


def test_the_recurrent_weight_starts_orthogonal(rnn):
    weight = kron(rnn.model(3).double().recurrent)
    assert_close(weight @ weight.T, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_statistics_of_kfac_are_those_of_all_time_steps(rnn):
    """Truth: dense factors of the rows of every call, which are 7 times as many as those of one step."""
    model = rnn.model(0).double()
    batch = next(rnn.batches(0))

    def loss_of(network: Any) -> Tensor:
        return nn.functional.cross_entropy(network(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
    plain = copy.deepcopy(model)
    for name in ("inputs.outer", "inputs.inner", "recurrent.outer", "recurrent.inner"):
        pairs = calls[name] = []
        keep = lambda _, given, output, pairs=pairs: pairs.append((given[0], output))  # noqa: E731
        plain.get_submodule(name).register_forward_hook(keep)
    loss = loss_of(plain)
    method = KAISA(damping=0.03, factor_decay=0.9, kl_clip=None, factor_update_period=1, inverse_update_period=1)
    preconditioner = Preconditioner(model, method, exclude=rnn.exclude)
    loss_of(model).backward()
    gradients = {name: model.get_submodule(name).weight.grad.clone() for name in calls}
    preconditioner.step()
    for name, pairs in calls.items():
        of_outputs = torch.autograd.grad(loss, [output for _, output in pairs], retain_graph=True)
        x = torch.cat([inputs.detach().flatten(0, -2) for inputs, _ in pairs])
        g = torch.cat([gradient.flatten(0, -2) for gradient in of_outputs])
        assert len(x) == 7 * 4 * (4 if name.endswith("outer") else 3)
        exactly(gradients[name], g.T @ x)
        a, c = (0.9 * torch.eye(side.shape[1]).double() + 0.1 * side.T @ side / len(side) for side in (x, g))
        truth = reference.kfac_solve(c, gradients[name], a, 0.03)
        assert_close(model.get_submodule(name).weight.grad, truth, rtol=1e-9, atol=1e-12)


HOOKED = (
    *("mkor", "eva", "kaisa", "hylo", "adafisher", "cgfac", "dp_kfac", "kld_wrm", "thermo_kfac", "rs_kfac", "b_kfac"),
    *("newton_muon", "mkor_muon", "mac", "smac", "foof"),
)


@pytest.mark.parametrize("name", HOOKED)
def test_a_layer_called_at_every_time_step_is_trained_as_one_called_on_all_of_them(name):
    """HyLo takes all rows, since it draws them in the order of the calls."""
    weights = []
    for at_once in (True, False):
        torch.manual_seed(0)
        layer = nn.Linear(6, 4).double()
        optimizer, preconditioner = build(
            name, layer, options(name, **({"sample_fraction": 1.0} if name == "hylo" else {}))
        )
        inputs = random(8, 5, 6)
        for _ in range(4):
            optimizer.zero_grad()
            outputs = layer(inputs) if at_once else torch.stack([layer(step) for step in inputs.unbind(1)], 1)
            loss = (outputs - inputs[..., :4].roll(1, -1) - 0.3).square().mean()
            loss.backward()
            if preconditioner is not None:
                preconditioner.observe(loss)
            optimizer.step()
        weights.append(layer.weight.detach())
    assert_close(*weights, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "where"), [("bert_krona", "hidden_size=64"), ("kronecker_rnn", "hidden_size=64")])
def test_a_factor_that_does_not_divide_the_width_is_refused_in_one_line(name, where):
    with pytest.raises(ConfigError, match=f"outer_size=7 must divide {where}"):
        workloads.create(name, outer_size=7)
    with pytest.raises(ConfigError, match=f"outer_size=7 must divide {where}"):
        workloads.architecture(name, outer_size=7)
