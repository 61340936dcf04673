"""A preconditioner's state in that of its optimizer. Truth: the uninterrupted run, to the last bit."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten

from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, MKORH, Method, Preconditioner
from mkor_core.saving.entries import saved_counters, saved_tensors
from tests.support.old_states import in_old_form

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
STEPS = 10
METHODS: dict[str, Method] = {
    "dense": MKOR(inverse_update_period=2),
    "window": MKOR(window=3, inverse_update_period=2),
    "bfloat16": MKOR(factor_dtype=torch.bfloat16, inverse_update_period=2),
    "rank 2": MKOR(rank=2, inverse_update_period=2),
    "eva": Eva(),
    "kaisa": KAISA(factor_update_period=1, inverse_update_period=2),
    "before the switch": MKORH(inverse_update_period=2, warmup_steps=5, knee_beta=1e9),
    "after the switch": MKORH(inverse_update_period=1, warmup_steps=2, knee_beta=1e9),
    "hylo": HyLo(update_period=2),
}
BASES: dict[str, Callable[[Iterable[Any]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.05),
    "momentum": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: AdamW(parameters, lr=0.01),
}
RUNS = [*((name, "momentum") for name in METHODS), ("dense", "sgd"), ("dense", "adamw")]
"""Every method with a base, and one method with every base."""
FLAT = {"nested": False, "flattened": True}


class Run:
    """A small network with layers that it uses, one that it uses from some step on, and a frozen one."""

    def __init__(self, method: Method, base: str = "momentum", dtype: torch.dtype = torch.float64, **late: int) -> None:
        torch.manual_seed(0)
        self.layers = nn.ModuleDict(
            {name: nn.Linear(5, 5) for name in ("first", "second", "late", "frozen", "excluded")}
        )
        self.layers.to(dtype)
        self.layers["frozen"].requires_grad_(False)
        self.late = late.get("late", 0)
        self.optimizer = BASES[base](self.layers.parameters())
        self.preconditioner = Preconditioner(self.layers, method, exclude="^excluded$").attach(self.optimizer)

    def train(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            self.optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            hidden = torch.randn(8, 5, generator=generator, dtype=self.layers["first"].weight.dtype)
            for name, layer in self.layers.items():
                if name != "late" or step >= self.late:
                    hidden = torch.tanh(layer(hidden))
            loss = (hidden - 1).square().mean()
            loss.backward()
            self.preconditioner.observe(loss)
            self.optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.layers.state_dict().items()}


def assert_same(one: Any, other: Any) -> None:
    """Two nests of tensors and plain values agree to the last bit."""
    (mine, shape), (theirs, other_shape) = tree_flatten(one), tree_flatten(other)
    assert shape == other_shape
    for left, right in zip(mine, theirs, strict=True):
        if isinstance(left, Tensor):
            assert_close(left, right, rtol=0, atol=0)
        else:
            assert left == right


def options(form: str) -> StateDictOptions:
    return StateDictOptions(flatten_optimizer_state_dict=FLAT[form])


def state_of(run: Run, form: str) -> dict[str, Any]:
    if form == "plain":
        return copy.deepcopy(run.optimizer.state_dict())
    return copy.deepcopy(get_optimizer_state_dict(run.layers, run.optimizer, options=options(form)))


def restore(run: Run, state: dict[str, Any], form: str) -> None:
    if form == "plain":
        run.optimizer.load_state_dict(state)
    else:
        set_optimizer_state_dict(run.layers, run.optimizer, state, options=options(form))


def through_files(run: Run, state: dict[str, Any], form: str, folder: Any) -> dict[str, Any]:
    """Return a state as it comes back from files, loaded into the one that a new run has."""
    save({"optimizer": state}, checkpoint_id=folder, no_dist=True)
    template = get_optimizer_state_dict(run.layers, run.optimizer, options=options(form))
    load({"optimizer": template}, checkpoint_id=folder, no_dist=True)
    return dict(template)


@pytest.mark.parametrize("form", ["plain", *FLAT])
@pytest.mark.parametrize(("name", "base"), RUNS)
def test_a_resumed_run_is_the_uninterrupted_one(name, base, form):
    whole, first, second = (Run(METHODS[name], base) for _ in range(3))
    whole.train(0, STEPS)
    first.train(0, 5)
    state = state_of(first, form)
    before = copy.deepcopy(state)
    second.layers.load_state_dict(first.layers.state_dict())
    for _ in range(2):  # twice is as good as once
        restore(second, state, form)
    assert_same(state, before)  # the caller's stays as it was
    second.train(5, STEPS)
    if form == "plain":
        assert_same(saved_tensors(state), saved_tensors(before))
    assert_close(second.weights(), whole.weights(), rtol=0, atol=0)
    ours, theirs = second.preconditioner.state_dict(), whole.preconditioner.state_dict()
    assert_close(ours.pop("layers"), theirs.pop("layers"), rtol=0, atol=0)
    assert ours == theirs
    assert (ours["switch_step"] is not None) == ("switch" in name)


@pytest.mark.parametrize(
    ("name", "base", "form"),
    [*((*run, "nested") for run in RUNS if run[0] != "hylo"), ("after the switch", "momentum", "flattened")],
)
def test_a_run_resumed_from_files_is_the_uninterrupted_one(name, base, form, tmp_path):
    """The history of MKOR-H's losses has grown, and its factors are gone after the switch; a new run has neither."""
    whole, first, second = (Run(METHODS[name], base) for _ in range(3))
    whole.train(0, STEPS)
    first.train(0, 7)
    second.layers.load_state_dict(first.layers.state_dict())
    restore(second, through_files(second, state_of(first, form), form, tmp_path), form)
    second.train(7, STEPS)
    assert_close(second.weights(), whole.weights(), rtol=0, atol=0)
    assert second.preconditioner.switch_step == whole.preconditioner.switch_step


