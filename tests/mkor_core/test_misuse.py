"""What users do wrong, or do that hooks must see through. Truth: the step as it should be, or the base optimizer's.

`tests/faults/test_library.py` tries these misuses with every setting, kind of layer and precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing import assert_close

from baselines import KAISA, build, method_class
from mkor_core import MKOR, Preconditioner
from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import LayerShape, Sums
from mkor_core.engines.diagnostics import Diagnostics
from tests.support import reference
from tests.support.hyperparameters import hyperparameters
from tests.support.misuses import (
    IGNORED,
    ODD,
    OF_EACH_STATISTIC,
    PERIODS,
    POISONED,
    REFUSED,
    SECOND_ORDER,
    SUMMED,
    VARIANTS,
    Session,
    WithOdd,
    check_evaluation,
    check_halves,
    check_ignored,
    check_not_finite,
    check_refused,
    check_same_forward,
    check_summed,
    gradients,
    hand_set,
    inputs,
    network,
    plain,
    run,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:A step has more backward passes"),
    pytest.mark.filterwarnings("ignore:MKOR preconditions"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]


def session(name: str, **more: Any) -> Session:
    return Session(*VARIANTS.get(name, (name, {})), **more)


def states(preconditioner: Preconditioner | None) -> dict[str, dict[str, Tensor]]:
    assert preconditioner is not None
    return copy.deepcopy(preconditioner.state_dict()["layers"])


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "singd"])
@pytest.mark.parametrize("misuse", IGNORED)
def test_what_adds_nothing_to_the_gradients_changes_nothing(name, misuse):
    check_ignored(partial(session, name), misuse)


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "singd"])
@pytest.mark.parametrize("misuse", SUMMED)
def test_two_backward_passes_train_as_that_of_the_sum(name, misuse):
    check_summed(partial(session, name), misuse)


def test_two_losses_give_the_moments_of_all_their_rows():
    """Truth: dense, from the rows of both forward passes and the gradient of the sum of both losses."""
    layer = nn.Linear(4, 3).double()
    preconditioner = Preconditioner(layer, KAISA(damping=0.03, factor_decay=0.9, kl_clip=None))
    rows = []
    for batch, scale in ((inputs("linear", 0), 1.0), (inputs("linear", 1), -0.5)):
        output = layer(batch)
        output.retain_grad()
        (scale * output.square().mean()).backward()
        assert output.grad is not None
        rows.append(reference.rows_of(layer, batch, output.grad))
    x, g = (torch.cat(parts) for parts in zip(*rows, strict=True))
    preconditioner.step()
    a = 0.9 * torch.eye(5).double() + 0.1 * x.T @ x / len(x)
    c = 0.9 * torch.eye(3).double() + 0.1 * g.T @ g / len(g)
    assert_close(reference.joined(layer), reference.kfac_solve(c, g.T @ x, a, 0.03), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "mkor released"])
def test_micro_batches_that_are_not_announced_count_too(name):
    check_halves(partial(session, name), name)


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "mkor released"])
def test_two_backward_passes_through_one_forward_pass(name):
    check_same_forward(partial(session, name), name)


@pytest.mark.parametrize("name", OF_EACH_STATISTIC)
@pytest.mark.parametrize("misuse", REFUSED)
def test_a_step_of_training_without_statistics_is_refused(name, misuse):
    check_refused(partial(session, name), misuse)


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "hylo clipped"])
@pytest.mark.parametrize("step", [plain, hand_set], ids=lambda step: step.__name__)
def test_in_evaluation_mode_the_base_optimizer_trains_alone_and_a_warning_says_so(name, step):
    check_evaluation(partial(session, name), Session("sgd", {}), step)


def test_a_layer_of_which_the_host_knows_that_it_has_no_statistics_keeps_its_gradient():
    model = network("linear")
    method = KAISA(kl_clip=None)
    object.__setattr__(method, "has_statistics", lambda state: False)
    preconditioner = Preconditioner(model, method, lr=0.1)
    model(inputs("linear", 0)).square().sum().backward()
    before = gradients(model)
    preconditioner.step()
    assert_close(gradients(model), before, rtol=0, atol=0)


def test_kl_clip_leaves_layers_without_statistics_out():
    """One branch of two is in evaluation mode. Truth: its plain gradient; for the other, training it alone."""
    results = {}
    for both in (True, False):
        branches = nn.ModuleList([network("linear"), network("linear").eval()])
        exclude = () if both else r"^1"
        preconditioner = Preconditioner(branches, KAISA(kl_clip=1e-6), lr=1.0, exclude=exclude)
        (branches[0](inputs("linear", 0)).square().sum() + branches[1](inputs("linear", 1)).square().sum()).backward()
        preconditioner.step()
        results[both] = gradients(branches)
    assert_close(results[True], results[False], rtol=0, atol=0)


def test_layers_that_capture_nothing_while_others_do_are_logged_once_by_name(caplog):
    """The first layer's weight is used without calling it. Truth: its plain gradient."""
    model = network("linear")
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    for _ in range(3):
        model.zero_grad()
        hidden = nn.functional.linear(inputs("linear", 0), model[0].weight, model[0].bias)
        model[2](torch.tanh(hidden)).square().mean().backward()
        before = gradients(model)
        preconditioner.step()
        after = gradients(model)
        assert_close(after[:2], before[:2], rtol=0, atol=0)
        assert not torch.equal(after[2], before[2])
    (record,) = caplog.records
    assert record.getMessage().startswith("MKOR: layers '0' have a gradient but no statistics in a step that updates")


