"""Hyperparameters of every optimizer for tests: found by the annotations, with values other than the defaults."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from baselines import method_class

FAST: dict[str, dict[str, Any]] = {
    "mkor": {"inverse_update_period": 2},
    "mkor_h": {"inverse_update_period": 2, "warmup_steps": 100},
    "kaisa": {"factor_update_period": 1, "inverse_update_period": 2},
    "hylo": {"update_period": 2},
    "shampoo": {"inverse_update_period": 2},
    "singd": {"update_period": 2},
    "soap": {"update_period": 2},
}
"""Periods short enough for tests of a few steps."""
LEARNING_RATES = {"lamb": 0.02, "adamw": 0.02, "hylo": 0.01, "muon": 0.02, "soap": 0.02}
OTHER_VALUES: dict[str, Any] = {
    "update_rule": "released",
    "factor_decay": 0.5,
    "inverse_update_period": 3,
    "factor_update_period": 3,
    "update_period": 3,
    "stabilizer_threshold": 0.5,
    "stabilizer_blend": 0.3,
    "factor_dtype": "bfloat16",
    "window": 3,
    "rank": 2,
    "damping": 0.7,
    "kl_clip": 1e-7,
    "compute_method": "inverse",
    "variant": "KID",
    "sample_fraction": 0.5,
    "knee_beta": 1e6,
    "warmup_steps": 3,
    "lr": 0.003,
    "momentum": 0.5,
    "weight_decay": 0.2,
    "beta1": 0.5,
    "beta2": 0.5,
    "eps": 1e-2,
    "max_grad_norm": 1e-3,
    "block_size": 4,
    "graft": "adagrad",
    "max_dimension": 4,
    "newton_schulz_steps": 2,
    "adamw_lr": 0.5,
    "factor_lr": 0.3,
    "factor_momentum": 0.1,
    "structure": "diagonal",
    "kfac_approx": "reduce",
    "loss_average": "batch+sequence",
}
ONLY_ON_SEVERAL_RANKS = {"grad_worker_fraction", "rows"}
NEEDS: dict[str, dict[str, Any]] = {
    "stabilizer_blend": {"stabilizer_threshold": 0.5},
    "knee_beta": {"warmup_steps": 3},
    "warmup_steps": {"knee_beta": 1e6},
}


def options(name: str, **changes: Any) -> dict[str, Any]:
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
        return not self.default if self.hint is bool else OTHER_VALUES[key]


def hyperparameters(name: str) -> dict[str, Hyperparameter]:
    cls = method_class(name)
    if cls is not None:
        hints = get_type_hints(cls, include_extras=True)
        return {f.name: Hyperparameter(hints[f.name], f.default) for f in fields(cls) if f.default is not MISSING}
    module = import_module(f"baselines.{name}")
    make = getattr(module, "optimizer", None) or module.optimizer_for
    hints, parameters = get_type_hints(make, include_extras=True), inspect.signature(make).parameters.values()
    return {p.name: Hyperparameter(hints[p.name], p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