def test_tensors_whose_shapes_follow_the_batch_are_loaded_whole_and_not_into_those_of_a_new_run(tmp_path):
    """HyLo's rows: torch compares the shapes with those of a new run, which has none."""
    first, second = Run(METHODS["hylo"]), Run(METHODS["hylo"])
    first.train(0, 5)
    with pytest.raises(CheckpointException, match="Size mismatch between saved"):
        through_files(second, state_of(first, "nested"), "nested", tmp_path)


@pytest.mark.parametrize("base", BASES)
def test_the_tensors_keep_their_own_dtypes(base):
    """torch casts an optimizer's own state to the dtype of the weights."""
    first, second = (Run(METHODS["dense"], base, torch.bfloat16) for _ in range(2))
    first.train(0, 5)
    state = state_of(first, "plain")
    restore(second, state, "plain")
    saved = saved_tensors(state)
    assert {tensor.dtype for tensors in saved.values() for tensor in tensors.values()} >= {torch.float32, torch.int64}
    assert_close(saved_tensors(second.optimizer.state_dict()), saved, rtol=0, atol=0)


def test_tensors_and_counters_stand_where_torch_has_an_optimizers():
    run = Run(METHODS["dense"], "adamw")
    run.train(0, 3)
    state = run.optimizer.state_dict()
    assert state.keys() == {"state", "param_groups"}
    assert {entry.split("_")[0] for entry in state["state"][1]} == {"step", "exp"}
    ours = {entry for entry in state["state"][0] if entry.startswith("preconditioner_")}
    tensors = run.preconditioner.state_dict()["layers"]["first"]
    assert ours == {f"preconditioner_{name}{'' if tensor.dim() else '()'}" for name, tensor in tensors.items()}
    assert state["state"][0]["preconditioner_left"].data_ptr() == tensors["left"].data_ptr()
    expected = {**run.preconditioner.state_dict(), "begun": 3}
    del expected["layers"]
    assert saved_counters(state) == expected


@pytest.mark.parametrize("name", METHODS)
def test_the_live_optimizer_keeps_no_tensor_of_ours(name):
    """They would outlive those that an update replaces, and those that MKOR-H frees."""
    run = Run(METHODS[name])
    run.train(0, 5)
    run.optimizer.state_dict()
    run.train(5, STEPS)
    kept = [value for state in run.optimizer.state.values() for key, value in state.items() if "precond" in key]
    assert kept
    assert sum(tensor.numel() for tensor in kept) == 0


