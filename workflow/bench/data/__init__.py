"""The data sets: where the files lie, how they are read and checked, and how batches are drawn from them.

Importing this package imports no torch.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final, NamedTuple


class DataSet(NamedTuple):
    """Where a data set is read, and what its version says."""

    module: str
    """The module of this folder that reads it."""
    recipe: str
    """The version of the files, or of the code that prepares them; increase it whenever that code makes other data."""
    packages: tuple[str, ...] = ()
    """The installed packages that carry or process the data: their versions belong to its own."""


_DOCSTRINGS: Final = ("scikit-learn", "scipy", "tokenizers")

# A file of the user's is no part of a version: the fingerprint covers it.
DATASETS: Final[dict[str, DataSet]] = {
    "digits": DataSet("digits", "v1", ("scikit-learn",)),
    "glyphs": DataSet("glyphs", "v1", ("matplotlib", "pillow")),
    # Only one edition exists; torchvision checks every file against its checksum.
    **dict.fromkeys(("cifar10", "cifar100"), DataSet("cifar", "CIFAR, Python edition, v1")),
    "imagenet": DataSet("imagenet", "ILSVRC 2012, v1"),
    "docstrings": DataSet("corpus", "v1", _DOCSTRINGS),
    **dict.fromkeys(
        ("copy", "library", "package", "quotes", "similarity"), DataSet("docstring_tasks", "v1, tasks v1", _DOCSTRINGS)
    ),
    **dict.fromkeys(
        ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte"), DataSet("glue", "GLUE v1", ("tokenizers",))
    ),
    "imdb": DataSet("imdb", "IMDB v1", ("tokenizers",)),
    "squad": DataSet("squad", "SQuAD v1.1, v1", ("tokenizers",)),
    "text": DataSet("shards", "shards v1"),
}
"""All data sets, by name."""


def module_of(dataset: str) -> str:
    """Return the dotted name of the module that reads a data set.

    Raises:
        ValueError: no module reads it.
    """
    if dataset not in DATASETS:
        raise ValueError(f"{dataset=} must be one of {', '.join(sorted(DATASETS))}.")
    return f"{__name__}.{DATASETS[dataset].module}"


def version_of(dataset: str) -> str:
    """Return the version of a data set, such as ``scikit-learn 1.9.1, v1``, which is part of a run's spec."""
    module_of(dataset)  # refuses an unknown name
    _, recipe, packages = DATASETS[dataset]
    return ", ".join([*(f"{package} {version(package)}" for package in packages), recipe])