@pytest.mark.parametrize(("number", "reached", "outcome"), [(2, (), ""), (0, ("other",), "logged"), (0, (), "refused")])
def test_a_layer_that_only_another_rank_has_used_is_not_missing(number, reached, outcome, caplog):
    """Statistics of all ranks; the number 0 means none."""
    layer = Layer("used elsewhere", nn.Linear(2, 2))
    layer.module(torch.ones(1, 2)).sum().backward()
    statistics = {layer.name: Sums(torch.ones(3), torch.ones(2), torch.tensor(number))}
    with pytest.raises(RuntimeError, match="'used elsewhere'") if outcome == "refused" else nullcontext():
        Diagnostics("MKOR").check_coverage([layer], reached, statistics)
    assert len(caplog.records) == (outcome == "logged")


def test_zero_gradients_without_statistics_are_no_reason_to_refuse():
    """Alternating training with zero_grad(set_to_none=False) leaves zeros in the layers that a step does not use."""
    model = nn.ModuleDict({"linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=1))
    for module in ("linear", "norm"):
        model.zero_grad(set_to_none=False)
        model[module](inputs("linear", 0, torch.float32)).square().sum().backward()
        preconditioner.step()
    assert not model["linear"].weight.grad.any()


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "mkor not rescaled"])
@pytest.mark.parametrize("misuse", POISONED)
def test_a_step_that_is_not_finite_leaves_the_state_and_the_gradients_alone(name, misuse, caplog):
    check_not_finite(partial(session, name), Session("sgd", {}), misuse, caplog)


def test_statistics_of_the_last_step_that_are_not_finite_are_logged_when_the_state_is_saved(caplog):
    """Until then the host would have to wait for the device to know."""
    trained = session("mkor")
    run(trained, next(iter(POISONED.values())), steps=1)
    assert caplog.records == []
    states(trained.preconditioner)
    assert "have statistics that are not finite" in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "mkor not rescaled", "kaisa not clipped", "eva not clipped"])
def test_a_branch_that_is_not_finite_leaves_the_others_alone(name):
    """Truth: the same training with that branch excluded."""
    results = {}
    for exclude in ((), r"^1"):
        branches = nn.ModuleList([network("linear"), network("linear")])
        method, chosen = VARIANTS[name]
        _, preconditioner = build(method, branches, {"lr": 0.5, **chosen}, exclude=exclude)
        assert preconditioner is not None
        one, other = (branch(inputs("linear", i)).square().sum() for i, branch in enumerate(branches))
        (one + other * torch.nan).backward()
        preconditioner.observe(1.0)
        preconditioner.step()
        results[exclude] = gradients(branches)
    assert_close(results[()], results[r"^1"], rtol=0, atol=0, equal_nan=True)
    assert all(gradient.isfinite().all() for gradient in results[()][:4])


