"""The optimizers that probes measure, by label.

A label is the name of a file in ``baselines/`` (or mkor, mkor_h), `BASE`, or a key of `VARIANTS`. Each probe lists the
labels that it measures by default in its ``OPTIMIZERS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import torch

from baselines import available, limits, method_class
from mkor_core import Method
from workflow.bench.probes._models import ProbeModel
from workflow.bench.support.config import ConfigError, did_you_mean

BASE: Final = "base"
"""The label of a model's own first-order optimizer."""
PERIOD: Final = 10
"""Steps between refreshes, for every method that has such a period; the paper's for MKOR."""
PERIOD_FIELDS: Final = ("inverse_update_period", "update_period")
"""The hyperparameters that are such a period; a method has at most one of them."""


class Variant(NamedTuple):
    """A method's file name, and the hyperparameters that differ from its defaults."""

    method: str
    hyperparameters: Mapping[str, Any]


VARIANTS: Final[Mapping[str, Variant]] = {
    "mkor": Variant("mkor", {"update_rule": "sherman_morrison"}),
    "mkor_released": Variant("mkor", {"update_rule": "released"}),
    "mkor_bfloat16": Variant("mkor", {"update_rule": "sherman_morrison", "factor_dtype": torch.bfloat16}),
    "mkor_windowed": Variant("mkor", {"update_rule": "sherman_morrison", "window": 4}),
    # None updates the factors with every decomposition.
    "kaisa": Variant("kaisa", {"factor_update_period": None}),
    "kaisa_inverse": Variant("kaisa", {"factor_update_period": None, "compute_method": "inverse"}),
    # MEM-OPT: max(1, ranks * fraction) = 1 gradient worker for each layer.
    "kaisa_mem_opt": Variant("kaisa", {"factor_update_period": None, "grad_worker_fraction": 1e-9}),
}
"""Labels with hyperparameters that differ from a method's defaults. Other labels, names of files, mean the defaults."""


@dataclass(frozen=True)
class TimedOptimizer:
    """An optimizer with all its hyperparameters."""

    label: str
    method: str
    """The name of its file."""
    hyperparameters: Mapping[str, Any]

    @property
    def update_rule(self) -> str | None:
        """MKOR's update rule; None for any other method."""
        rule: str | None = self.hyperparameters.get("update_rule")
        return rule

    @property
    def period(self) -> int | None:
        """Steps between refreshes; None if the method has no such period."""
        periods = (self.hyperparameters[name] for name in PERIOD_FIELDS if name in self.hyperparameters)
        return next(periods, None)

    def runs_on(self, workers: int) -> bool:
        """Return whether the optimizer can train on this number of ranks."""
        return workers == 1 or "data_parallel" not in limits(self.method)


def check_labels(labels: Sequence[str]) -> Sequence[str]:
    """Return the labels if all are known.

    Raises:
        ConfigError: no variant and no file in ``baselines/`` has one of the names.
    """
    known = {BASE, *VARIANTS, *available()}
    for label in labels:
        if label not in known:
            raise ConfigError(f"optimizer = '{label}': unknown; {did_you_mean(label, known)}")
    return labels


def variant_of(label: str) -> Variant:
    """Return the variant that a label stands for."""
    return VARIANTS.get(label, Variant(label, {}))


def method_of(label: str, period: int | None = None) -> Method | None:
    """Return the second-order method of a label; None for a first-order optimizer.

    period: of its refreshes, if it has such a period; None leaves the method's default.
    """
    variant = variant_of(label)
    cls = None if label == BASE else method_class(variant.method)
    if cls is None:
        return None
    name = None if period is None else period_field(variant.method)
    return cls(**variant.hyperparameters, **({} if name is None else {name: period}))


def period_field(method: str) -> str | None:
    """Return the name of a second-order method's refresh period; None if it has none or is first-order."""
    cls = method_class(method)
    names = [] if cls is None else [field.name for field in fields(cls)]
    return next((name for name in PERIOD_FIELDS if name in names), None)


def optimizers(
    model: ProbeModel, lr: float, labels: Iterable[str], period: int | None = PERIOD
) -> list[TimedOptimizer]:
    """Return the optimizers of a model; second-order methods wrap its base optimizer and refresh every ``period``.

    period: None leaves each method's default.
    """
    base = {"lr": lr, **({"momentum": 0.9} if model.base == "sgd" else {})}
    return [
        TimedOptimizer(model.base, model.base, base)
        if label in (BASE, model.base)
        else _timed_optimizer(label, model.base, base, period)
        for label in labels
    ]


def _timed_optimizer(label: str, base_name: str, base: Mapping[str, Any], period: int | None) -> TimedOptimizer:
    variant = variant_of(label)
    if method_class(variant.method) is None:
        return TimedOptimizer(label, variant.method, {"lr": base["lr"], **variant.hyperparameters})
    values = {"base": base_name, **base, **variant.hyperparameters}
    name = period_field(variant.method)
    if name is not None and period is not None:
        values[name] = period
    return TimedOptimizer(label, variant.method, values)
