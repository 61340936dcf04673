"""Hyperparameters of every optimizer for tests: found by the annotations, with values other than the defaults."""

from __future__ import annotations

import inspect
import random
from dataclasses import MISSING, fields
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from torch import nn

from baselines import DEFAULT_BASE, available, build, method_class, module_of
from mkor_core.ranges import Domain, OneOf

FAST: dict[str, dict[str, Any]] = {
    "adafisher": {"factor_update_period": 2, "damping": 0.1},
    "dp_kfac": {"factor_update_period": 1, "inverse_update_period": 2, "factor_decay": 0.9},
    "mkor": {"inverse_update_period": 2},
    "mkor_h": {"inverse_update_period": 2, "warmup_steps": 100},
    "kld_wrm": {"damping": 1.0, "factor_decay": 0.8},
    "kaisa": {"factor_update_period": 1, "inverse_update_period": 2},
    "cgfac": {"iterations": 3},
    "hylo": {"update_period": 2},
    "shampoo": {"inverse_update_period": 2},
    "singd": {"update_period": 2},
    "soap": {"update_period": 2},
    "thermo_kfac": {"factor_update_period": 1, "inverse_update_period": 2},
    "kl_shampoo": {"update_period": 2},
    "newton_muon": {"update_period": 1},
    "mkor_muon": {"inverse_update_period": 2},
    "soap_muon": {"update_period": 2},
    "mac": {"factor_update_period": 1, "inverse_update_period": 2},
    "smac": {"factor_update_period": 1, "inverse_update_period": 2},
    "foof": {"factor_update_period": 1, "inverse_update_period": 2, "damping": 0.1},
    "rs_kfac": {"factor_update_period": 1, "inverse_update_period": 2},
    "b_kfac": {"factor_update_period": 1},
    "distributed_shampoo": {"inverse_update_period": 2, "first_inverse_update": 2},
}
"""Periods short enough for tests of a few steps, and what a method needs to learn in them.

CG-FAC has few iterations, since more would amplify the rounding of sums in another order."""
ADAPTIVE = (
    *("adamw", "distributed_shampoo", "kl_shampoo", "lamb", "muon", "nadamw", "normuon", "psgd_kron", "soap"),
    "soap_muon",
)
LEARNING_RATES = {
    **dict.fromkeys(ADAPTIVE, 0.02),
    "cgfac": 0.002,
    "hylo": 0.01,
    "schedule_free_adamw": 0.05,
    "sketchy": 0.001,  # its first updates are about 30 times as long as later ones
    "rs_kfac": 0.3,
    "b_kfac": 0.3,
}
OTHER_VALUES: dict[str, Any] = {
    "stabilizer_blend": 0.3,
    "factor_dtype": "bfloat16",
    "rank": 2,
    "gradient_norm": 3.0,
    "gradient_scale": 64.0,
    "damping": 0.7,
    "kl_clip": 1e-7,
    "knee_beta": 1e6,
    "lr": 0.003,
    "weight_decay": 0.2,
    "eps": 1e-2,
    "max_grad_norm": 1e-3,
    "block_size": 16,
    "graft": "adagrad",
    "max_dimension": 4,
    "newton_schulz_steps": 2,
    "factor_lr": 0.3,
    "factor_momentum": 0.1,
    "structure": "diagonal",
    "rms_clip": 1e-3,
    "subproblem": "Q",
    "iterations": 2,
    "inverse_temperature": 100.0,
    "duration": 3.0,
    "bits": 4,
    "trajectory_steps": 20,
    "power": 0.75,
    "power_steps": 1,
    "overwrite_period": 2,
    "update_clip": 0.1,
    "update_probability": 0.3,
    "row_decay": 0.3,
    "first_inverse_update": 5,
}
"""Values other than the default, where it is not the last choice, 3 or 0.5 (`Hyperparameter.other_value`)."""
ONLY_ON_SEVERAL_RANKS = {"grad_worker_fraction", "rows"}
NEEDS: dict[str, dict[str, Any]] = {
    "decoupled_decay": {"weight_decay": 0.2},
    "rms_clip": {"subproblem": "Q"},
    "stabilizer_blend": {"stabilizer_threshold": 0.5},
    "knee_beta": {"warmup_steps": 3},
    "warmup_steps": {"knee_beta": 1e6},
    "tail_decay": {"rank": 3},
    "sketch": {"rank": 2},
    "power_steps": {"rank": 2},
    "overwrite_period": {"rank": 2},
}


