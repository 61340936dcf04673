"""Makes torchvision importable with a torch build that its wheel does not fit; import this module first.

torchvision's wheel from the default index contains CUDA operators. A CPU build of torch cannot load them, and
``import torchvision`` fails with "operator torchvision::nms does not exist", since it refers to two operators that are
not defined. transformers, timm, torchmetrics and Lightning import torchvision. ``import
mkor_core.torchvision_operators`` before them declares the two operators without an implementation: models and
transforms work, ``torchvision.ops.nms`` still fails. It is not needed if torch and torchvision come from one index.

If torchvision's own operators can be loaded, this module loads them and declares nothing. If torchvision is not
installed, it does nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

NAMES = ("nms", "qnms")
"""The operators that ``import torchvision`` needs."""


def _load() -> None:
    """Load torchvision's own operators if it is installed and they fit this torch."""
    package = importlib.util.find_spec("torchvision")
    if package is None or package.origin is None:
        return
    # _C.so, or _C.pyd on Windows, in the folder of the package, which is not imported for it.
    for library in sorted(Path(package.origin).parent.glob("_C.*")):
        try:
            torch.ops.load_library(library)
        except (ImportError, OSError):
            return  # built for another torch


def _declare() -> torch.library.Library | None:
    """Declare the missing operators; the declaration lasts as long as the returned library."""
    missing = [name for name in NAMES if not hasattr(torch.ops.torchvision, name)]
    if not missing or importlib.util.find_spec("torchvision") is None:
        return None
    # A fragment adds to a namespace that may be defined elsewhere as well.
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in missing:
        # The signature of both in torchvision. It registers a fake implementation for them when it is imported, which
        # needs the declaration only.
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_load()
LIBRARY = _declare()  # kept: the declaration ends with the object
