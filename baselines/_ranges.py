"""Ranges of the first-order optimizers' hyperparameters, by name: one line for a bad value, whatever the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mkor_core.method import require, require_decay, require_period, require_positive


def _require_share(name: str, value: Any) -> None:
    require(isinstance(value, int | float) and 0 <= value < 1, name, value, "lie in [0, 1)")


def _require_not_negative(name: str, value: Any) -> None:
    require(isinstance(value, int | float) and 0 <= value < math.inf, name, value, "be a finite number, 0 or more")


MUST: Mapping[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("lr", "adamw_lr", "factor_lr", "eps", "damping", "max_grad_norm"), require_positive),
    **dict.fromkeys(("momentum", "factor_momentum", "beta1", "beta2"), _require_share),
    **dict.fromkeys(
        ("inverse_update_period", "update_period", "block_size", "max_dimension", "newton_schulz_steps"), require_period
    ),
    "factor_decay": require_decay,
    "weight_decay": _require_not_negative,
}


def refuse_bad_values(function: Callable[..., Any], hyperparameters: Mapping[str, Any]) -> None:
    """Check values against `MUST`, and those of ``Literal`` parameters against their choices.

    function: what the hyperparameters are meant for; its annotations tell the choices and whether None is allowed.

    Raises:
        ValueError: the first bad value, by name.
    """
    hints = get_type_hints(function)
    for name, value in hyperparameters.items():
        if value is None and type(None) in get_args(hints[name]):
            continue
        if get_origin(hints[name]) is Literal:
            choices = get_args(hints[name])
            require(value in choices, name, value, f"be one of {', '.join(choices)}")
        elif name in MUST:
            MUST[name](name, value)
