"""Properties of what an optimizer does with its hyperparameters, and whether it descends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from time import process_time
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from baselines.audit.declared import Theme
from baselines.audit.scripts import CONVOLUTION, NORM
from baselines.audit.subject import Subject
from baselines.audit.verdicts import Verdict, held, inapplicable

THEME = Theme()

SAME_RESULT = ("foreach", "fused", "capturable", "differentiable", "compile", "triton", "verbose", "debug")
"""Parts of the names of arguments that promise the same result."""
OF_RANKS = ("process_group", "rank", "world", "grad_worker_fraction", "rows", "distributed")
"""Parts of the names of arguments that may act on several ranks only."""
STEPS = 20
SWEEP_LIMIT = 12.0
"""Seconds of work for the search for a setting in which a hyperparameter acts."""
FLOATS = (0.5, 1e-7, 0.9, 1e6, 0.1, 1.0, 0.99, 2.0, 0.01, 0.0, -0.1)
FACTORS = (2.0, 0.5, 1e-3, 1e3, 10.0, 0.1, 1e6, 1e-6)
INTEGERS = (1, 2, 3, 5, 10, 0)


@THEME.add
def descends(subject: Subject) -> Verdict:
    """The loss on one batch falls to less than half in 200 steps, at one learning rate of several."""
    rates = [subject.lr * factor for factor in (1, 3, 10, 30, 0.1, 100, 0.01, 1000)] if subject.lr else [None]
    worst = None
    for rate in rates:
        change = "" if rate is None else f"lr={rate:.3g}"
        verdict = subject.holds(
            f"""
            step, (model, optimizer) = 0, new({change})
            x = {{batch}}
            before = {{loss}}.item()
            train(model, optimizer, [0] * 200)
            after = {{loss}}.item()
            assert after < before / 2, f"the loss goes from {{before:.3g}} to {{after:.3g}} in 200 steps ({change})"
            """,
            error="failed",
            compares="nothing",
        )
        if verdict.found == "held":
            return held(change)
        worst = worst or verdict
    assert worst is not None
    return worst


@THEME.add
def hyperparameters_act(subject: Subject) -> Verdict:
    """Each number among the hyperparameters changes the weights or the state, alone or with others changed."""
    untested = []
    deadline = process_time() + 3 * SWEEP_LIMIT
    for name, known in subject.signature.items():
        if any(part in name for part in SAME_RESULT) or (not subject.is_plain and name in OF_RANKS):
            continue
        found = [*others(subject.value(name), known.hint)]
        accepted = [value for value in found if _builds(subject, name, value)]
        alone = bool(accepted)
        accepted = accepted or found  # nesterov, for one, is refused without momentum
        if not accepted or any(part in name for part in OF_RANKS[:3] if part != "rank"):
            untested.append(name)
            continue
        acts, complete = _acts(subject, name, accepted, min(deadline, process_time() + SWEEP_LIMIT))
        if acts:
            continue
        # A flag or a choice may belong to a part that only a group turns on. An lr that is None by default is there for
        # the sake of the interface.
        if (
            isinstance(subject.value(name), bool | str)
            or not complete
            or not alone
            or (subject.value(name) is None and (known.hint is None or name == "lr"))
        ):
            untested.append(name)
            continue
        # Two equal runs differ if the result is random, so this would not be found dead.
        own, other = repr(subject.value(name)), repr(accepted[0])
        verdict = subject.holds(
            f"""
            one, other = (train(*new({name}=value), range({STEPS})) for value in ({own}, {other}))
            assert not torch.equal(one, other), "{name}={other} in place of {own} changes no bit"
            """,
            error="failed",
        )
        more = f", nor do {len(accepted) - 1} other values, or other settings beside them"
        return replace(verdict, statement=verdict.statement + more)
    return held(f"no effect seen in the settings tried: {', '.join(untested)}" if untested else "")


def others(value: Any, hint: Any) -> Iterator[Any]:
    """Yield other values of a hyperparameter, given its value and its annotation."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        yield from (choice for choice in choices if choice != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int) and float not in kinds:
        yield from dict.fromkeys(n for n in (*INTEGERS, value + 1, 2 * value, value // 2) if n != value)
    elif isinstance(value, int | float):
        yield from (value * factor for factor in FACTORS if value)
        yield from (number for number in FLOATS if number != value)
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            for changed in others(part, None) if part is not None else ():
                yield type(value)([*value[:index], changed, *value[index + 1 :]])
    elif value is None:
        yield from FLOATS if float in kinds or hint is None else ()
        yield from INTEGERS if int in kinds or hint is None else ()
        yield from (True, False) if bool in kinds else ()


def _builds(subject: Subject, name: str, value: Any, **changes: Any) -> bool:
    try:
        subject.train(*subject.new(**{name: value, **changes}), range(2))
    except Exception:  # noqa: BLE001  (whatever is raised, this value is not for use)
        return False
    return True


def _parts(subject: Subject, name: str, values: list[Any]) -> list[list[Any]]:
    """Return the values by the part of the hyperparameter that they change: the entries of a tuple act one by one."""
    own = subject.value(name)
    if not isinstance(own, tuple | list):
        return [values]
    parts = [[value for value in values if value[index] != own[index]] for index in range(len(own))]
    return [part for part in parts if part]


def _acts(subject: Subject, name: str, values: list[Any], deadline: float) -> tuple[bool, bool]:
    """Return whether each part of a hyperparameter acts, and whether all settings were tried."""
    for part in _parts(subject, name, values):
        acts, complete = _part_acts(subject, name, part, deadline)
        if not acts:
            values[:] = part
            return False, complete
    return True, True


def _part_acts(subject: Subject, name: str, values: list[Any], deadline: float) -> tuple[bool, bool]:
    own = subject.value(name)
    for context, kind in _settings(subject, name):
        one = _end(subject, kind, {**context, name: own})
        for value in values[: (len(values), 6, 1)[len(context)]]:
            other = _end(subject, kind, {**context, name: value})
            if one is not None and other is not None and not _same(one, other):
                return True, True
            if process_time() > deadline:
                return False, False
    return False, True


def _settings(subject: Subject, name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield changes of other hyperparameters and kinds of training, one at a time, then pairs of such changes."""
    yield from (({}, kind) for kind in _trajectories(subject))
    contexts = [*_contexts(subject, name)]
    yield from ((context, {}) for context in contexts)
    for one, other in combinations(contexts, 2):
        if one.keys() != other.keys():
            yield {**one, **other}, {}


def _contexts(subject: Subject, name: str) -> Iterator[dict[str, Any]]:
    """Yield changes of one other hyperparameter at a time."""
    for other, known in subject.signature.items():
        if other == name or any(part in other for part in SAME_RESULT):
            continue
        tried = 0
        for value in others(subject.value(other), known.hint):
            if tried < 3 and _builds(subject, other, value):
                tried += 1
                yield {other: value}


def _trajectories(subject: Subject) -> Iterator[dict[str, Any]]:
    """Yield lengths, scales of the loss, precisions and models in which a hyperparameter may act."""
    yield {}
    yield {"scale": 1e-6}
    yield {"scale": 1e4}
    if subject.takes_dense:
        yield {"dtype": torch.bfloat16}
        yield {"task": CONVOLUTION}
        yield {"task": NORM}


def _end(subject: Subject, kind: Mapping[str, Any], changes: Mapping[str, Any]) -> list[Any] | None:
    """Return the weights and the state after some steps; None if the setting is refused."""
    new, train = subject.functions(kind.get("task"))
    try:
        model, optimizer = new(dtype=kind.get("dtype", torch.float32), **changes)
        weights = train(model, optimizer, range(STEPS), kind.get("scale", 1.0))
        return [weights, *tree_leaves(optimizer.state_dict()["state"])]
    except Exception:  # noqa: BLE001  (this setting is not for use)
        return None


def _same(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return False
    return all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        if isinstance(a, Tensor) and isinstance(b, Tensor)
        else type(a) is type(b) and (not isinstance(a, int | float | str) or a == b)
        for a, b in zip(one, other, strict=True)
    )


BAD: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("lr", (-1.0,)),
    ("weight_decay", (-1.0,)),
    ("momentum", (-0.5,)),
    ("betas", (-0.5, 1.5)),
    ("beta1", (-0.5, 1.5)),
    ("beta2", (-0.5, 1.5)),
)
"""Values that no optimizer can use, by name."""


@THEME.add
def bad_values_are_refused(subject: Subject) -> Verdict:
    """A negative lr, weight_decay or momentum, and betas outside [0, 1], raise an error at construction."""
    tried = []
    for name, values in BAD:
        if name not in subject.signature or (subject.kind == "method" and name == "lr"):
            continue
        own, cases = subject.value(name), list[Any](values)
        if name == "betas":
            if not isinstance(own, tuple | list):
                continue
            cases = [(*own[:i], value, *own[i + 1 :]) for i in range(len(own)) for value in values]
        elif not isinstance(own, float | int) or isinstance(own, bool):
            continue
        tried.append(name)
        for value in cases:
            verdict = subject.holds(
                f"""
                try:
                    new({name}={value!r})
                except Exception:
                    raise SystemExit
                assert False, "{name}={value!r} is accepted"
                """,
                compares="nothing",
            )
            if verdict.found == "failed":
                return verdict
    return held(", ".join(tried)) if tried else inapplicable("it has none of these hyperparameters.")


@THEME.add
def unknown_names_are_refused(subject: Subject) -> Verdict:
    """An argument of a name that the optimizer does not know raises an error."""
    return subject.holds(
        """
        try:
            new(weight_decya=0.1)
        except Exception:
            raise SystemExit
        assert False, "weight_decya=0.1 is accepted"
        """,
        compares="nothing",
    )


NO_RATE = "it has no learning rate that is a number."


@THEME.add
def a_changed_lr_is_used(subject: Subject) -> Verdict:
    """A learning rate that a scheduler sets in the group changes the next steps."""
    if not subject.lr:
        return inapplicable(NO_RATE)
    return subject.holds(
        f"""
        ends = []
        for rate in ({subject.lr!r}, {subject.lr / 4!r}):
            model, optimizer = new()
            train(model, optimizer, range(4))
            optimizer.param_groups[0]["lr"] = rate
            ends.append(train(model, optimizer, range(4, 16)))
        assert not torch.equal(*ends), "a quarter of the learning rate from step 4 on changes no bit of the weights"
        """,
        error="failed",
    )


@THEME.add
def lr_can_be_a_tensor(subject: Subject) -> Verdict:
    """A learning rate given as a tensor trains as the number does."""
    if not subject.lr:
        return inapplicable(NO_RATE)
    tolerance = max(1e-2, subject.rounding)  # Muons iterate in bfloat16, and each way rounds on its own
    return subject.holds(
        f"""
        start = train(*new(dtype=torch.float64), [])
        number = train(*new(dtype=torch.float64, lr={subject.lr!r}), range(8)) - start
        rate = torch.tensor({subject.lr!r}, dtype=torch.float64)
        tensor = train(*new(dtype=torch.float64, lr=rate), range(8)) - start
        error = ((tensor - number).norm() / number.norm()).item()
        assert error < {tolerance!r}, f"with lr as a tensor the weights move elsewhere, off by {{error:.2g}}"
        """,
        compares="numbers",
    )


@THEME.add
def a_tensor_lr_is_read_at_each_step(subject: Subject) -> Verdict:
    """A learning rate given as a tensor and changed in place changes the next steps."""
    if not subject.lr:
        return inapplicable(NO_RATE)
    model, optimizer = subject.new()
    subject.train(model, optimizer, range(4))
    if optimizer.param_groups[0]["lr"] != subject.lr:
        return inapplicable("it sets the learning rate itself.")
    return subject.holds(
        f"""
        ends = []
        for rate in ({subject.lr!r}, {subject.lr / 4!r}):
            model, optimizer = new(lr=(lr := torch.tensor({subject.lr!r})))
            train(model, optimizer, range(4))
            lr.fill_(rate)
            ends.append(train(model, optimizer, range(4, 16)))
        assert not torch.equal(*ends), "a tensor lr that is filled with a quarter at step 4 changes no bit"
        """,
    )


@THEME.add
def maximize_climbs(subject: Subject) -> Verdict:
    """With ``maximize`` and the negative loss, the weights are the same to the last bit."""
    if "maximize" not in subject.signature:
        return inapplicable("it has no maximize.")
    return subject.holds(
        """
        change = (train(*new(maximize=True), range(8), -1.0) - train(*new(), range(8))).abs().max().item()
        assert change == 0, f"maximize on the negative loss moves the weights elsewhere, by {change:.2g}"
        """
    )


@THEME.add
def a_closure_is_evaluated_once(subject: Subject) -> Verdict:
    """A closure is called once a step, with gradients enabled, and its loss is returned."""
    if subject.by_closure and subject.is_plain:
        return inapplicable("it needs a closure, and may evaluate it several times.")
    return subject.holds(
        """
        (model, optimizer), calls, step = new(), [], 0
        def closure():
            calls.append(torch.is_grad_enabled())
            x = {batch}
            with torch.enable_grad():
                (loss := {loss}).backward()
            return loss
        returned = optimizer.step(closure)
        assert calls == [True], f"a step calls its closure {len(calls)} times, with gradients enabled: {calls}"
        assert returned is not None, "a step with a closure does not return its loss"
        """,
        compares="nothing",
    )
