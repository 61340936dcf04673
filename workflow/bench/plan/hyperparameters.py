"""Which hyperparameters an optimizer takes, what they may be, and their values with all defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan.optimizer_signatures import COMPUTED, REQUIRED, Hyperparameter, Signature
from workflow.bench.support.config import check, did_you_mean, error, schema

#: In an experiment file: take the value that ``tune`` found.
TUNED: Final = "tuned"
DEFAULT_BASE: Final = "sgd"

Key = tuple[str | int, ...]


def takes(name: str, base: object, signatures: Mapping[str, Signature]) -> dict[str, Hyperparameter]:
    """Return the hyperparameters of the optimizer ``name``; a second-order one takes ``base`` and its base's too.

    An unknown ``base`` contributes none.
    """
    own = signatures[name]
    if own.order == "first":
        return dict(own.hyperparameters)
    first_order = tuple(sorted(name for name, found in signatures.items() if found.order == "first"))
    wrapped = signatures.get(str(base or DEFAULT_BASE))
    return {
        "base": Hyperparameter("base", choices=first_order, kinds=(), default=DEFAULT_BASE),
        **(wrapped.hyperparameters if wrapped and wrapped.order == "first" else {}),
        **own.hyperparameters,
    }


def check_value(
    file: Path, key: Key, optimizer: str, known: Mapping[str, Hyperparameter], name: str, value: Any
) -> None:
    """Raise `ConfigError` unless the optimizer takes ``name`` and ``value`` has its type and lies in its range."""
    if name not in known:
        must = f"unknown hyperparameter of {optimizer}; {did_you_mean(name, known)}"
        raise error(file, key, value, must)
    limits = schema("hyperparameters")["properties"].get(name, {})
    check(value, {**limits, **known[name].schema()}, file, key)


def check_space(
    file: Path,
    key: Key,
    optimizer: str,
    known: Mapping[str, Hyperparameter],
    space: Mapping[str, Mapping[str, Sequence[Any]]],
) -> None:
    """Raise `ConfigError` unless every end and choice of a tuning space is a value that the optimizer takes."""
    for name, ranges in space.items():
        for kind, values in ranges.items():
            for index, value in enumerate(values):
                check_value(file, (*key, name, kind, index), optimizer, known, name, value)
            if kind == "choices":
                continue
            if "number" not in known[name].kinds:
                raise error(file, (*key, name, kind), values, "is for real numbers; give 'choices'")
            if not values[0] < values[1]:
                raise error(file, (*key, name, kind), values, "must rise from its first end to its second")


def resolved(given: Mapping[str, Any], name: str, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return checked hyperparameters with the defaults of those that are not given, whole floats as floats."""
    known = takes(name, given.get("base"), signatures)
    values = {
        parameter: given.get(parameter, hyperparameter.default)
        for parameter, hyperparameter in known.items()
        if parameter in given or hyperparameter.default not in (REQUIRED, COMPUTED)
    }
    return {
        parameter: float(value)
        if "number" in known[parameter].kinds and isinstance(value, int) and not isinstance(value, bool)
        else value
        for parameter, value in values.items()
    }