@pytest.mark.parametrize("base", BASES)
def test_the_step_by_which_torch_makes_an_optimizers_first_state_does_not_count(base):
    asked, plain = Run(METHODS["dense"], base), Run(METHODS["dense"], base)
    state_of(asked, "nested")
    assert asked.preconditioner.state_dict()["step"] == 0
    for run in (asked, plain):
        run.train(0, 4)
    assert asked.preconditioner.state_dict()["step"] == 4
    if base != "adamw":  # in whose bias correction it does count
        assert_close(asked.weights(), plain.weights(), rtol=0, atol=0)


def test_a_first_step_with_a_learning_rate_of_zero_counts():
    """That of a warm-up."""
    run = Run(METHODS["dense"])
    run.optimizer.param_groups[0]["lr"] = 0.0
    run.train(0, 1)
    assert run.preconditioner.state_dict()["step"] == 1


@pytest.mark.parametrize(
    ("base", "form"),
    [(base, form) for base in BASES for form in ("plain", *FLAT) if (base, form) != ("adamw", "flattened")],
)
def test_a_layer_that_has_had_no_gradient_is_left_to_the_optimizer_until_it_has(base, form):
    """Adam takes any entry of a weight for a state of its own."""
    first, second = Run(METHODS["dense"], base, late=5), Run(METHODS["dense"], base, late=5)
    first.train(0, 3)
    state = state_of(first, form)
    second.layers.load_state_dict(first.layers.state_dict())
    if form == "nested" and base != "sgd":
        with pytest.raises(RuntimeError, match=r"Missing optimizer state for parameter 'late\.weight'"):  # torch's rule
            restore(second, state, form)
        set_optimizer_state_dict(second.layers, second.optimizer, state, options=StateDictOptions(strict=False))
    else:
        restore(second, state, form)
    # From a flattened state torch makes empty mappings of the momenta that it lacks: AdamW does not load them, and SGD
    # cannot go on with them.
    end = 5 if form == "flattened" and base != "sgd" else STEPS
    second.train(3, end)
    first.train(3, end)
    assert_close(second.weights(), first.weights(), rtol=0, atol=0)


@pytest.mark.parametrize("form", FLAT)
def test_a_layer_used_late_is_saved_from_then_on(form):
    whole, first, second = (Run(METHODS["dense"], "adamw", late=3) for _ in range(3))
    whole.train(0, STEPS)
    first.train(0, 6)
    second.layers.load_state_dict(first.layers.state_dict())
    restore(second, state_of(first, form), form)
    second.train(6, STEPS)
    assert_close(second.weights(), whole.weights(), rtol=0, atol=0)


@pytest.mark.parametrize("form", ["plain", *FLAT])
@pytest.mark.parametrize("momenta", [(0.9, 0.0), (0.0, 0.9), (0.0, 0.0)], ids=str)
def test_groups_of_which_the_optimizer_keeps_state_or_not_and_one_that_is_added(momenta, form):
    def make() -> Run:
        run = Run(METHODS["dense"])
        run.preconditioner.remove()
        first, second = (list(run.layers[name].parameters()) for name in ("first", "second"))
        run.optimizer = SGD([{"params": first, "momentum": momenta[0]}], lr=0.05)
        run.preconditioner = Preconditioner(run.layers, METHODS["dense"]).attach(run.optimizer)
        run.train(0, 2)
        run.optimizer.add_param_group({"params": second, "momentum": momenta[1]})
        return run

    whole, first = make(), make()
    whole.train(2, STEPS)
    first.train(2, 5)
    state, weights = state_of(first, form), first.weights()
    keys = state if form == "flattened" else [key for entries in state["state"].values() for key in entries]
    assert sum(key.endswith("preconditioner_updates()") for key in keys) == 2
    first.train(5, 7)  # and back again
    first.layers.load_state_dict(weights)
    restore(first, state, form)
    first.train(5, STEPS)
    assert_close(first.weights(), whole.weights(), rtol=0, atol=0)


