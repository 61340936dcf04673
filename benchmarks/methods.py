"""The methods that the benchmarks compare: every file of ``baselines/``, MKOR's windows, KAISA's inverse.

Nothing here imports a rival's package, so a missing one leaves the others measurable (`build_or_reason`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from baselines import CORE, build
from mkor_core import Preconditioner
from workflow.bench.plan.hyperparameters import read_signatures
from workflow.bench.probes._models import PERIOD_FIELDS
from workflow.bench.support.config import ConfigError, did_you_mean

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

FAILED: Final = "failed: "
"""How the reason begins for which something is left out that raised an exception; the exit status is then 1."""
RATE: Final = 1e-6
"""A learning rate at which weights hardly move, however often the same gradient is stepped."""
WINDOWS: Final = (4, 16, 64)
VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    **{f"mkor_w{window}": ("mkor", {"window": window}) for window in WINDOWS},
    "kaisa_inverse": ("kaisa", {"compute_method": "inverse"}),
}
"""Labels that differ from a method's defaults: the method's file, and what differs."""
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    # The factors are updated with every decomposition.
    "kaisa": {"factor_update_period": None},
    # It never leaves the training to its base, whatever the losses are.
    "mkor_h": {"warmup_steps": 10**9},
}
"""What the benchmarks set for a file's method, apart from learning rate and period."""
DEAR: Final = ("kaisa", "muon", "shampoo", "singd", "soap")
"""Files of methods that multiply or decompose factors, or gradients, several times."""
ON_REQUEST: Final = (
    *("adafisher", "b_kfac", "cgfac", "distributed_shampoo", "dp_kfac", "foof", "kl_shampoo", "kld_wrm", "mac"),
    *("mkor_muon", "nadamw", "newton_muon", "normuon", "psgd_kron", "rs_kfac", "schedule_free_adamw", "sketchy"),
    *("smac", "soap_muon", "thermo_kfac"),
)
"""Files of methods that are left out unless they are named: all together would leave no time for the true widths. The
field tier times and counts their steps."""


class BenchmarkMethod(NamedTuple):
    """A method with its hyperparameters, except the period of its updates."""

    label: str
    name: str
    """The name of its file."""
    hyperparameters: Mapping[str, Any]
    period_field: str | None
    """The hyperparameter that is the period of its updates; None if every step is alike."""
    is_second_order: bool

    def at(self, period: int) -> dict[str, Any]:
        """Return the hyperparameters with the period; a method without one has none to set."""
        return {**self.hyperparameters, **({} if self.period_field is None else {self.period_field: period})}


signatures = cache(read_signatures)


def labels() -> tuple[str, ...]:
    """Return the labels of all methods: MKOR's first, then the cheap rivals and last the dear ones.

    A variant follows its method. Where time does not suffice, the last ones are left out.
    """
    files = sorted(signatures(), key=lambda name: (name not in CORE, name in DEAR, name))
    return tuple(
        label for name in files for label in (name, *(label for label, (of, _) in VARIANTS.items() if of == name))
    )


def methods(chosen: Iterable[str] | None = None) -> list[BenchmarkMethod]:
    """Return the methods of some labels, by default of all but those `ON_REQUEST`.

    Raises:
        ConfigError: an unknown label.
    """
    known, found = labels(), []
    for label in [label for label in known if label not in ON_REQUEST] if chosen is None else chosen:
        if label not in known:
            raise ConfigError(f"optimizer = '{label}': unknown; {did_you_mean(label, known)}")
        name, changes = VARIANTS.get(label, (label, {}))
        signature = signatures()[name]
        period = next((key for key in PERIOD_FIELDS if key in signature.hyperparameters), None)
        values = {"lr": RATE, **DEFAULTS.get(name, {}), **changes}
        found.append(BenchmarkMethod(label, name, values, period, signature.order == "second"))
    return found


def build_or_reason(
    method: BenchmarkMethod, model: nn.Module, period: int
) -> tuple[Optimizer, Preconditioner | None] | str:
    """Return a model's optimizer and its preconditioner, if any; or, in words, which package is missing."""
    try:
        return build(method.name, model, method.at(period))
    except ModuleNotFoundError as error:
        return f"the package {error.name} is not installed"


def attempted(what: str, call: Callable[[], Result]) -> Result | str:
    """Return what a call returns; or why ``what`` is left out, as one method must not cost the others their times.

    A failure that nothing explains is logged with its traceback.
    """
    try:
        return call()
    except ModuleNotFoundError as error:
        return f"the package {error.name} is not installed"
    except torch.OutOfMemoryError:
        return "out of memory"
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        # A few rows at random weights give moments of low rank.
        return f"left out: a decomposition did not converge: {error}"
    except Exception as error:
        logger.exception("%s failed", what)
        return f"{FAILED}{error}"
