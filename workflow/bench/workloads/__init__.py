"""The workloads: each is a module of this folder and a schema of its parameters in workflow/schemas/workloads.

The schemas' folder is the list of workloads. Only `create`, `architecture` and `display_names` import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from workflow.bench import data
from workflow.bench.support import config

if TYPE_CHECKING:
    from torch import nn

    from workflow.bench.workloads.base import Workload

_SUFFIX = ".schema.yaml"

NAMES = tuple(sorted(path.name.removesuffix(_SUFFIX) for path in (config.SCHEMAS / "workloads").glob(f"*{_SUFFIX}")))


def parameters(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a workload's parameters, with their defaults.

    Raises:
        ValueError: no workload has this name.
    """
    if name not in NAMES:
        raise ValueError(f"workload {name!r}: {config.did_you_mean(name, NAMES)}")
    return config.schema(f"workloads/{name}")["parameters"]


def resolve(name: str, **given: Any) -> dict[str, Any]:
    """Return the value of every parameter of a workload: those ``given``, and the defaults of the others.

    Raises:
        ValueError: a name or value is wrong; the message is one line.
    """
    schema = parameters(name)
    config.check(given, schema, f"workload {name}")
    return config.with_defaults(given, schema)


def data_version(name: str, **given: Any) -> str:
    """Return the version of a workload's data, such as "scikit-learn 1.9.1, v1", which is part of a run's spec."""
    return data.version_of(resolve(name, **given)["dataset"])


def known_train_examples(name: str, **given: Any) -> int | None:
    """Return the number of a workload's training examples; None if it is known only once the data is read."""
    dataset = resolve(name, **given)["dataset"]
    return getattr(import_module(data.module_of(dataset)), "TRAIN_EXAMPLES", None)


def create(name: str, *, for_tuning: bool = False, **given: Any) -> Workload:
    """Return the workload ``name`` with its data loaded; for_tuning: see `Workload`.

    Raises:
        ConfigError: a name or value is wrong, or a batch has more examples than there are.
        workflow.bench.data.folder.DataNotFound: its data is not on this machine.
    """
    with _named(name):
        workload = _class(name)(resolve(name, **given), for_tuning=for_tuning)
        if workload.batch_size > workload.train_examples:
            examples = f"the number of training examples, {workload.train_examples}"
            raise ValueError(f"batch_size={workload.batch_size} must be at most {examples}.")
    return workload


def architecture(name: str, **given: Any) -> nn.Module:
    """Return a workload's model without loading its data, as `Workload.architecture` builds it.

    Raises:
        ConfigError: a name or value is wrong.
    """
    with _named(name):
        return _class(name).architecture(resolve(name, **given))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Raise a refusal by the workload ``name`` as a `ConfigError` that names it."""
    try:
        yield
    except config.ConfigError:
        raise
    except ValueError as problem:
        raise config.ConfigError(f"workload {name}: {problem}") from problem


def display_names(name: str, **given: Any) -> tuple[str, str]:
    """Return the names of a workload's model and data in tables, without loading the data.

    Raises:
        ValueError: a name or value is wrong; the message is one line.
    """
    return _class(name).shown_names(resolve(name, **given))


def _class(name: str) -> type[Workload]:
    """Return the one public subclass of `Workload` that the module of this name defines."""
    from workflow.bench.workloads.base import Workload  # not above: a plan is made without torch

    parameters(name)  # refuses an unknown name
    module = import_module(f"{__name__}.{name}")
    (workload,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Workload) and value.__module__ == module.__name__
    )
    return workload