def test_a_state_of_an_earlier_version_is_loaded():
    """It is a third entry, with the layers by name."""
    whole, first, second = (Run(METHODS["dense"]) for _ in range(3))
    whole.train(0, STEPS)
    first.train(0, 5)
    state = in_old_form(state_of(first, "plain"), {0: "first", 2: "second", 4: "late"})
    assert set(state["preconditioner"]) == {"method", "hyperparameters", "step", "switch_step", "losses", "layers"}
    second.layers.load_state_dict(first.layers.state_dict())
    restore(second, state, "plain")
    second.train(5, STEPS)
    assert_close(second.weights(), whole.weights(), rtol=0, atol=0)


@pytest.mark.parametrize("form", ["plain", *FLAT])
def test_another_methods_state_and_other_hyperparameters_are_refused_in_a_line(form):
    """A flattened state keeps the protection of `Method.fixed_in_state` too."""
    saved = Run(MKOR(window=3))
    saved.train(0, 3)
    for method, message in (
        (Eva(), "was saved by MKOR, but this Preconditioner's method is Eva"),
        (MKOR(window=2), "was saved with window=3, but this MKOR has window=2"),
    ):
        other = Run(method)
        other.train(0, 2)
        before = copy.deepcopy(other.optimizer.state_dict())
        with pytest.raises(ValueError, match=re.escape(message)) as refused:
            restore(other, state_of(saved, form), form)
        assert "\n" not in str(refused.value)
        assert_same(other.optimizer.state_dict(), before)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no text": (lambda state: state["param_groups"][0].update(preconditioner=3), "is not the text that"),
    "no JSON": (lambda state: state["param_groups"][0].update(preconditioner="{"), "is not the text that"),
    "another JSON": (lambda state: state["param_groups"][0].update(preconditioner="[1]"), "is not the text that"),
    "a later format": (
        lambda state: state["param_groups"][0].update(preconditioner='{"format": 2}'),
        "has the format 2: a later version has saved it",
    ),
    "a tensor of a bias": (
        lambda state: state["state"][1].update(preconditioner_left=torch.eye(5)),
        "has tensors of parameter '1', which is no weight of a layer",
    ),
    "a layer without tensors": (
        lambda state: state["state"].update({0: {"momentum_buffer": state["state"][0]["momentum_buffer"]}}),
        "lacks the tensors of layer 'first', which this rank keeps",
    ),
    "a tensor less": (lambda state: state["state"][0].pop("preconditioner_left"), "differ in tensor 'left'"),
    "a scalar that is none": (
        lambda state: state["state"][0].update({"preconditioner_updates()": torch.ones(2, dtype=torch.int64)}),
        "Tensor 'updates' of layer 'first' has shape (2,), not ()",
    ),
    "a number for a tensor": (lambda state: state["state"][0].update(preconditioner_left=3), "is no dense tensor"),
}


@pytest.mark.parametrize("what", WRONG)
def test_entries_that_cannot_be_right_are_refused_and_change_nothing(what: str):
    damage, message = WRONG[what]
    saved, other = Run(METHODS["dense"]), Run(METHODS["dense"])
    saved.train(0, 3)
    other.train(0, 2)
    state, before = state_of(saved, "plain"), copy.deepcopy(other.optimizer.state_dict())
    damage(state)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        restore(other, state, "plain")
    assert "\n" not in str(refused.value)
    assert_same(other.optimizer.state_dict(), before)


def test_a_layer_that_was_left_out_starts_anew_and_is_named(caplog):
    saved, other = Run(METHODS["dense"]), Run(METHODS["dense"])
    other.preconditioner.remove()
    other.preconditioner = Preconditioner(other.layers, METHODS["dense"]).attach(other.optimizer)
    saved.train(0, 3)
    restore(other, state_of(saved, "plain"), "plain")
    assert [record.getMessage() for record in caplog.records if "anew" in record.getMessage()] == [
        "The saved state has nothing of layers excluded, which start anew."
    ]
    assert other.preconditioner.state_dict()["step"] == 3
    other.train(3, 5)


