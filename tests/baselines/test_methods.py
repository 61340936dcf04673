"""The contract that every optimizer file must meet; the files are found by name.

An optimizer that declares a limit skips the tests of that point, with its reason (``pytest -rs`` lists them).
"""

from __future__ import annotations

import gc
import io
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.testing import assert_close
from torch.utils._pytree import tree_map_only

from baselines import (
    CONTRACT,
    available,
    build,
    limits,
    method_class,
    takes_complex_weights,
)
from mkor_core import torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)

# isort: split
from transformers import BertConfig, BertForPreTraining

from mkor_core.ranges import Domain, OneOf
from tests.support.hyperparameters import NEEDS, ONLY_ON_SEVERAL_RANKS, hyperparameters, options
from workflow.bench.plan.hyperparameters import accepted, check_value, read_signatures
from workflow.bench.support.config import ConfigError

SECOND_ORDER = [name for name in available() if method_class(name) is not None]
WITH_ADAMW = ["muon", "singd"]
"""First-order optimizers that train parameters outside their layers with AdamW."""
STEPS = 10


def network(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 6), nn.Linear(6, 2)
    ).to(dtype)


def data(number: int = 16, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(number, 1, 6, 6, generator=generator)
    return inputs.to(dtype), inputs.mean((2, 3)).repeat(1, 2).to(dtype)


def train(
    name: str,
    chosen: dict[str, Any],
    steps: int,
    *,
    dtype: torch.dtype = torch.float32,
    interrupt: int | None = None,
    scaler: torch.amp.GradScaler | None = None,
    by_closure: bool = False,
) -> list[Tensor]:
    """Train with a schedule and return the weights; before step ``interrupt``, save, rebuild and reload everything."""

    def make(model: nn.Module) -> tuple[Any, ...]:
        optimizer, preconditioner = build(name, model, chosen, grad_scale=1.0 if scaler is None else scaler)
        return optimizer, preconditioner, StepLR(optimizer, 2, 0.7)

    model = network(dtype)
    optimizer, preconditioner, scheduler = make(model)
    inputs, targets = data(dtype=dtype)
    for step in range(steps):
        if step == interrupt:
            file = io.BytesIO()
            torch.save([part.state_dict() for part in (model, optimizer, scheduler)], file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            model = network(dtype, seed=7)
            optimizer, preconditioner, scheduler = make(model)
            for part, state in zip((model, optimizer, scheduler), saved, strict=True):
                part.load_state_dict(state)

        def evaluate(model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            (loss if scaler is None else scaler.scale(loss)).backward()
            return loss

        if by_closure:
            assert optimizer.step(closure=evaluate) is not None
        else:
            loss = evaluate()
            if preconditioner is not None:
                preconditioner.observe(loss)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        scheduler.step()
    return [parameter.detach() for parameter in model.parameters()]


@cache
def trained(name: str, key: str | None = None, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return the weights of an uninterrupted training with what a hyperparameter needs to have an effect."""
    return train(name, options(name, **NEEDS.get(key or "", {})), STEPS, dtype=dtype)


def losses_of(
    model: nn.Module, optimizer: Any, preconditioner: Any, loss_of: Callable[[], Tensor], steps: int
) -> list[float]:
    """Train and return the losses; every weight stays finite."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        losses.append(float(loss.detach()))
        if preconditioner is not None:
            preconditioner.observe(loss)
        optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return losses


def able(point: str, names: Iterable[str] = available()) -> list[Any]:
    """Return optimizers as test parameters; those with a limit at this point of the contract are skipped."""
    return [
        pytest.param(name, marks=[pytest.mark.skip(f"{name}: {limits(name)[point]}")] if point in limits(name) else [])
        for name in names
    ]


def tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors(part)


KFAC_CLIP = {"kl_clip": 1e-3, "rows": "global"}
MKOR_PAPER = {
    "update_rule": "sherman_morrison",
    "factor_decay": None,
    "inverse_update_period": 10,
    "rescale": True,
    "stabilizer_threshold": 2.1,  # the paper's code has 2, where rounding would decide
    "stabilizer_blend": 0.8,
    "factor_dtype": torch.float32,
    "window": None,
    "rank": 1,
    "sides": "both",
    "gradient_norm": None,
    "gradient_scale": 1.0,
}
PERIODS = {"factor_decay": 0.95, "factor_update_period": 5, "inverse_update_period": 50}
DEFAULTS = {
    "mac": {"damping": 1.0, "scale": "released", **PERIODS},
    "smac": {"damping": 1.0, "rescale": False, **PERIODS},
    "foof": {"damping": 0.01, "rescale": False, "grad_worker_fraction": 1.0, **PERIODS},
    "eva": {"damping": 0.03, "factor_decay": 0.05, **KFAC_CLIP},
    "hylo": {"variant": "KIS", "sample_fraction": 0.1, "damping": 0.1, "update_period": 10, "kl_clip": None},
    "kaisa": {
        "damping": 1e-3,
        "factor_decay": 0.95,
        "factor_update_period": 10,
        "inverse_update_period": 100,
        "compute_method": "eigen",
        "grad_worker_fraction": 1.0,
        **KFAC_CLIP,
    },
    "mkor": MKOR_PAPER,
    "mkor_h": {**MKOR_PAPER, "knee_beta": 0.1, "warmup_steps": 100},
}
"""Those of the papers or their code, by the names of this project; sources are in the methods' files."""

CASES = [(name, key) for name in available() for key in hyperparameters(name)]


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_methods_defaults_are_those_of_its_paper(name):
    assert {key: known.default for key, known in hyperparameters(name).items()} == DEFAULTS[name]


@pytest.mark.parametrize("name", available())
def test_limits_are_points_of_the_contract_with_a_reason(name):
    assert set(limits(name)) <= set(CONTRACT)
    assert all(len(reason.split()) > 5 for reason in limits(name).values())


@pytest.mark.parametrize(("name", "key"), [case for case in CASES if case[1] not in ONLY_ON_SEVERAL_RANKS])
def test_every_hyperparameter_changes_the_result(name, key):
    chosen, known = options(name, **NEEDS.get(key, {})), hyperparameters(name)[key]
    other_value = known.other_value(key)
    assert chosen.get(key, known.default) != other_value
    one, other = trained(name, key if key in NEEDS else None), train(name, {**chosen, key: other_value}, STEPS)
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def values_to_try(domain: Domain) -> list[Any]:
    """Return values below, at and above every bound of a domain, its choices, and values other than finite numbers."""
    values: list[Any] = [-1, 0, 0.5, 1, 2, 2.0, math.inf, -math.inf, math.nan, 10**400, True, False, None, "bogus", [1]]
    if isinstance(domain.limit, OneOf):
        return [*values, *domain.limit.values]
    bounds = [getattr(domain.limit, side, None) for side in ("above", "at_least", "below", "at_most")]
    for bound in [bound for bound in bounds if bound is not None]:
        values += [bound - 1, bound, bound + 1, float(bound)]
        values += [math.nextafter(bound, -math.inf), math.nextafter(bound, math.inf)]
    return values


@pytest.mark.parametrize(("name", "key"), CASES)
def test_the_plan_and_the_code_accept_the_same_values_and_refuse_others_by_name(name, key):
    """The plan reads annotations from the source file; the code reads them at run time."""
    known, model = accepted(name, None, read_signatures()), nn.Linear(4, 3)

    def is_planned(value: Any) -> bool:
        try:
            check_value(Path("trial.yaml"), (key,), name, known, key, value)
        except ConfigError:
            return False
        return True

    def refusal(value: Any) -> str | None:
        try:
            build(name, model, options(name, **{key: value}))
        except ValueError as refused:
            return str(refused)
        return None

    values = values_to_try(Domain.of(hyperparameters(name)[key].annotation))
    verdicts = [(value, is_planned(value), refusal(value)) for value in values]
    assert [verdict for verdict in verdicts if verdict[1] != (verdict[2] is None)] == []
    assert {verdict[1] for verdict in verdicts} == {True, False}
    for value, _, said in verdicts:
        shown = repr(value) if value in (-1, "bogus") else ""  # others may be written shorter
        assert said is None or re.search(rf"\b{key}={shown}", said)


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_model_of_any_precision_learns(name, dtype):
    """The loss of a linear teacher falls to less than half in 40 steps; float32 is that of the next tests."""
    torch.manual_seed(0)
    model, teacher = nn.Linear(6, 4).to(dtype), nn.Linear(6, 4).to(dtype)
    optimizer, preconditioner = build(name, model, options(name))
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    targets = teacher(inputs).detach()
    losses = losses_of(model, optimizer, preconditioner, lambda: (model(inputs) - targets).square().mean(), 40)
    assert losses[-1] < 0.5 * losses[0]
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize("name", [*SECOND_ORDER, *WITH_ADAMW])
def test_parameters_outside_any_layer_get_the_step_of_the_base_or_of_adamw(name):
    """One step from the same start: BatchNorm's weights move as under plain SGD or torch's AdamW."""
    adamw = {"beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
    plain = ("adamw", {"lr": 0.01, **adamw}) if name in WITH_ADAMW else ("sgd", {"lr": 0.05})
    chosen = {"lr": 0.05, "adamw_lr": 0.01, **adamw} if name in WITH_ADAMW else options(name, lr=0.05)
    models = []
    for method, given in (plain, (name, chosen)):
        models.append(model := network())
        optimizer, _ = build(method, model, given)
        inputs, targets = data()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    base, own = models
    exactly = {} if name in WITH_ADAMW else {"rtol": 0, "atol": 0}
    assert_close([*own[1].parameters()], [*base[1].parameters()], **exactly)
    assert not torch.equal(own[0].weight, base[0].weight)


@pytest.mark.parametrize("name", available())
def test_linear_and_conv2d_layers_learn(name):
    """The loss on a batch falls to less than half in 40 steps, and every weight has moved."""
    model = network()
    optimizer, preconditioner = build(name, model, options(name))
    inputs, targets = data()
    losses = losses_of(model, optimizer, preconditioner, lambda: (model(inputs) - targets).square().mean(), 40)
    assert losses[-1] < 0.5 * losses[0]
    for before, after in zip(network(), model, strict=True):
        assert not hasattr(after, "weight") or not torch.equal(before.weight, after.weight)


@pytest.mark.parametrize("name", able("micro_batches"))
def test_micro_batches_train_like_the_full_batch(name):
    """Four quarters, each mean loss divided by four, in float64; without BatchNorm, which would see only a quarter."""
    results = []
    for parts in (1, 4):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 2)).double()
        optimizer, preconditioner = build(name, model, options(name), accumulation_steps=parts)
        inputs, targets = data(dtype=torch.float64)
        for _ in range(5):
            optimizer.zero_grad()
            for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
                loss = (model(x) - y).square().mean() / parts
                loss.backward()
                if preconditioner is not None:
                    preconditioner.observe(loss)
            optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize(("dtype", "interrupt"), [(torch.float32, 1), (torch.float32, 6), (torch.bfloat16, 6)], ids=str)
def test_resumed_training_equals_uninterrupted_training_bitwise(name, dtype, interrupt):
    """With torch's safe loader and a schedule, at a step with an update of the preconditioner and at one without."""
    resumed = train(name, options(name), STEPS, dtype=dtype, interrupt=interrupt)
    assert_close(resumed, trained(name, dtype=dtype), rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted({*available()} - {"shampoo", "singd"}))
def test_a_state_read_on_the_cpu_is_loaded_where_an_uninterrupted_one_lies(name):
    """Each tensor on its device and in its type, with the meta device in place of a GPU.

    AdamW, for one, counts steps on the CPU: on a GPU every later step would wait for the counters. Shampoo's iterations
    read values, and SINGD tells parameters apart by their addresses, which the meta device does not have.
    """

    def trained() -> torch.optim.Optimizer:
        optimizer, _ = build(name, model, {"lr": 0.1})
        for _ in range(2):
            model(torch.empty(4, 6, device="meta")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return optimizer

    def places(optimizer: torch.optim.Optimizer) -> object:
        return tree_map_only(torch.Tensor, lambda t: (t.device.type, t.dtype, t.shape), optimizer.state_dict())

    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).to("meta")
    whole, resumed = trained(), trained()
    on_cpu = tree_map_only(torch.Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), whole.state_dict())
    resumed.load_state_dict(on_cpu)
    assert places(resumed) == places(whole)
    if name == "adamw":
        assert {state["step"].device.type for state in resumed.state.values()} == {"cpu"}


@pytest.mark.parametrize("name", available())
def test_a_closures_gradients_are_used(name):
    """Truth: the same gradients, computed before the step."""
    assert_close(train(name, options(name), 5, by_closure=True), train(name, options(name), 5), rtol=0, atol=0)


@pytest.mark.parametrize("name", available())
def test_a_hook_of_the_step_runs_once(name):
    """Even where another optimizer of torch exists: torch wraps the steps of each class that has an instance."""
    model = network()
    torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer, _ = build(name, model, options(name))
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    model(data()[0]).square().mean().backward()
    optimizer.step()
    assert called == ["before", "after"]


@pytest.mark.parametrize("name", able("grad_scaler"))
def test_a_gradient_scaler_changes_nothing(name):
    """Scaling by a power of two is exact."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert_close(train(name, options(name), 5, scaler=scaler), train(name, options(name), 5), rtol=0, atol=0)


class WithComplexPart(nn.Module):
    """A Linear beside complex weights, in a Linear or as pairs of real numbers."""

    def __init__(self, as_pairs: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.real, self.complex = nn.Linear(36, 4).double(), nn.Linear(36, 3, bias=False, dtype=torch.complex128)
        self.pairs = nn.Parameter(torch.view_as_real(self.complex.weight.detach()).clone()) if as_pairs else None
        if as_pairs:
            del self.complex

    def complex_weights(self) -> Tensor:
        return self.complex.weight if self.pairs is None else torch.view_as_complex(self.pairs)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1)
        outputs = rows.to(torch.complex128) @ self.complex_weights().T
        return self.real(rows).square().mean() + (outputs + 0.5j).abs().square().mean()


def test_complex_weights_are_taken_by_the_optimizers_of_torch():
    """SINGD leaves them to AdamW."""
    names = ("adamw", "lamb", "muon", "sgd", "shampoo", "singd", "soap")
    assert [name for name in names if takes_complex_weights(name)] == ["adamw", "sgd", "singd"]


@pytest.mark.parametrize("name", [name for name in available() if name in SECOND_ORDER or takes_complex_weights(name)])
def test_complex_weights_train_as_pairs_of_real_numbers(name):
    """Truth: the same training with the pairs as a parameter, which no layer holds."""
    results = []
    for as_pairs in (False, True):
        model = WithComplexPart(as_pairs)
        optimizer, preconditioner = build(name, model, options(name))
        for step in range(3):
            optimizer.zero_grad()
            loss = model(data(dtype=torch.float64)[0] + step)
            loss.backward()
            if preconditioner is not None:
                preconditioner.observe(loss)
            optimizer.step()
        results.append([torch.view_as_real(model.complex_weights().detach()), model.real.weight.detach()])
    assert_close(results[0], results[1])


@pytest.mark.parametrize(
    "name", [name for name in available() if name not in SECOND_ORDER and not takes_complex_weights(name)]
)
def test_other_optimizers_refuse_complex_weights_by_name(name):
    for optimizer, base in ((name, {}), ("mkor", {"base": name})):
        with pytest.raises(ValueError, match=f"^{name} does not take complex weights such as 'complex.weight': "):
            build(optimizer, WithComplexPart(False), {**options(name), **base} if base else options(name))


@pytest.mark.parametrize("name", available())
def test_nothing_grows(name):
    """The bytes of the state and the number of live tensors are the same after 16 and after 32 steps."""
    model = network()
    optimizer, preconditioner = build(name, model, options(name))
    inputs, targets = data()
    sizes = []
    gc.collect()
    gc.freeze()  # so that later collections skip everything that already exists
    for step in range(1, 33):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        if preconditioner is not None:
            preconditioner.observe(1.0 - 0.001 * step)
        optimizer.step()
        if step in (16, 32):  # alike in what every second step does
            gc.collect()
            alive = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            sizes.append((sum(t.numel() * t.element_size() for t in tensors(optimizer.state_dict())), alive))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", available())
def test_a_bert_with_tied_embeddings_and_an_unused_pooler_trains(name):
    """Only the language model's loss: pooler and next-sentence head get no gradient and stay unchanged."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertForPreTraining(BertConfig(vocab_size=40, max_position_embeddings=8, **shape))
    decoder, embeddings = model.cls.predictions.decoder, model.bert.embeddings.word_embeddings
    untouched = [*model.bert.pooler.parameters(), *model.cls.seq_relationship.parameters()]
    before = [parameter.detach().clone() for parameter in untouched]
    optimizer, preconditioner = build(name, model, options(name), exclude=r"cls\.predictions")
    tokens = torch.randint(40, (8, 8), generator=torch.Generator().manual_seed(1))

    def loss_of() -> Tensor:
        logits = model(input_ids=tokens).prediction_logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    losses = losses_of(model, optimizer, preconditioner, loss_of, 20)
    assert losses[-1] < losses[0] - 0.1
    assert decoder.weight is embeddings.weight
    assert_close(untouched, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("adams", {"lr": 0.1}, "unknown optimizer 'adams'; choose one of "),
        ("sgd", {"lr": 0.1, "momentun": 0.9}, "sgd has no hyperparameter 'momentun'; it has lr, momentum"),
        ("mkor", {"lr": 0.1, "rang": 2}, "mkor with base sgd has no hyperparameter 'rang'; it has update_rule, "),
        (
            "mkor",
            {"lr": 0.1, "base": "kaisa"},
            "base='kaisa' is not a first-order optimizer; choose one of ",
        ),
        ("mkor", {}, "missing 1 required keyword-only argument: 'lr'"),
        (
            "kaisa",
            {"lr": 0.1, "damping": -1.0},
            "damping=-1.0 must be greater than 0: the number added to the eigenvalues.",
        ),
        ("sgd", {"lr": 0.1, "momentum": 1.0}, "momentum=1.0 must be at least 0 and less than 1"),
        ("shampoo", {"lr": 0.1, "graft": "lion"}, "graft='lion' must be one of none, sgd, adagrad, rmsprop"),
    ],
)
def test_a_wrong_request_is_refused_in_words(name, chosen, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(name, network(), chosen)


def test_an_optimizer_of_a_package_that_is_missing_is_refused_by_name(monkeypatch):
    monkeypatch.delitem(sys.modules, "baselines.first_order.lamb", raising=False)
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    with pytest.raises(ModuleNotFoundError, match=r"^optimizer 'lamb' needs the package 'timm'"):
        build("lamb", network(), {"lr": 0.1})
