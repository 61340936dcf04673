"""The workloads: each a module here, and a schema of its parameters in workflow/schemas/workloads.

Importing this imports no torch, and neither does anything here but `create`,
`architecture` and `described`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workflow.bench.support import config

if TYPE_CHECKING:
    from torch import nn

    from workflow.bench.workloads.base import Workload

_CLASSES = {
    "alexnet": "AlexNet",
    "autoencoder": "Autoencoder",
    "bert_classification": "BertClassification",
    "bert_pretraining": "BertPretraining",
    "bert_span": "BertSpan",
    "resnet20": "ResNet20",
    "resnet50": "ResNet50",
}
_DATASETS = {  # modules whose version() says what fixes the data
    "cifar10": "cifar",
    "cifar100": "cifar",
    "cola": "glue",
    "copy": "docstring_tasks",
    "digits": "digits",
    "docstrings": "corpus",
    "imagenet": "imagenet",
    "imdb": "imdb",
    "library": "docstring_tasks",
    "mnli": "glue",
    "mrpc": "glue",
    "package": "docstring_tasks",
    "qnli": "glue",
    "qqp": "glue",
    "quotes": "docstring_tasks",
    "rte": "glue",
    "similarity": "docstring_tasks",
    "squad": "squad",
    "sst2": "glue",
    "stsb": "glue",
    "text": "shards",
}

NAMES = tuple(sorted(_CLASSES))


def parameters(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a workload's parameters, with their defaults.

    Raises `ValueError` where there is no such workload.
    """
    if name not in _CLASSES:
        raise ValueError(f"workload {name!r}: {config.did_you_mean(name, NAMES)}")
    return config.schema(f"workloads/{name}")["parameters"]


def resolve(name: str, **given: Any) -> dict[str, Any]:
    """Return all parameters of a workload: those ``given``, and the defaults of the others.

    Raises `ValueError` with one line on a wrong name or value.
    """
    schema = parameters(name)
    config.check(given, schema, f"workload {name}")
    return {key: given.get(key, about["default"]) for key, about in schema["properties"].items()}


def data_version(name: str, **given: Any) -> str:
    """Return what fixes the workload's data, such as "scikit-learn 1.9.1, v1"; it goes into a run's spec."""
    return import_module(f"workflow.bench.data.{_DATASETS[resolve(name, **given)['dataset']]}").version()


def create(name: str, **given: Any) -> Workload:
    """Return the workload ``name``, its data loaded.

    Raises `ValueError` with one line on a wrong name or value, `workflow.bench.data.folder.DataNotFound` where
    its data is not on this machine.
    """
    resolved = resolve(name, **given)
    return _class(name)(**resolved)


def architecture(name: str, **given: Any) -> nn.Module:
    """Return a workload's model without its data, as `Workload.architecture` makes it.

    Raises `ValueError` with one line on a wrong name or value.
    """
    resolved = resolve(name, **given)
    return _class(name).architecture(**resolved)


def described(name: str, **given: Any) -> tuple[str, str]:
    """Return what tables call a workload's model and data, without loading the data.

    Raises `ValueError` with one line on a wrong name or value.
    """
    resolved = resolve(name, **given)
    return _class(name).described(**resolved)


def _class(name: str) -> type[Workload]:
    found: type[Workload] = getattr(import_module(f"{__name__}.{name}"), _CLASSES[name])
    return found