def test_other_groups_are_refused_by_torch_and_change_nothing():
    saved, other = Run(METHODS["dense"]), Run(METHODS["dense"])
    saved.train(0, 3)
    state = state_of(saved, "plain")
    state["param_groups"] *= 2
    with pytest.raises(ValueError, match="different number of parameter groups"):
        restore(other, state, "plain")
    assert other.preconditioner.state_dict()["step"] == 0


@pytest.mark.parametrize("form", ["plain", "nested"])
def test_an_optimizer_without_a_preconditioner_goes_on_from_the_state(form):
    first = Run(METHODS["dense"], "adamw")
    first.train(0, 3)
    layers = copy.deepcopy(first.layers)
    optimizer = Adam(layers.parameters())
    if form == "plain":
        optimizer.load_state_dict(state_of(first, form))
    else:
        set_optimizer_state_dict(layers, optimizer, state_of(first, form))
    assert_close(
        optimizer.state[layers["first"].weight]["exp_avg"], first.optimizer.state_dict()["state"][0]["exp_avg"]
    )
    layers["first"](torch.ones(2, 5, dtype=torch.float64)).sum().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match=r"has loaded the state of a preconditioner before it was attached"):
        Preconditioner(layers, METHODS["dense"]).attach(optimizer)
    assert not any("precond" in key for key in optimizer.state[layers["first"].bias])


@pytest.mark.parametrize("form", ["plain", "nested"])
def test_a_state_without_a_preconditioner_starts_one_anew_with_a_warning(form):
    first, second = Run(METHODS["dense"], "adamw"), Run(METHODS["dense"], "adamw")
    first.preconditioner.remove()
    first.train(0, 3)
    second.train(0, 2)
    state = state_of(first, form)
    with pytest.warns(UserWarning, match="holds no preconditioner state: the preconditioner starts anew"):
        restore(second, state, form)
    began = second.preconditioner.state_dict()
    assert (began["step"], [layer["updates"] for layer in began["layers"].values()]) == (0, [0] * 3)
    second.train(0, 1)  # step 0 of the new start updates the factors, which step 2 of the old one would not
    assert second.preconditioner.state_dict()["layers"]["first"]["updates"] == 1


def test_a_flattened_state_without_a_preconditioner_is_loaded_before_attach():
    """Afterwards torch misses an entry of the parameter groups, as of any that a later version of an optimizer has."""
    first, second, third = (Run(METHODS["dense"], "adamw") for _ in range(3))
    first.preconditioner.remove()
    first.train(0, 3)
    state = state_of(first, "flattened")
    with pytest.raises(KeyError, match="preconditioner"):
        restore(second, dict(state), "flattened")
    third.preconditioner.remove()
    restore(third, dict(state), "flattened")
    Preconditioner(third.layers, METHODS["dense"]).attach(third.optimizer)
    third.train(0, 2)


@pytest.mark.parametrize("protocol", [None, 2, pickle.HIGHEST_PROTOCOL])
def test_a_copied_or_pickled_optimizer_warns_and_steps_like_its_base(protocol):
    def duplicate(optimizer: Optimizer) -> Any:
        return copy.deepcopy(optimizer) if protocol is None else pickle.loads(pickle.dumps(optimizer, protocol))

    run = Run(METHODS["dense"])
    run.train(0, 3)
    with pytest.warns(UserWarning, match="attach a new Preconditioner"):
        state = duplicate(run.optimizer).state_dict()
    assert saved_counters(state) is None
    assert saved_tensors(state) == {}
    assert_close(state["state"][0]["momentum_buffer"], run.optimizer.state_dict()["state"][0]["momentum_buffer"])
    run.preconditioner.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        duplicate(run.optimizer)  # its hooks are gone
    assert not {"__deepcopy__", "__reduce_ex__"} & vars(run.optimizer).keys()


def test_loading_the_live_state_before_the_first_step_changes_nothing():
    """As accelerate does in prepare()."""
    run, plain = Run(METHODS["dense"]), Run(METHODS["dense"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.optimizer.load_state_dict(run.optimizer.state_dict())
    for one in (run, plain):
        one.train(0, 3)
    assert_close(run.weights(), plain.weights(), rtol=0, atol=0)
