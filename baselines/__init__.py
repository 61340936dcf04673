"""Every optimizer of the harness, by file name: first-order optimizers, and methods that precondition one.

Each file of this package and of its `FAMILIES`, and mkor_core's mkor and mkor_h, is an optimizer, unless its name
starts with an underscore. A new one may lie in any of these folders; `baselines.parts` holds what several share.

- A first-order file defines ``optimizer(parameters, *, lr, ...)`` or, to treat layers and other parameters
  differently, ``optimizer_for(model, *, lr, ...)``, which gets a `LayeredModel`. Its hyperparameters are keyword-only.
- A second-order file defines a `mkor_core.Method`, which preconditions a first-order optimizer. If it defines several,
  the last is the optimizer.
- Annotations declare types and ranges of hyperparameters (`mkor_core.ranges`).
- A first-order file defines ``COMPLEX_WEIGHTS = True`` if it trains complex weights as pairs of real numbers; otherwise
  they are refused.
- Either kind may define ``LIMITS``: the points of the `CONTRACT` that it does not meet, and the reasons.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from baselines.kfac.kaisa import KAISA
from baselines.natural.eva import Eva
from baselines.natural.hylo import HyLo
from baselines.parts.layered import LayeredModel
from mkor_core import Method, Preconditioner
from mkor_core.ranges import checked_values

__all__ = [
    "CONTRACT",
    "KAISA",
    "Eva",
    "HyLo",
    "LayeredModel",
    "available",
    "build",
    "build_optimizer",
    "limits",
    "method_class",
    "module_of",
    "takes_complex_weights",
]

CONTRACT: Mapping[str, str] = {
    "micro_batches": "trains on k micro-batches per step as on the full batch",
    "data_parallel": "trains under DistributedDataParallel as one process trains on the full batch",
    "grad_scaler": "trains under a GradScaler as without",
}
"""The points that every optimizer meets unless its file's ``LIMITS`` give a reason."""

# The plan reads these three without importing this package: they must be literals.
FAMILIES = ("first_order", "muon", "shampoo", "kfac", "natural")
"""Folders of this package with optimizers."""
CORE = {"mkor": "mkor_core.mkor", "mkor_h": "mkor_core.mkor_h"}
"""Optimizers that are defined outside this package, and their modules."""
DEFAULT_BASE = "sgd"
"""The first-order optimizer that a second-order one preconditions if its hyperparameters name none."""


def available() -> tuple[str, ...]:
    """Return the names that `build` accepts, sorted."""
    return tuple(sorted(_modules()))


def build(
    name: str,
    model: nn.Module,
    hyperparameters: Mapping[str, Any],
    *,
    exclude: str | nn.Module | Iterable[str | nn.Module] = (),
    accumulation_steps: int = 1,
    grad_scale: Any = 1.0,
) -> tuple[Optimizer, Preconditioner | None]:
    """Return a model's optimizer and, for a second-order method, the preconditioner attached to it.

    Args:
        name: one of `available`.
        model: the model to train.
        hyperparameters: the fields of a method, ``base`` (the name of a first-order optimizer, sgd by default) and the
            base's parameters, in one flat mapping. A torch dtype may be given by name.
        exclude: as in `Preconditioner`.
        accumulation_steps: as in `Preconditioner`.
        grad_scale: as in `Preconditioner`.

    Raises:
        ValueError: an unknown name, an unknown or missing hyperparameter, a value out of range, or complex weights that
            the optimizer does not take, by name.
    """
    method_type = method_class(name)
    if method_type is None:
        first_order = build_optimizer(
            name, model, hyperparameters, exclude=exclude, accumulation_steps=accumulation_steps
        )
        return first_order, None
    base = hyperparameters.get("base", DEFAULT_BASE)
    method_names = [field.name for field in fields(method_type)]
    _refuse_unknown(f"{name} with base {base}", hyperparameters, [*method_names, "base", *_parameter_names(base)])
    method = method_type(**{key: _as_dtype(value) for key, value in hyperparameters.items() if key in method_names})
    base_part = {key: value for key, value in hyperparameters.items() if key not in (*method_names, "base")}
    optimizer = build_optimizer(base, model, base_part, exclude=exclude, accumulation_steps=accumulation_steps)
    preconditioner = Preconditioner(
        model, method, exclude=exclude, accumulation_steps=accumulation_steps, grad_scale=grad_scale
    )
    return optimizer, preconditioner.attach(optimizer)


