"""Every optimizer of the harness by its file's name: first-order ones, and methods that precondition one.

A file here (or mkor_core's mkor and mkor_h) is a method. A name that starts with an underscore is no method.

- A first-order file defines ``optimizer(parameters, *, lr, ...)``, or, if it must tell layers from other parameters,
  ``optimizer_for(model, *, lr, ...)``, which gets a `LayeredModel`. Its hyperparameters are keyword-only.
- A second-order file defines a `mkor_core.Method`, which preconditions a first-order one.
- Either may define ``LIMITS``: what it cannot do of the `CONTRACT`, and why.
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

from baselines._layered import LayeredModel
from baselines._ranges import refuse_bad_values
from baselines.eva import Eva
from baselines.hylo import HyLo
from baselines.kaisa import KAISA
from mkor_core import Method, Preconditioner

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
]

CONTRACT: Mapping[str, str] = {
    "micro_batches": "trains on k micro-batches a step as on the full batch",
    "data_parallel": "trains under DistributedDataParallel as one process trains on the full batch",
    "grad_scaler": "trains under a GradScaler as without",
}
"""What any optimizer does unless its file's ``LIMITS`` say why not."""

CORE = {"mkor": "mkor_core.mkor", "mkor_h": "mkor_core.mkor_h"}
DEFAULT_BASE = "sgd"


def available() -> tuple[str, ...]:
    """Return the names that `build` takes, sorted."""
    files = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return tuple(sorted({*CORE, *(name for name in files if not name.startswith("_"))}))


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

    hyperparameters: a method's fields, ``base`` (the name of a first-order optimizer, default sgd) and that base's
    parameters, all in one flat mapping; a torch dtype may be given by name.
    exclude, accumulation_steps, grad_scale: as `Preconditioner` takes them.

    Raises:
        ValueError: an unknown name, an unknown or missing hyperparameter, or a value out of range, by name.
    """
    cls = method_class(name)
    if cls is None:
        first_order = build_optimizer(
            name, model, hyperparameters, exclude=exclude, accumulation_steps=accumulation_steps
        )
        return first_order, None
    base = hyperparameters.get("base", DEFAULT_BASE)
    own = [field.name for field in fields(cls)]
    _refuse_unknown(f"{name} with base {base}", hyperparameters, [*own, "base", *_base_parameters(base)])
    method = cls(**{key: _value(value) for key, value in hyperparameters.items() if key in own})
    base_part = {key: value for key, value in hyperparameters.items() if key not in own and key != "base"}
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
    """Return a model's first-order optimizer by its file's name.

    exclude, accumulation_steps: as `build` takes them; for the files that tell layers from other parameters.

    Raises:
        ValueError: an unknown or second-order name, an unknown, missing or out-of-range hyperparameter.
    """
    make, takes_the_model = _maker(name)
    _refuse_unknown(name, hyperparameters, _base_parameters(name))
    refuse_bad_values(make, hyperparameters)
    subject = LayeredModel.of(model, exclude, accumulation_steps) if takes_the_model else model.parameters()
    try:
        return make(subject, **hyperparameters)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def limits(name: str) -> Mapping[str, str]:
    """Return what an optimizer cannot do of the `CONTRACT`, and why.

    Raises:
        ValueError: an unknown name.
    """
    found: Mapping[str, str] = getattr(_module(name), "LIMITS", {})
    return found


def method_class(name: str) -> type[Method] | None:
    """Return the `Method` that a second-order file defines; None for a first-order file.

    Raises:
        ValueError: an unknown name.
    """
    module = _module(name)
    own = (value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__)
    return next((cls for cls in own if issubclass(cls, Method)), None)


def _maker(name: str) -> tuple[Callable[..., Optimizer], bool]:
    """Return a first-order file's function, and whether it takes the model in place of its parameters."""
    module = _module(name)
    make = getattr(module, "optimizer", None) or getattr(module, "optimizer_for", None)
    if make is None:
        first_order = ", ".join(known for known in available() if method_class(known) is None)
        raise ValueError(f"base={name!r} is no first-order optimizer; there are {first_order}.")
    return make, make.__name__ == "optimizer_for"


def _base_parameters(name: str) -> list[str]:
    parameters = inspect.signature(_maker(name)[0]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _refuse_unknown(name: str, hyperparameters: Mapping[str, Any], accepted: Sequence[str]) -> None:
    for key in hyperparameters:
        if key not in accepted:
            raise ValueError(f"{name} has no hyperparameter {key!r}; it has {', '.join(accepted)}.")


def _module(name: str) -> ModuleType:
    if name not in available():
        raise ValueError(f"There is no optimizer {name!r}; there are {', '.join(available())}.")
    return import_module(CORE.get(name, f"baselines.{name}"))


def _value(value: Any) -> Any:
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return dtype if isinstance(dtype, torch.dtype) else value