def test_a_decomposition_that_fails_leaves_the_layer_what_it_had(monkeypatch, caplog):
    """Also the factor that was decomposed before. Truth: the state before, with the newer running averages."""
    trained = session("kaisa")
    run(trained, plain)
    before = states(trained.preconditioner)
    decompose, calls = torch.linalg.eigh, iter(range(100))

    def fail_on_the_right(matrix: Tensor) -> Any:
        if next(calls) % 2:
            raise torch.linalg.LinAlgError("failed to converge")  # type: ignore[attr-defined]
        return decompose(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", fail_on_the_right)
    run(trained, plain)
    for name, state in states(trained.preconditioner).items():
        for key, tensor in state.items():
            assert torch.equal(tensor, before[name][key]) == ("_v" in key)
    assert caplog.messages == [
        f"KAISA: layers '{name}' keep what they had, because a decomposition failed." for name in ("0", "2")
    ]


@pytest.mark.parametrize("misuse", POISONED)
def test_a_step_that_is_not_finite_leaves_singds_factors_alone(misuse, caplog):
    """Truth: the factors before. The weights become what SINGD makes of gradients that are not finite."""
    trained = session("singd")
    run(trained, plain)
    before = copy.deepcopy(trained.optimizer.state_dict()["singd"])
    run(trained, POISONED[misuse], steps=2)
    after = trained.optimizer.state_dict()["singd"]
    assert_close({**after, "steps": 0}, {**before, "steps": 0}, rtol=0, atol=0)
    assert len([record for record in caplog.records if "'0' has statistics that are not finite" in record.message]) == 1


def test_rows_that_overflow_hylos_kernel_do_not_raise():
    """Each row is finite, but not the product of its norms with another's."""
    trained = session("hylo KID", dtype=torch.float32)
    for step in range(2):
        trained.optimizer.zero_grad()
        (trained.loss(step) * 1e25).backward()
        trained.optimizer.step()


@pytest.mark.parametrize("odd", ODD)
def test_odd_modules_are_left_to_the_base_optimizer_and_printed_by_name(odd):
    base, trained = (WithOdd(ODD[odd], torch.float64) for _ in range(2))
    optimizer, preconditioner = build("mkor", trained, {"lr": 0.1})
    assert preconditioner is not None
    assert preconditioner.layers == ("first", "head")
    assert f"Left to the base optimizer:\n  {ODD[odd].reason}" in repr(preconditioner)
    assert "ParametrizationList" not in repr(preconditioner)
    for model, stepped in ((base, build("sgd", base, {"lr": 0.1})[0]), (trained, optimizer)):
        model(inputs("linear", 0)).backward()
        stepped.step()
    assert_close([*trained.odd.parameters()], [*base.odd.parameters()], rtol=0, atol=0)
    assert not torch.equal(trained.first.weight, base.first.weight)


@pytest.mark.parametrize("shared", ["weight", "bias"])
def test_layers_that_share_a_parameter_are_left_out_by_name(shared):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    setattr(model[1], shared, getattr(model[0], shared))
    with pytest.warns(UserWarning, match=r"MKOR preconditions \d\d % of the"):
        preconditioner = Preconditioner(model, MKOR())
    assert preconditioner.layers == ("2",)
    assert repr(preconditioner).splitlines()[-2:] == [
        f"  0: its {shared} is shared with 1",
        f"  1: its {shared} is shared with 0",
    ]


def test_a_model_of_complex_layers_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no Linear or convolution .*: 0 \(its weight is torch.complex64, not real"):
        Preconditioner(nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64)), MKOR())