def build_optimizer(
    name: str,
    model: nn.Module,
    hyperparameters: Mapping[str, Any],
    *,
    exclude: str | nn.Module | Iterable[str | nn.Module] = (),
    accumulation_steps: int = 1,
) -> Optimizer:
    """Return a model's first-order optimizer by file name.

    exclude and accumulation_steps are those of `build`; only files that define ``optimizer_for`` use them.

    Raises:
        ValueError: an unknown or second-order name, an unknown, missing or out-of-range hyperparameter, or complex
            weights that the optimizer does not take.
    """
    function, takes_model = _optimizer_function(name)
    _refuse_unknown(name, hyperparameters, _parameter_names(name))
    complex_weights = [key for key, parameter in model.named_parameters() if parameter.is_complex()]
    if complex_weights and not takes_complex_weights(name):
        raise ValueError(
            f"{name} does not take complex weights such as {complex_weights[0]!r}: use pairs of real ones."
        )
    subject = LayeredModel.of(model, exclude, accumulation_steps) if takes_model else model.parameters()
    values = checked_values(function, hyperparameters)
    try:
        return function(subject, **values)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def limits(name: str) -> Mapping[str, str]:
    """Return the points of the `CONTRACT` that an optimizer does not meet, and the reasons.

    Raises:
        ValueError: an unknown name.
    """
    declared: Mapping[str, str] = getattr(module_of(name), "LIMITS", {})
    return declared


def takes_complex_weights(name: str) -> bool:
    """Return whether a first-order optimizer trains complex weights as pairs of real numbers.

    Raises:
        ValueError: an unknown name.
    """
    return bool(getattr(module_of(name), "COMPLEX_WEIGHTS", False))


def method_class(name: str) -> type[Method] | None:
    """Return the `Method` that a second-order file defines; None for a first-order file.

    Raises:
        ValueError: an unknown name.
    """
    module = module_of(name)
    methods = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and issubclass(value, Method)
    ]
    return methods[-1] if methods else None


def _optimizer_function(name: str) -> tuple[Callable[..., Optimizer], bool]:
    """Return a first-order file's function, and whether it takes the model in place of its parameters."""
    module = module_of(name)
    function = getattr(module, "optimizer", None) or getattr(module, "optimizer_for", None)
    if function is None:
        first_order = ", ".join(known for known in available() if method_class(known) is None)
        raise ValueError(f"base={name!r} is not a first-order optimizer; choose one of {first_order}.")
    return function, function.__name__ == "optimizer_for"


def _parameter_names(name: str) -> list[str]:
    parameters = inspect.signature(_optimizer_function(name)[0]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _refuse_unknown(name: str, hyperparameters: Mapping[str, Any], accepted: Sequence[str]) -> None:
    for key in hyperparameters:
        if key not in accepted:
            raise ValueError(f"{name} has no hyperparameter {key!r}; it has {', '.join(accepted)}.")


def _modules() -> dict[str, str]:
    """Return the dotted names of the optimizers' modules, by the optimizers' names."""
    modules = dict(CORE)
    for package in (__name__, *(f"{__name__}.{family}" for family in FAMILIES)):
        folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
        modules |= {file.stem: f"{package}.{file.stem}" for file in folder.glob("[!_]*.py")}
    return modules


def module_of(name: str) -> ModuleType:
    """Return the module that defines an optimizer.

    Raises:
        ValueError: an unknown name.
        ModuleNotFoundError: it needs a package that is not installed.
    """
    modules = _modules()
    if name not in modules:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(available())}.")
    try:
        return import_module(modules[name])
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(
            f"optimizer {name!r} needs the package {package!r}, which is not installed.", name=error.name
        ) from error


def _as_dtype(value: Any) -> Any:
    """Return the torch dtype of a name; any other value unchanged."""
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return dtype if isinstance(dtype, torch.dtype) else value