COMBINATIONS = 5
"""Settings that `variations` draws in which several hyperparameters of an optimizer differ from the defaults."""


def options(name: str, **changes: Any) -> dict[str, Any]:
    """Return hyperparameters with short periods and a learning rate at which the optimizer trains small models."""
    return {"lr": LEARNING_RATES.get(name, 0.05), **FAST.get(name, {}), **changes}


class Hyperparameter(NamedTuple):
    """The annotation and the default of a hyperparameter, without those of the base."""

    annotation: Any
    default: Any

    @property
    def hint(self) -> Any:
        """The annotation without its range."""
        return get_args(self.annotation)[0] if get_origin(self.annotation) is Annotated else self.annotation

    def other_value(self, key: str) -> Any:
        """Return a value other than the default."""
        domain = Domain.of(self.annotation)
        if key in OTHER_VALUES:
            return OTHER_VALUES[key]
        if self.hint is bool or isinstance(domain.limit, OneOf):
            return self.states(key)[-1]
        return 3 if int in domain.types else 0.5

    def states(self, key: str) -> list[Any]:
        """Return the values other than the default that may change which state an optimizer has, or when it changes.

        These are the other choices, another integer (a period, a size), and the values that turn a part on or off.
        """
        domain = Domain.of(self.annotation)
        if self.hint is bool:
            return [not self.default]
        if isinstance(domain.limit, OneOf):
            return [value for value in domain.limit.values if str(value) != str(self.default).removeprefix("torch.")]
        is_off = self.default is None or self.default == 0
        other = [self.other_value(key)] if is_off or int in domain.types else []
        return [*other, *(end for end in (None, 0.0) if not is_off and domain.refusal(end) is None)]


def variations(name: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """Return settings of an optimizer that together have each kind of state that it can have, by description.

    These are the defaults with short periods and ``changes``, each other value of a hyperparameter
    (`Hyperparameter.states`) and each other base, one at a time, and up to `COMBINATIONS` of several at random.
    """
    plain = options(name, **changes)
    others = {
        key: known.states(key) for key, known in hyperparameters(name).items() if key not in ONLY_ON_SEVERAL_RANKS
    }
    if method_class(name) is not None:
        others["base"] = [base for base in available() if method_class(base) is None and base != DEFAULT_BASE]
    found = {name: plain}
    for key, values in others.items():
        for value in values:
            found[f"{name} {key}={value}"] = {**plain, **NEEDS.get(key, {}), key: value}
    rng = random.Random(name)
    for _ in range(COMBINATIONS):
        chosen = {key: rng.choice(values) for key, values in others.items() if values and rng.random() < 0.5}
        if _is_accepted(name, {**plain, **chosen}):
            found[" ".join([name, *(f"{key}={value}" for key, value in chosen.items())])] = {**plain, **chosen}
    return found


def _is_accepted(name: str, chosen: dict[str, Any]) -> bool:
    """Return whether an optimizer takes these values together."""
    try:
        build(name, nn.Linear(2, 2), chosen)
    except ValueError:
        return False
    return True


def hyperparameters(name: str) -> dict[str, Hyperparameter]:
    cls = method_class(name)
    if cls is not None:
        hints = get_type_hints(cls, include_extras=True)
        return {f.name: Hyperparameter(hints[f.name], f.default) for f in fields(cls) if f.default is not MISSING}
    module = module_of(name)
    make = getattr(module, "optimizer", None) or module.optimizer_for
    hints, parameters = get_type_hints(make, include_extras=True), inspect.signature(make).parameters.values()
    return {p.name: Hyperparameter(hints[p.name], p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