@pytest.mark.parametrize("name", OF_EACH_STATISTIC)
def test_a_hook_that_replaces_the_output_is_seen_through(name):
    """Two hooks, made before and after the Preconditioner's, double the output. Truth: a module that does."""
    results = []
    for hooked in (True, False):
        torch.manual_seed(0)
        first, second = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()
        doubled: list[nn.Module] = [] if hooked else [Factor(4.0)]
        model = nn.Sequential(first, *doubled, second)
        if hooked:
            first.register_forward_hook(lambda module, args, output: 2 * output)
        _, preconditioner = build(VARIANTS[name][0], model, {"lr": 0.1, **VARIANTS[name][1]})
        assert preconditioner is not None
        if hooked:
            first.register_forward_hook(lambda module, args, output: 2 * output)
        model(inputs("linear", 0)).square().mean().backward()
        preconditioner.observe(1.0)
        preconditioner.step()
        results.append(gradients(model))
    assert_close(results[0], results[1])


def ragged(layout: torch.layout) -> Tensor:
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    return torch.nested.nested_tensor(parts, layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", OF_EACH_STATISTIC)
@pytest.mark.parametrize("kind", ["sparse", "nested", "jagged", "tuple"])
def test_calls_without_rows_are_reported_and_the_other_layers_preconditioned(name, kind, caplog):
    """Inputs that are not dense, or a hook that returns a tuple. Truth: the gradients without a Preconditioner."""
    made: dict[str, Callable[[], Tensor]] = {
        "sparse": lambda: torch.eye(4)[:3].to_sparse(),
        "nested": lambda: ragged(torch.strided),
        "jagged": lambda: ragged(torch.jagged),
        "tuple": lambda: torch.ones(3, 4),
    }
    torch.manual_seed(0)
    first, second = nn.Linear(4, 5), nn.Linear(5, 3)
    method, chosen = VARIANTS[name]
    _, preconditioner = build(method, nn.ModuleList([first, second]), {"lr": 0.1, **chosen})
    assert preconditioner is not None
    if kind == "tuple":
        first.register_forward_hook(lambda module, args, output: (output,), prepend=True)
    called: Any = first(made[kind]())
    outputs = {
        "nested": lambda: torch.cat(called.unbind()),
        "jagged": lambda: called.values(),
        "tuple": lambda: called[0],
    }
    second(outputs.get(kind, lambda: called)()).square().sum().backward()
    before = gradients(first), gradients(second)
    preconditioner.observe(1.0)
    preconditioner.step()
    assert_close(gradients(first), before[0], rtol=0, atol=0)
    assert not torch.equal(gradients(second)[0], before[1][0])
    (record,) = caplog.records
    assert "layers '0' have a gradient but no statistics" in record.getMessage()


class Factor(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor * inputs


@pytest.mark.parametrize("key", ["weight", "bias"])
def test_a_layer_that_is_pruned_later_is_left_to_the_base_optimizer_and_logged_once(key, caplog):
    """Truth: the base optimizer's step from the same weights."""
    trained, base = session("mkor"), Session("sgd", {})
    for one in (trained, base):
        prune.l1_unstructured(one.model[0], key, 0.5)
        run(one, plain, steps=1)
    assert_close([*trained.model[0].parameters()], [*base.model[0].parameters()], rtol=0, atol=0)
    assert not torch.equal(trained.model[2].weight, base.model[2].weight)
    run(trained, plain)
    (record,) = caplog.records
    assert record.getMessage().startswith("MKOR: layers '0' are left to the base optimizer: their weight or bias has")


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "mkor window"])
@pytest.mark.parametrize(("before", "after"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str)
def test_a_model_may_change_its_precision_between_two_updates(name, before, after):
    """Truth: a new Preconditioner of the converted model, with the state loaded."""
    method, chosen = VARIANTS[name]
    periods = {key: 10 for key in PERIODS if key in hyperparameters(method)}
    model, results = network("linear", before), []
    _, changed = build(method, model, {"lr": 0.1, **chosen, **periods})
    for precision in (before, after):
        model.zero_grad()
        model.to(precision)(inputs("linear", 0, precision)).square().mean().backward()
        assert changed is not None
        changed.observe(1.0)
        if precision == after:
            plain_gradients = gradients(model)
            twin = network("linear", after)
            twin.load_state_dict(model.state_dict())
            _, loaded = build(method, twin, {"lr": 0.1, **chosen, **periods})
            assert loaded is not None
            loaded.load_state_dict(changed.state_dict())
            twin(inputs("linear", 0, after)).square().mean().backward()
            assert_close(gradients(twin), plain_gradients, rtol=0, atol=0)
            loaded.step()
            results.append(gradients(twin))
        changed.step()
    assert_close(gradients(model), results[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_a_layer_has_no_statistics_before_the_first(name):
    """Except where the initial state leaves the gradient as it is."""
    cls = method_class(name)
    assert cls is not None
    method = cls()
    state = method.initial_state(LayerShape(3, 2), torch.float64, torch.device("cpu"))
    grad = torch.ones(3, 2, dtype=torch.float64)
    assert not method.has_statistics(state) or torch.equal(method.precondition(state, grad), grad)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_a_layer_that_becomes_complex_later_is_left_to_the_base_optimizer_and_logged_once(caplog):
    trained = session("mkor")
    trained.model.to(torch.complex64)
    trained.model[0](trained.batch(0).to(torch.complex64)).abs().sum().backward()
    before = gradients(trained.model)
    trained.optimizer.step()
    assert_close(gradients(trained.model), before, rtol=0, atol=0)
    (record,) = caplog.records
    assert (
        "layers '0', '2' are left to the base optimizer: their weight or bias has become complex" in record.getMessage()
    )


@pytest.mark.parametrize("name", OF_EACH_STATISTIC)
def test_a_sparse_gradient_is_left_to_the_base_optimizer_and_logged_once(name, caplog):
    trained = session(name)
    assert trained.preconditioner is not None
    for step in range(2):
        trained.model.zero_grad()
        trained.loss(step).backward()
        weight = trained.model[0].weight
        before = weight.grad.clone()
        weight.grad = weight.grad.to_sparse()
        (trained.optimizer if trained.preconditioner.method.clip is not None else trained.preconditioner).step()
        assert_close(weight.grad.to_dense(), before, rtol=0, atol=0)
    assert [record.getMessage().partition("layers ")[2] for record in caplog.records] == [
        "'0' are left to the base optimizer, because their gradient is sparse."
    ]


@pytest.mark.parametrize("name", [*OF_EACH_STATISTIC, "mkor window"])
def test_a_model_on_the_meta_device_can_be_stepped(name):
    method, chosen = VARIANTS[name]
    model = network("convolution", torch.float32).to("meta")
    optimizer, preconditioner = build(method, model, {"lr": 0.1, **chosen})
    assert preconditioner is not None
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            model(torch.empty(6, 2, 4, 4, device="meta")).square().mean().backward()
            optimizer.zero_grad(set_to_none=False)
        preconditioner.observe(1.0)
        optimizer.step()
    assert preconditioner.memory_bytes() > 0


@pytest.mark.parametrize("name", OF_EACH_STATISTIC)
def test_a_step_inside_autocast_is_as_good_as_outside(name):
    def step(one: Session, number: int) -> None:
        one.loss(number).backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            one.optimizer.step()

    trained, outside = (run(session(name, dtype=torch.float32), how) for how in (step, plain))
    assert_close(trained, outside, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["kaisa", "mkor rank 2"])
def test_rows_are_reduced_in_full_precision_inside_autocast(name):
    """A backward pass inside autocast. Truth: the rows' moments in float32, from a backward pass outside."""
    kept = []
    for inside in (True, False):
        model = nn.Sequential(nn.Linear(4, 3))
        _, preconditioner = build(VARIANTS[name][0], model, {"lr": 0.1, **VARIANTS[name][1]})
        loss = model(inputs("linear", 0, torch.float32)).square().mean()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            loss.backward()
        assert preconditioner is not None
        preconditioner.step()
        kept.append(states(preconditioner)["0"]["right"])
    assert_close(kept[0], kept[1], rtol=1e-5, atol=1e-6)
