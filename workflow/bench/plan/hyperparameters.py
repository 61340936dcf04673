"""The hyperparameters that an optimizer takes, checks of their values, and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan.optimizer_signatures import COMPUTED, REQUIRED, Hyperparameter, Signature, base_hyperparameter
from workflow.bench.support.config import did_you_mean, error

TUNED: Final = "tuned"
"""The word in an experiment file that stands for the value that ``tune`` found."""

Key = tuple[str | int, ...]


def accepted(name: str, base: object, signatures: Mapping[str, Signature]) -> dict[str, Hyperparameter]:
    """Return the hyperparameters of the optimizer ``name``.

    A second-order optimizer also takes ``base`` and the hyperparameters of that base; an unknown base has none.
    """
    signature = signatures[name]
    if signature.order == "first":
        return dict(signature.hyperparameters)
    choice = base_hyperparameter(signatures)
    wrapped = signatures.get(str(base or choice.default))
    return {
        choice.name: choice,
        **(wrapped.hyperparameters if wrapped and wrapped.order == "first" else {}),
        **signature.hyperparameters,
    }


def check_value(
    file: Path, key: Key, optimizer: str, known: Mapping[str, Hyperparameter], name: str, value: Any
) -> None:
    """Raise `ConfigError` unless the optimizer takes ``name``, and ``value`` has its type and lies in its range."""
    if name not in known:
        raise error(file, key, value, f"unknown hyperparameter of {optimizer}; {did_you_mean(name, known)}")
    if must := known[name].domain.refusal(value, none="null"):
        raise error(file, key, value, must)


def check_space(
    file: Path,
    key: Key,
    optimizer: str,
    known: Mapping[str, Hyperparameter],
    space: Mapping[str, Mapping[str, Sequence[Any]]],
) -> None:
    """Raise `ConfigError` unless the optimizer takes every end and choice of a tuning space."""
    for name, intervals in space.items():
        for kind, values in intervals.items():
            for index, value in enumerate(values):
                check_value(file, (*key, name, kind, index), optimizer, known, name, value)
            if kind in ("choices", "grid"):
                continue
            if not known[name].domain.is_real:
                raise error(file, (*key, name, kind), values, "needs real numbers; give 'choices'")
            if not values[0] < values[1]:
                raise error(file, (*key, name, kind), values, "the first end must be less than the second")


def resolved(given: Mapping[str, Any], name: str, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return checked hyperparameters with defaults filled in, and integers as floats where a real number is meant."""
    known = accepted(name, given.get("base"), signatures)
    return {
        parameter: hyperparameter.domain.converted(given.get(parameter, hyperparameter.default))
        for parameter, hyperparameter in known.items()
        if parameter in given or hyperparameter.default not in (REQUIRED, COMPUTED)
    }
