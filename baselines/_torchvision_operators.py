"""Lets torchvision be imported beside a torch that its wheel was not built for.

torchvision's wheel from the default index carries CUDA operators.  Beside a CPU build of torch they cannot be loaded,
and ``import torchvision`` stops with "operator torchvision::nms does not exist": it describes two operators that
nobody defined.  transformers, timm, torchmetrics and Lightning import torchvision.  Importing this module first
declares the two, without an implementation: nothing here calls them.

Where torchvision's operators load, this loads them and declares nothing; where torchvision is not installed, it does
nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

NAMES = ("nms", "qnms")
"""The operators that ``import torchvision`` takes for granted."""


def _load() -> None:
    """Load torchvision's own operators, if it is installed and they fit this torch."""
    package = importlib.util.find_spec("torchvision")
    if package is None or package.origin is None:
        return
    for library in sorted(Path(package.origin).parent.glob("_C.*")):
        try:
            torch.ops.load_library(library)
        except (ImportError, OSError):
            return  # built for another torch


def _declare() -> torch.library.Library | None:
    """Declare the operators that are missing; the declaration lives as long as what is returned."""
    missing = [name for name in NAMES if not hasattr(torch.ops.torchvision, name)]
    if not missing or importlib.util.find_spec("torchvision") is None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in missing:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_load()
LIBRARY = _declare()
